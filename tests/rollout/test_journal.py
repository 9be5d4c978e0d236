"""Replies that were paid for are asked for once; budgets end the asking between two requests."""

import json

import pytest

from seekling.config import EndpointConfig
from seekling.errors import BudgetReachedError, ConfigError
from seekling.rollout.chat import Budget, ChatClient, JournalledChat, Price, Spent
from seekling.types import Message
from tests.chat_server import chat_server, completion

HELLO, BYE = (Message("user", "hello"),), (Message("user", "bye"),)


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
