"""Our own OpenAI-compatible server with the tiny model: what clients send, what they get, and what is refused."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from seekling.config import EndpointConfig
from seekling.errors import ConfigError
from seekling.rollout.chat import ChatClient
from seekling.serve.chat_app import MAX_BODY_BYTES, make_chat_app
from seekling.serve.gate import GateRules
from seekling.serve.keys import Keys
from seekling.serve.local_model import open_local_chat
from seekling.types import Message
from tests.app_server import served
from tests.patience import FAILS_AFTER_S, wait_until

HELLO = [{"role": "user", "content": "Where is Fowey?"}]


@pytest.fixture(scope="module")
def chat(tiny_model_dir):
    with open_local_chat(str(tiny_model_dir), name="tiny", dtype="float32", context_tokens=256) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(chat):
    with served(make_chat_app(chat)) as address:
        yield address


def post(url, body, headers=None):
    """Status and body of a completion request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data=raw, headers=headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=FAILS_AFTER_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def complete(url, **fields):
    status, raw = post(url, {"model": "tiny", "messages": HELLO, **fields})
    assert status == 200, raw
    return json.loads(raw)


def events(url, **fields):
    status, raw = post(url, {"model": "tiny", "messages": HELLO, "stream": True, **fields})
    assert status == 200
    lines = raw.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_completion_has_the_reply_its_end_and_its_tokens(url, chat):
    reply = complete(url, max_tokens=7, temperature=0)
    expected = chat.ask([Message("user", "Where is Fowey?")], max_tokens=7)
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == ("length" if expected.is_cut else "stop")
    total = expected.prompt_tokens + expected.completion_tokens
    assert reply["usage"] == {
        "prompt_tokens": expected.prompt_tokens,
        "completion_tokens": expected.completion_tokens,
        "total_tokens": total,
    }
    assert (reply["object"], reply["model"]) == ("chat.completion", "tiny")


def test_a_stream_adds_up_to_the_completion_and_ends_with_the_usage(url):
    settings = {"max_tokens": 40, "temperature": 1.3, "seed": 3}
    whole = complete(url, **settings)
    *pieces, last, usage = events(url, **settings, stream_options={"include_usage": True})
    assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(pieces) > 3
    text = "".join(each["choices"][0]["delta"]["content"] for each in pieces)
    assert text == whole["choices"][0]["message"]["content"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert "usage" not in events(url, **settings)[-1]


def test_the_chat_client_speaks_with_it(url):
    client = ChatClient(EndpointConfig(url=f"{url}/v1", model="tiny"))
    messages = [Message("user", "Where is Fowey?")]
    first = client.ask(messages, max_tokens=9, temperature=1.0, top_p=0.9, seed=5)
    assert first == client.ask(messages, max_tokens=9, temperature=1.0, top_p=0.9, seed=5)
    assert (first.is_counted, first.completion_tokens <= 9) == (True, True)
    with pytest.raises(ConfigError, match="only 'tiny'"):
        ChatClient(EndpointConfig(url=f"{url}/v1", model="other")).ask(messages, max_tokens=9)


def test_a_failure_that_nobody_foresaw_is_500_and_says_that_the_connection_ends(chat, monkeypatch):
    def fail(*args, **settings):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(chat, "count_prompt_tokens", fail)
    with served(make_chat_app(chat)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=FAILS_AFTER_S)
        connection.request("POST", "/v1/chat/completions", json.dumps({"model": "tiny", "messages": HELLO}))
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert (response.status, response.headers["Connection"]) == (500, "close")
        assert error["message"] == "the request failed: ZeroDivisionError: no such luck"
        assert (error["type"], error["code"]) == ("server_error", "internal_error")
        connection.close()


def test_text_pieces_stops_and_the_newer_limit_are_understood(url):
    pieces = [{"type": "text", "text": "Where is "}, {"type": "text", "text": "Fowey?"}]
    settings = {"max_completion_tokens": 30, "temperature": 1.3, "seed": 3}
    whole = complete(url, **settings)
    assert complete(url, messages=[{"role": "user", "content": pieces}], **settings)["usage"] == whole["usage"]
    text = whole["choices"][0]["message"]["content"]
    stopped = complete(url, stop=text[10:14], **settings)["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == (text[: text.find(text[10:14])], "stop")
    kept = complete(url, stop=text[10:14], include_stop_str_in_output=True, **settings)["choices"][0]
    assert (kept["message"]["content"], kept["finish_reason"]) == (text[: text.find(text[10:14]) + 4], "stop")


@pytest.mark.parametrize(
    ("change", "status", "code", "words"),
    [
        ({"model": "gpt"}, 404, "model_not_found", "no model 'gpt' here, only 'tiny'"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "wizard", "content": "?"}]}, 400, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": "user", "content": "harbour " * 300}]}, 400, "context_length_exceeded", "have 256"),
        ({"messages": [{"role": "user", "content": " " * 20_000}]}, 400, "context_length_exceeded", "20000 characters"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"temperature": -1}, 400, "invalid_value", "temperature"),
        ({"top_p": 0}, 400, "invalid_value", "top_p"),
        ({"n": 2}, 400, "invalid_value", "n"),
        ({"stop": [""]}, 400, "invalid_value", "stop"),
        ({"tools": [{"type": "function"}]}, 400, "unsupported_parameter", "'tools'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_cannot_be_served_is_refused_by_name(url, change, status, code, words, is_streamed):
    body = {"model": "tiny", "messages": HELLO, "stream": is_streamed, **change}
    got, raw = post(url, body)
    error = json.loads(raw)["error"]
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert words in error["message"]


HALF_A_CHARACTER = json.dumps({"model": "tiny", "messages": HELLO, "stop": ["\ud800"], "stream": True}).encode()


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"\xff", b"[" * 100_000, HALF_A_CHARACTER])
def test_a_body_that_is_no_object_is_refused(url, raw):
    status, body = post(url, raw)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_json")


def test_the_model_is_listed_and_the_server_says_that_it_is_up(url):
    with urllib.request.urlopen(f"{url}/v1/models", timeout=FAILS_AFTER_S) as response:
        assert [each["id"] for each in json.loads(response.read())["data"]] == ["tiny"]
    with urllib.request.urlopen(f"{url}/health", timeout=FAILS_AFTER_S) as response:
        assert json.loads(response.read()) == {"status": "ok", "model": "tiny"}


def test_a_key_is_asked_for_where_there_is_one(chat):
    with served(make_chat_app(chat, rules=GateRules(Keys(secret="secret")))) as address:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 1}
        assert post(address, body)[0] == 401
        assert post(address, body, {"Authorization": "Bearer wrong"})[0] == 401
        assert post(address, body, {"Authorization": "Bearer secret"})[0] == 200
        assert urllib.request.urlopen(f"{address}/health", timeout=FAILS_AFTER_S).status == 200


def test_a_client_that_goes_away_in_the_middle_leaves_the_server_working(url):
    body = json.dumps({"model": "tiny", "messages": HELLO, "stream": True, "temperature": 1.3}).encode()
    for _ in range(3):
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/chat/completions", data=body, method="POST"), timeout=FAILS_AFTER_S
        ) as response:
            response.readline()
    assert complete(url, max_tokens=2)["usage"]["completion_tokens"] <= 2


def test_a_body_that_is_too_large_is_refused(url):
    status, raw = post(url, b" " * (MAX_BODY_BYTES + 1))
    assert (status, json.loads(raw)["error"]["code"]) == (413, "request_too_large")
    assert f"{MAX_BODY_BYTES + 1} bytes; this server takes {MAX_BODY_BYTES}" in json.loads(raw)["error"]["message"]


def test_more_than_there_is_room_for_is_told_to_come_back_and_the_room_is_given_back(chat):
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 1}
    with served(make_chat_app(chat, waiting_bytes=1)) as address:
        half_sent = http.client.HTTPConnection(address.removeprefix("http://"), timeout=FAILS_AFTER_S)
        raw = json.dumps(body).encode()
        half_sent.putrequest("POST", "/v1/chat/completions")
        half_sent.putheader("Content-Length", str(len(raw)))
        half_sent.endheaders(raw[:10])
        wait_until(lambda: post(address, body)[0] == 503)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}/v1/chat/completions", data=raw, timeout=FAILS_AFTER_S)
        with refused.value as error:
            assert (error.code, error.headers["Retry-After"]) == (503, "1")
            assert json.loads(error.read())["error"]["code"] == "overloaded"
        half_sent.send(raw[10:])
        assert half_sent.getresponse().status == 200
        half_sent.close()
        for given_up in ({"stream": True}, {"stream": True, "max_tokens": 200}, {"model": "other"}, {"n": 2}):
            post(address, {**body, **given_up})
            wait_until(lambda: post(address, body)[0] == 200)


def test_the_command_serves_until_it_is_told_to_stop(tiny_model_dir):
    code = "from seekling.cli.main import main; main()"
    words = ["serve", "--policy-only", str(tiny_model_dir), "--port", "0", "--name", "mine", "--context-tokens", "128"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        line = next(line for line in process.stderr if "serving" in line)
        address = re.search(r"http://[0-9.:]+", line).group()
        status, raw = post(address, {"model": "mine", "messages": HELLO, "max_tokens": 3})
        assert (status, json.loads(raw)["model"]) == (200, "mine")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=FAILS_AFTER_S) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
