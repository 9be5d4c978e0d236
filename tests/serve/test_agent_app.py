"""The agent's server as OpenAI's own client, and others, meet it."""

import asyncio
import http.client
import json
import re
import socket
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest

from seekling.serve.keys import Keys, add_key, revoke_key
from tests import app_server
from tests.patience import FAILS_AFTER_S, wait_until
from tests.serve.serving import serve_village

QUESTION = "When was Alder Mill built?"


@pytest.fixture
def folder(village):
    return village.folder


def send(url, path="/v1/chat/completions", body=None, **more):
    return app_server.send(url + path, body, **more)


def asking(question=QUESTION, **fields):
    return {"model": "village", "messages": [{"role": "user", "content": question}], **fields}


def code_of(reply):
    return reply[0], reply.json["error"]["code"]


def client_of(village, kind=openai.OpenAI, key="none"):
    return kind(base_url=f"{village.url}/v1", api_key=key, max_retries=0)


def test_openais_client_gets_an_answer_with_the_sentence_that_says_so(village):
    village.sampler.sampled.clear()
    with client_of(village) as client:
        assert [model.id for model in client.models.list()] == ["village"]
        assert client.models.retrieve("village").id == "village"
        with pytest.raises(openai.NotFoundError, match="there is no model 'other' here"):
            client.models.retrieve("other")
        reply = client.chat.completions.create(**asking())
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("1612", "stop")
    (annotation,) = choice.message.annotations
    assert annotation.type == "url_citation"
    assert annotation.url_citation.title == "Alder Mill"
    assert annotation.document_id == "alder_mill"
    assert "It was built in 1612" in annotation.quote
    page = json.loads(send("", annotation.url_citation.url)[2])
    assert annotation.quote in page["text"]
    num_written = sum(written for _, written in village.sampler.sampled)
    last_prompt, last_written = village.sampler.sampled[-1]
    assert reply.usage.completion_tokens == num_written
    assert reply.usage.prompt_tokens == last_prompt + last_written - num_written
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_shows_the_searches_and_then_the_same_answer(village):
    with client_of(village) as client:
        whole = client.chat.completions.create(**asking())
        stream = client.chat.completions.create(**asking(stream=True, stream_options={"include_usage": True}))
        *events, last = list(stream)
    reasoning = "".join(each.choices[0].delta.model_extra.get("reasoning_content", "") for each in events)
    assert f"search: {QUESTION}" in reasoning
    assert "Alder Mill" in reasoning
    assert "".join(each.choices[0].delta.content or "" for each in events) == whole.choices[0].message.content
    assert events[-1].choices[0].finish_reason == "stop"
    assert last.usage == whole.usage
    assert {each.id for each in events} == {last.id}


def test_many_asynchronous_clients_each_get_their_own_answer(village):
    async def ask_all():
        async with client_of(village, openai.AsyncOpenAI) as client:
            mills = ["Alder", "Birch"] * 8
            replies = await asyncio.gather(
                *(client.chat.completions.create(**asking(f"When was {mill} Mill built?")) for mill in mills)
            )
            return list(zip(mills, (reply.choices[0].message.content for reply in replies), strict=True))

    assert all(answer == {"Alder": "1612", "Birch": "1655"}[mill] for mill, answer in asyncio.run(ask_all()))


def test_what_is_not_in_the_documents_is_said_with_what_was_looked_at(village):
    reply = json.loads(send(village.url, body=asking("Who owns the cider of Harrow Dell?"))[2])
    message = reply["choices"][0]["message"]
    assert message["content"].startswith("I did not find this in the documents. I looked for: Who owns the cider")
    assert "Harrow Dell" in message["content"]
    assert (message["annotations"], reply["seekling"]["is_found"]) == ([], False)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (asking(""), (400, "invalid_value")),
        (asking(" \n\t"), (400, "invalid_value")),
        (asking("", stream=True), (400, "invalid_value")),
        (asking([{"type": "text", "text": " "}]), (400, "invalid_value")),
        (asking(None), (400, "invalid_value")),
        (asking("?" * 5000), (400, "context_length_exceeded")),
        ({**asking(), "messages": [{"role": "assistant", "content": "x"}]}, (400, "invalid_value")),
        ({**asking(), "messages": [*asking()["messages"], {"role": "tool", "content": "x"}]}, (400, "invalid_value")),
        (asking(response_format={"type": "json_object"}), (400, "unsupported_parameter")),
        (b" " * 10_000_000, (413, "request_too_large")),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_answered_is_refused_by_name(village, body, expected):
    num_logged = len(village.log)
    assert code_of(send(village.url, body=body)) == expected
    wait_until(lambda: len(village.log) > num_logged)  # the line is written when the reply has been sent
    assert (village.log[-1]["status"], village.log[-1]["error"]) == expected


def test_a_question_that_leaves_the_policy_no_room_is_refused_and_not_called_not_found(village):
    before = count_of(village, "refused")
    reply = send(village.url, body=asking("\u4e2d" * 3990))
    assert code_of(reply) == (400, "context_length_exceeded")
    assert "rollout.episode_tokens" in reply.json["error"]["message"]
    streamed = send(village.url, body=asking("\u4e2d" * 3990, stream=True)).raw.decode()
    assert '"code": "context_length_exceeded"' in streamed
    assert count_of(village, "refused") == before + 2


@pytest.mark.parametrize("wrong", [{"messages": [1] * 300_000}, {"stop": [1] * 300_000}], ids=["messages", "stop"])
def test_of_a_million_wrong_things_the_first_is_named_and_the_others_are_not_looked_at(village, wrong):
    reply = send(village.url, body={**asking(), **wrong})
    assert code_of(reply) == (400, "invalid_value")
    assert ".0: Input should be" in reply.json["error"]["message"]
    assert ".1: Input should be" not in reply.json["error"]["message"]


def test_what_asks_for_nothing_special_is_answered(village):
    reply = send(village.url, body=asking(response_format={"type": "text"}, tools=[], logprobs=False, n=1))
    assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "1612")


def test_ids_of_pages_find_pages_and_nothing_else(village):
    for page in ("../../etc/passwd", "a/../b?x=1#y"):
        status, _, raw = send(village.url, "/v1/pages/" + urllib.parse.quote(page, safe=""))
        assert (status, json.loads(raw)["document_id"]) == (200, page)
    for path in ("../../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fshadow", "%00", "x" * 5000, "served.sqlite"):
        assert send(village.url, f"/v1/pages/{path}")[0] in (404, 400)


def test_a_failing_engine_is_503_and_in_a_stream_an_error_event(village):
    assert code_of(send(village.url, body=asking("When did the engine break?"))) == (503, "engine_failed")
    num_failed = count_of(village, "failed")
    status, _, raw = send(village.url, body=asking("When did the engine break?", stream=True))
    assert (status, count_of(village, "failed")) == (200, num_failed + 1)
    whole, stream = [line for line in village.log if "outcome" in line][-2:]
    assert (whole["outcome"], whole["status"], stream["outcome"], stream["status"]) == ("failed", 503, "failed", 200)
    assert whole["failure"] == stream["failure"] == "the question could not be answered: the engine broke"
    assert '"error": {"message": "the question could not be answered' in raw.decode()
    with client_of(village) as client, pytest.raises(openai.APIError, match="the engine broke"):
        list(client.chat.completions.create(**asking("When did the engine break?", stream=True)))


def count_of(village, outcome):
    """Questions of this outcome, as /metrics tells."""
    text = send(village.url, "/metrics").raw.decode()
    found = re.search(rf'^seekling_questions_total{{outcome="{outcome}"}} (\S+)$', text, re.M)
    return float(found[1]) if found else 0.0


def test_who_goes_away_frees_the_place_and_is_logged_as_cancelled(village):
    address = village.url.removeprefix("http://").split(":")
    for stream in (True, False):
        num_cancelled = count_of(village, "cancelled")
        num_before = len(village.sampler.closed)
        with socket.create_connection((address[0], int(address[1]))) as connection:
            raw = json.dumps(asking("When was Alder Mill slowly built?", stream=stream)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
            connection.sendall(head.encode() + raw)
            wait_until(lambda: village.sampler.num_running == 1)
        wait_until(lambda before=num_before: len(village.sampler.closed) == before + 1)
        assert village.sampler.num_running == 0
        wait_until(lambda before=num_cancelled: count_of(village, "cancelled") == before + 1)
        line = ("/v1/chat/completions", 200 if stream else 499, "cancelled")
        wait_until(lambda line=line: line in [(e["route"], e["status"], e.get("outcome")) for e in village.log])


def test_only_so_many_wait_and_nobody_waits_for_ever(folder, tiny_model_dir):
    with (
        serve_village(folder, tiny_model_dir, in_flight=1, waiting_questions=1, timeout_s=1.0) as village,
        ThreadPoolExecutor(3) as pool,
    ):
        body = asking("When was Alder Mill slowly built?")
        waiting = [pool.submit(send, village.url, body=body) for _ in range(2)]
        wait_until(lambda: b"seekling_open_questions 2.0" in send(village.url, "/metrics")[2])
        refused = send(village.url, body=body)
        assert (code_of(refused), refused[1]["Retry-After"]) == ((503, "overloaded"), "1")
        assert [code_of(each.result()) for each in waiting] == [(504, "timeout")] * 2
        assert send(village.url, body=asking())[0] == 200
        streamed = send(village.url, body={**body, "stream": True})
        *_, last, end = streamed.raw.decode().split("\n\n")
        assert (streamed.status, json.loads(last.removeprefix("data: "))["error"]["code"], end) == (200, "timeout", "")
        assert count_of(village, "timeout") == 3
        asked = [line for line in village.log if line["route"] == "/v1/chat/completions"]
        assert asked[0]["error"] == "overloaded"
        assert [(line["status"], line.get("outcome")) for line in asked] == [
            *[(503, None), (504, "timeout"), (504, "timeout"), (200, "found"), (200, "timeout")]
        ]


def test_a_body_that_trickles_in_is_cut_off(folder, tiny_model_dir):
    with serve_village(folder, tiny_model_dir, body_s=0.3) as village:
        connection = http.client.HTTPConnection(village.url.removeprefix("http://"), timeout=FAILS_AFTER_S)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["error"]["code"]) == (408, "request_timeout")
        connection.close()


def test_keys_are_named_revocable_and_limited_each(folder, tiny_model_dir, tmp_path):
    path = tmp_path / "keys.json"
    alice, bob = add_key(path, "alice"), add_key(path, "bob")
    assert alice not in path.read_text()
    with serve_village(folder, tiny_model_dir, keys=Keys(path), requests_per_minute=4) as village:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": alice}):
            assert code_of(send(village.url, body=asking(), **headers)) == (401, "invalid_api_key")
        assert send(village.url, "/", **{})[0] == send(village.url, "/health")[0] == 200
        with client_of(village, key=alice) as client:
            answer = client.chat.completions.create(**asking()).id
        assert village.log[-1]["key"] == "alice"
        judged = {"id": answer, "thumbs": "up"}
        theirs = send(village.url, "/v1/feedback", judged, Authorization=f"Bearer {bob}")
        assert code_of(theirs) == (404, "answer_not_found")
        assert send(village.url, "/v1/feedback", judged, Authorization=f"Bearer {alice}")[0] == 200
        for _ in range(2):
            assert send(village.url, "/v1/models", Authorization=f"Bearer {alice}")[0] == 200
        limited = send(village.url, "/v1/models", Authorization=f"Bearer {alice}")
        assert (code_of(limited), int(limited[1]["Retry-After"]) > 0) == ((429, "rate_limit_exceeded"), True)
        assert send(village.url, "/v1/models", Authorization=f"Bearer {bob}")[0] == 200
        revoke_key(path, "bob")
        assert send(village.url, "/v1/models", Authorization=f"Bearer {bob}")[0] == 401
        path.unlink()
        assert send(village.url, "/v1/models")[0] == 401


def test_without_keys_all_share_one_rate_and_the_page_has_none(folder, tiny_model_dir):
    with serve_village(folder, tiny_model_dir, requests_per_minute=3) as village:
        assert [send(village.url, "/v1/models", Authorization=f"Bearer {each}")[0] for each in "abc"] == [200] * 3
        limited = send(village.url, body=asking())
        assert code_of(limited) == (429, "rate_limit_exceeded")
        assert 1 <= int(limited[1]["Retry-After"]) <= 20
        assert [send(village.url, path)[0] for path in ("/", "/health")] == [200, 200]


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}])
def test_pages_of_other_sites_are_refused(village, headers):
    assert send(village.url, body=asking(), **headers)[0] == 403
    reply = send(village.url, method="OPTIONS", Origin=village.url)
    assert "Access-Control-Allow-Origin" not in reply[1]


def test_the_log_says_what_happened_and_not_what_was_asked(village):
    send(village.url, body=asking("Where does the Tansy hide?"))
    line = village.log[-1]
    assert (line["route"], line["status"], line["outcome"]) == ("/v1/chat/completions", 200, "not_found")
    assert "Tansy" not in json.dumps(village.log)


def test_metrics_count_requests_and_questions(village):
    send(village.url, body=asking())
    num_found = count_of(village, "found")
    send(village.url, body=asking())
    assert count_of(village, "found") == num_found + 1


def test_the_description_of_the_server_is_true(village):
    description = json.loads(send(village.url, "/openapi.json")[2])

    def check(reply, operation, kind="application/json"):
        status, headers, raw = reply
        content = operation["responses"][str(status)]["content"]
        assert headers["Content-Type"].partition(";")[0] == kind
        for part in raw.decode().removesuffix("data: [DONE]\n\n").split("\n\n" if "event" in kind else "\0"):
            if part:
                schema = {**content[kind]["schema"], "components": description["components"]}
                jsonschema.validate(json.loads(part.removeprefix("data: ")), schema)
        return status

    paths = description["paths"]
    chat, feedback = paths["/v1/chat/completions"]["post"], paths["/v1/feedback"]["post"]
    page, gone = paths["/v1/pages/{id}"]["get"], asking("When was Alder Mill slowly built?")
    answered = send(village.url, body=asking())
    kept = {"id": json.loads(answered[2])["id"], "thumbs": "down", "correction": "1613"}
    assert check(answered, chat) == 200
    assert check(send(village.url, body=asking("Who is it?")), chat) == 200
    assert check(send(village.url, body=asking(stream=True, stream_options={"include_usage": True})), chat,
                 "text/event-stream") == 200  # fmt: skip
    assert check(send(village.url, body=asking("engine?", stream=True)), chat, "text/event-stream") == 200
    assert check(send(village.url, body=b"{"), chat) == 400
    assert check(send(village.url, body=asking("engine?")), chat) == 503
    assert check(send(village.url, body=asking(), Origin="http://evil.example"), chat) == 403
    assert check(send(village.url, "/v1/feedback", kept), feedback) == 200
    assert check(send(village.url, "/v1/feedback", {**kept, "id": "x"}), feedback) == 404
    assert check(send(village.url, "/v1/feedback", {"id": "x"}), feedback) == 400
    assert check(send(village.url, "/v1/pages/alder_mill"), page) == 200
    assert check(send(village.url, "/v1/pages/nothing"), page) == 404
    for path in ("/v1/models", "/health"):
        assert check(send(village.url, path), paths[path]["get"]) == 200
    for operation, body in ((chat, gone), (feedback, kept)):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(body, {**schema, "components": description["components"]})
    wrong = {**asking(), "messages": []}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, {**chat["requestBody"]["content"]["application/json"]["schema"],
                                    "components": description["components"]})  # fmt: skip
