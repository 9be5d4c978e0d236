"""Our own OpenAI-compatible server with the tiny model: what clients send, what they get, and what is refused."""

import http.client
import json
import signal

import pytest

from seekling.config import EndpointConfig
from seekling.errors import ConfigError
from seekling.rollout.chat import ChatClient
from seekling.serve.chat_app import make_chat_app
from seekling.serve.local_model import open_local_chat
from seekling.types import Message
from tests.app_server import send, served, serving
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


def post(url, body):
    """Status and body of a completion request."""
    sent = send(f"{url}/v1/chat/completions", body)
    return sent.status, sent.raw


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


def test_room_is_given_back_however_a_request_ends(chat):
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 1}
    with served(make_chat_app(chat, waiting_bytes=1)) as address:  # one that comes alone is taken
        for ends in ({}, {"stream": True}, {"stream": True, "max_tokens": 200}, {"model": "other"}, {"n": 2}):
            post(address, {**body, **ends})
            wait_until(lambda: post(address, body)[0] == 200)


def test_the_command_serves_until_it_is_told_to_stop(tiny_model_dir):
    words = ["--policy-only", str(tiny_model_dir), "--port", "0", "--name", "mine", "--context-tokens", "128"]
    with serving(*words) as server:
        status, raw = post(server.url, {"model": "mine", "messages": HELLO, "max_tokens": 3})
        assert (status, json.loads(raw)["model"]) == (200, "mine")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=FAILS_AFTER_S) == 0
    assert "Traceback" not in "".join(server.lines)
