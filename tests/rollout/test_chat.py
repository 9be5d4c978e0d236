"""The chat client against a real server: what it sends, what it tries again, what it gives up on, what it keeps."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from seekling.config import EndpointConfig
from seekling.errors import BudgetReachedError, ConfigError, InfrastructureError
from seekling.rollout.chat import Budget, ChatClient, ChatReply, JournalledChat, Price, Spent
from seekling.types import Message
from tests.chat_server import chat_server, completion

HELLO, BYE = (Message("user", "hello"),), (Message("user", "bye"),)


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


def echo(body):
    return 200, completion(body["messages"][-1]["content"].upper(), prompt_tokens=10, completion_tokens=5)


def open_journal(server, path, budget=None):
    return JournalledChat(ChatClient(EndpointConfig(url=server.url, model="tiny", request_tries=1)), path, budget)


def test_a_later_process_gets_what_an_earlier_one_paid_for(tmp_path):
    path = tmp_path / "deep" / "replies.jsonl"
    with chat_server(echo) as server:
        first = open_journal(server, path)
        assert first.ask(HELLO, max_tokens=9).text == "HELLO"
        assert first.ask(HELLO, max_tokens=9).text == "HELLO"
        again = open_journal(server, path)
        assert again.spent == Spent(1, 10, 5)
        assert again.ask(HELLO, max_tokens=9) == first.ask(HELLO, max_tokens=9)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "change", [{"max_tokens": 8}, {"seed": 1}, {"temperature": 0.5}, {"top_p": 0.5}, {"messages": BYE}]
)
def test_another_request_is_another_reply(tmp_path, change):
    with chat_server(echo) as server:
        journal = open_journal(server, tmp_path / "replies.jsonl")
        journal.ask(HELLO, max_tokens=9)
        wanted = {"max_tokens": 9, **change}
        journal.ask(wanted.pop("messages", HELLO), **wanted)
        assert len(server.requests) == 2


def test_a_line_that_a_kill_cut_short_costs_its_own_reply_and_no_other(tmp_path):
    path = tmp_path / "replies.jsonl"
    with chat_server(echo) as server:
        journal = open_journal(server, path)
        journal.ask(HELLO, max_tokens=9)
        journal.ask(BYE, max_tokens=9)
        path.write_bytes(path.read_bytes()[:-20])
        cut = open_journal(server, path)
        assert cut.spent.num_requests == 1
        cut.ask(BYE, max_tokens=9)
        whole = open_journal(server, path)
        assert whole.spent == Spent(2, 20, 10)
        assert (whole.ask(HELLO, max_tokens=9).text, whole.ask(BYE, max_tokens=9).text) == ("HELLO", "BYE")
        assert len(server.requests) == 3


def test_failures_are_not_kept(tmp_path):
    replies = [(400, {"error": "no"}), (200, completion("YES"))]
    with chat_server(lambda body: replies.pop(0)) as server:
        with pytest.raises(ConfigError):
            open_journal(server, tmp_path / "replies.jsonl").ask(HELLO, max_tokens=9)
        assert open_journal(server, tmp_path / "replies.jsonl").ask(HELLO, max_tokens=9).text == "YES"


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(max_tokens=15), "15 of 15 tokens"),
        (Budget(max_usd=0.00007, price=Price(2.0, 10.0)), "0.0001 of 7e-05 dollars"),
    ],
)
def test_a_budget_ends_the_asking_and_not_the_reading(tmp_path, budget, words):
    with chat_server(echo) as server:
        journal = open_journal(server, tmp_path / "replies.jsonl", budget)
        journal.ask(HELLO, max_tokens=9)
        with pytest.raises(BudgetReachedError, match=words):
            journal.ask(BYE, max_tokens=9)
        assert journal.ask(HELLO, max_tokens=9).text == "HELLO"
        later = open_journal(server, tmp_path / "replies.jsonl", budget)
        with pytest.raises(BudgetReachedError):
            later.ask(BYE, max_tokens=9)
        assert len(server.requests) == 1


def test_a_budget_needs_prices_and_a_server_that_counts(tmp_path):
    with pytest.raises(ConfigError, match="--price-in"):
        Budget(max_usd=1.0)
    uncounted = {"choices": completion("YES")["choices"]}
    with chat_server(lambda body: (200, uncounted)) as server:
        with pytest.raises(ConfigError, match="how many tokens"):
            open_journal(server, tmp_path / "replies.jsonl", Budget(max_tokens=100)).ask(HELLO, max_tokens=9)
        free = open_journal(server, tmp_path / "replies.jsonl")
        assert free.ask(HELLO, max_tokens=9).text == "YES"


def test_a_line_per_reply_names_no_secret_and_no_question(tmp_path):
    path = tmp_path / "replies.jsonl"
    with chat_server(echo) as server:
        open_journal(server, path).ask(HELLO, max_tokens=9)
    row = json.loads(path.read_text(encoding="utf-8"))
    assert {name: row[name] for name in row if name != "key"} == {
        "text": "HELLO",
        "is_cut": False,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "is_counted": True,
    }
