"""The chat client against a real server: what it sends, what it tries again, what it gives up on."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from seekling.config import EndpointConfig
from seekling.errors import ConfigError, InfrastructureError
from seekling.rollout.chat import ChatClient, ChatReply
from seekling.types import Message
from tests.chat_server import chat_server, completion

HELLO = [Message("user", "hello")]


def client_of(server, **changes):
    endpoint = EndpointConfig(url=server.url, model="tiny", **{"request_tries": 3, **changes})
    return ChatClient(endpoint, first_pause_s=0.001)


def replying(*replies):
    """Give these replies in turn, then the last one for ever."""
    left = list(replies)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]


def test_a_reply_carries_its_text_and_its_tokens_and_the_request_what_was_asked(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with chat_server(replying((200, completion("hi", finish="length")))) as server:
        client = client_of(server, key_env="MY_KEY", extra='{"reasoning_effort": "low", "seed": null}')
        reply = client.ask(HELLO, max_tokens=7, temperature=0.5, top_p=0.9, seed=2**40 + 3)
    assert reply == ChatReply("hi", is_cut=True, prompt_tokens=10, completion_tokens=5)
    assert server.requests == [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 7,
            "reasoning_effort": "low",
        }
    ]
    assert (server.keys, server.paths) == (["Bearer secret"], ["/v1/chat/completions"])


def test_without_a_named_variable_no_key_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with chat_server(replying((200, completion("hi")))) as server:
        client_of(server).ask(HELLO, max_tokens=7)
    assert server.keys == [None]


@pytest.mark.parametrize(
    "failure",
    [(500, {"error": "x"}), (503, b""), (429, {}), (408, {}), (200, b"{cut"), (200, {"choices": []}), (200, b"[]")],
)
def test_temporary_failures_are_tried_again(failure):
    with chat_server(replying(failure, failure, (200, completion("hi")))) as server:
        assert client_of(server).ask(HELLO, max_tokens=7).text == "hi"
    assert len(server.requests) == 3


def test_after_the_last_try_it_is_an_infrastructure_failure_that_says_what_happened():
    with (
        chat_server(replying((503, {"error": "overloaded"}))) as server,
        pytest.raises(InfrastructureError, match=r"in 3 tries; the last one: HTTP 503: .*overloaded"),
    ):
        client_of(server).ask(HELLO, max_tokens=7)
    assert len(server.requests) == 3


def test_nobody_listening_is_an_infrastructure_failure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = EndpointConfig(url=f"http://127.0.0.1:{taken.getsockname()[1]}", request_tries=2)
        with pytest.raises(InfrastructureError, match="in 2 tries; the last one: NewConnectionError"):
            ChatClient(endpoint, first_pause_s=0.001).ask(HELLO, max_tokens=7)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_trying_again_cannot_mend_is_said_at_once(status):
    with (
        chat_server(replying((status, {"error": "no such model"}))) as server,
        pytest.raises(ConfigError, match=rf"refuses to serve 'tiny' \(HTTP {status}: .*no such model"),
    ):
        client_of(server).ask(HELLO, max_tokens=7)
    assert len(server.requests) == 1


def test_a_single_refused_request_of_a_working_endpoint_is_an_infrastructure_failure():
    with chat_server(replying((200, completion("hi")), (400, {"error": "too long"}))) as server:
        client = client_of(server)
        client.ask(HELLO, max_tokens=7)
        with pytest.raises(InfrastructureError, match="refused the request"):
            client.ask(HELLO, max_tokens=7)


def test_a_filtered_reply_is_an_infrastructure_failure_and_an_empty_one_is_empty():
    replies = replying((200, completion(None)), (200, completion("", finish="content_filter")))
    with chat_server(replies) as server:
        client = client_of(server)
        assert client.ask(HELLO, max_tokens=7).text == ""
        with pytest.raises(InfrastructureError, match="content filter"):
            client.ask(HELLO, max_tokens=7)


def test_servers_that_renamed_the_token_limit_are_understood():
    def respond(body):
        if "max_tokens" in body:
            return 400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}
        return 200, completion("hi")

    with chat_server(respond) as server:
        client = client_of(server, request_tries=1)
        client.ask(HELLO, max_tokens=7)
        client.ask(HELLO, max_tokens=8)
    assert [body.get("max_completion_tokens") for body in server.requests] == [None, 7, 8]


def test_retry_after_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    with chat_server(replying((429, {}), (200, completion("hi"))), headers={"Retry-After": "2"}) as server:
        client_of(server).ask(HELLO, max_tokens=7)
    assert [2.0 <= pause <= 2.6 for pause in waited if pause > 1] == [True]


def test_a_missing_key_and_a_strange_address_are_the_users():
    with pytest.raises(ConfigError, match="the environment variable NOT_SET_HERE is not set"):
        ChatClient(EndpointConfig(url="http://localhost", model="tiny", key_env="NOT_SET_HERE"))
    with pytest.raises(ConfigError, match="'localhost:8000' is not the address of a server"):
        ChatClient(EndpointConfig(url="localhost:8000", model="tiny"))


def test_a_redirect_is_not_followed_so_that_the_key_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with (
        chat_server(replying((200, completion("hi")))) as other,
        chat_server(replying((307, {})), headers={"Location": f"{other.url}/chat/completions"}) as server,
        pytest.raises(ConfigError, match=r"refuses to serve 'tiny' \(HTTP 307"),
    ):
        client_of(server, key_env="MY_KEY").ask(HELLO, max_tokens=7)
    assert other.requests == []


def test_requests_are_spread_out_over_the_minute():
    with chat_server(replying((200, completion("yes")))) as server:
        client = client_of(server, requests_per_minute=1200)
        started = time.monotonic()
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda _: client.ask(HELLO, max_tokens=5), range(4)))
    # The first goes out at once, each other one 50 ms after the one before. A slow machine only takes longer.
    assert time.monotonic() - started >= 3 * 0.05
    assert len(server.requests) == 4
