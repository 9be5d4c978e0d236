"""What counts as a search: a call that fits its tool and was really made; which tools search is theirs to say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from seekling.env.tools import tool_from_function
from seekling.types import Episode, StopReason
from tests.env.fakes import QUESTION, FakeLibrary, make_env

MALFORMED = [
    {},
    {"query": "Fowey"},
    {"query_list": []},
    {"query_list": [" "]},
    {"query_list": ["Fowey", ""]},
    {"query_list": [["Fowey"]]},
    {"query_list": {"q": 1}},
    {"query_list": ["Fowey"], "top_k": 3},
]
PROGRAMS = ["search_pages()", "search_pages('')", "search_pages(query=['Fowey'])", "search_pages('Fowey', k=1)"]
ASKED = replace(QUESTION, supporting_ids=("harbour_of_fowey",))


def call(arguments, name="search"):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def block(expression):
    return f"```python\ntry:\n    print({expression})\nexcept Exception as error:\n    print('refused:', error)\n```\n"


def episode_of(*turns):
    return Episode("7", "test", "tools", (), turns, None, StopReason.MAX_TURNS)


CASES = [("tools", call(arguments), call({"query_list": ["Fowey"]})) for arguments in MALFORMED]
CASES += [("code", block(expression), block("search_pages('Fowey')")) for expression in PROGRAMS]


@pytest.mark.parametrize(("protocol", "malformed", "right"), CASES)
def test_a_malformed_search_costs_none_and_ends_no_failure(protocol, malformed, right):
    library = FakeLibrary()
    env = make_env(protocol=protocol, library=library, max_turns=9, max_searches=1, failing_share=1.0)
    session = env.start(ASKED)
    refused = session.step(malformed, finish="stop").turn
    assert (library.queries, "No searches are left" in refused.observation) == ([], False)
    assert episode_of(refused).num_searches == 0
    assert [each.is_retrieval for each in refused.calls] == [False] * len(refused.calls)
    made = session.step(right, finish="stop").turn
    assert library.queries == ["Fowey"]
    assert "harbour_of_fowey" not in [page for each in made.calls for page in each.document_ids]  # it was made to fail
    assert episode_of(refused, made).num_searches == 1
    assert "No searches are left" in session.step(right, finish="stop").turn.observation


def search_diary(day: str) -> str:
    """What the diary says of a day."""
    return f"On {day} it rained."


def wade(query: str) -> str:
    """What a river brings."""
    return query.upper()


wade.is_retrieval = True


@pytest.mark.parametrize(("function", "counts"), [(search_diary, False), (wade, True)])
def test_a_users_tool_says_itself_whether_it_searches(function, counts):
    tool = tool_from_function(function)
    assert tool.is_retrieval == counts
    (argument,) = tool.parameters["properties"]
    session = make_env(protocol="tools", user_tools=[tool], max_searches=1, max_turns=9).start(QUESTION)
    action = call({argument: "May"}, tool.name)
    turn = session.step(action, finish="stop").turn
    assert episode_of(turn).num_searches == counts
    assert ("No searches are left" in session.step(action, finish="stop").turn.observation) == counts


def test_a_search_that_broke_off_counts_since_it_was_made():
    library = FakeLibrary(ValueError("bad index"))
    session = make_env(protocol="tools", library=library, max_searches=1, max_turns=9).start(QUESTION)
    turn = session.step(call({"query_list": ["Fowey"]}), finish="stop").turn
    assert ("bad index" in turn.observation, episode_of(turn).num_searches) == (True, 1)
