"""The rules of an episode."""

from __future__ import annotations

import re

import pytest

from seekling.config import EnvConfig
from seekling.env.tools import tool_from_function
from seekling.errors import InfrastructureError
from seekling.types import StopReason, ToolCall
from tests.env.fakes import QUESTION, FakeLibrary, ScriptedSandbox, count_words, make_env


def river_length(river: str) -> int:
    """Length of a river in kilometres."""
    return {"Aln": 40}[river]


@pytest.mark.parametrize(
    ("protocol", "action"),
    [
        ("tags", "<river_length> Tweed </river_length>"),
        ("code", "```python\nprint(river_length('Tweed'))\n```\n"),
        ("tools", '<tool_call>{"name": "river_length", "arguments": {"river": "Tweed"}}</tool_call>'),
    ],
)
def test_a_users_tool_is_offered_and_its_error_reaches_the_model(protocol, action):
    session = make_env(protocol=protocol, user_tools=[tool_from_function(river_length)]).start(QUESTION)
    assert "Length of a river in kilometres." in "".join(message.content for message in session.prompt)
    result = session.step(action, finish="stop")
    assert not result.is_over
    assert "KeyError: 'Tweed'" in result.turn.observation
    failed = ToolCall("river_length", {"river": "Tweed"}, error="KeyError: 'Tweed'", is_retrieval=False)
    assert result.turn.calls == (failed,)
    result = session.step(action.replace("Tweed", "Aln"), finish="stop")
    assert "40" in result.turn.observation
    assert result.turn.calls[0].result == "40"


@pytest.mark.parametrize(
    ("protocol", "many"),
    [
        ("tags", "<search> Aln </search>"),
        ("code", "```python\nprint(search_pages('Aln'))\n```\n"),
        ("tools", '<tool_call>{"name": "search", "arguments": {"query_list": ["Aln"]}}</tool_call>'),
    ],
)
def test_searches_beyond_the_limit_are_refused_and_the_model_is_told(protocol, many):
    library = FakeLibrary()
    session = make_env(protocol=protocol, library=library, max_turns=5, max_searches=1).start(QUESTION)
    assert len(session.step(many, finish="stop").turn.calls) == 1
    refused = session.step(many, finish="stop")
    assert "No searches are left" in refused.turn.observation
    assert (refused.is_over, refused.turn.calls, library.queries) == (False, (), ["Aln"])


def test_a_call_of_more_queries_than_are_left_is_refused_as_a_whole():
    library = FakeLibrary()
    session = make_env(protocol="tools", library=library, max_searches=1).start(QUESTION)
    action = '<tool_call>{"name": "search", "arguments": {"query_list": ["Aln", "Fowey"]}}</tool_call>'
    assert "2 searches asked for, 1 left of 1." in session.step(action, finish="stop").turn.observation
    assert library.queries == []


def test_without_a_forced_answer_the_last_turns_search_is_recorded_not_executed():
    library = FakeLibrary()
    session = make_env(library=library, max_turns=1).start(QUESTION)
    result = session.step("<search> Fowey </search>", finish="stop")
    assert (result.stop_reason, result.turn.kind, result.turn.payload) == (StopReason.MAX_TURNS, "search", "Fowey")
    assert (result.turn.calls, result.turn.observation, library.queries) == ((), "", [])


def test_in_a_forced_turn_a_search_is_recorded_not_executed():
    library = FakeLibrary()
    session = make_env(library=library, max_turns=1, forced_answer=True).start(QUESTION)
    session.step("<search> Fowey </search>", finish="stop")
    result = session.step("<search> Aln </search>", finish="stop")
    assert (result.stop_reason, result.answer) == (StopReason.MAX_TURNS, None)
    assert (result.turn.is_forced, result.turn.kind, library.queries) == (True, "search", ["Fowey"])


def test_an_invalid_action_is_explained_and_the_episode_goes_on():
    session = make_env(invalid_action="retry").start(QUESTION)
    result = session.step("Let me think about it.", finish="stop")
    assert (result.is_over, result.turn.kind, result.turn.payload) == (False, "invalid", "")
    assert "no tag that is both opened and closed" in result.turn.observation
    assert session.step("<answer> Alnwick </answer>", finish="stop").answer == "Alnwick"


@pytest.mark.parametrize("protocol", ["tags", "code", "tools"])
def test_an_invalid_action_can_end_the_episode(protocol):
    session = make_env(protocol=protocol, invalid_action="stop").start(QUESTION)
    result = session.step("Let me think about it.", finish="stop")
    assert (result.stop_reason, result.answer, result.turn.observation) == (StopReason.PARSE_ERROR, None, "")


@pytest.mark.parametrize(("protocol", "text"), [("tags", "<answer> Aln"), ("tools", "Answer: Aln")])
def test_a_turn_cut_by_the_token_budget_is_not_read(protocol, text):
    result = make_env(protocol=protocol).start(QUESTION).step(text, finish="length")
    assert (result.is_over, result.stop_reason, result.answer) == (True, StopReason.MAX_TOKENS, None)
    assert (result.turn.kind, result.turn.action) == ("invalid", text)


def test_wrong_arguments_are_told_and_do_not_count_as_unreadable():
    session = make_env(protocol="tools", invalid_action="stop").start(QUESTION)
    action = '<tool_call>{"name": "search", "arguments": {"query": "Aln"}}</tool_call>'
    result = session.step(action, finish="stop")
    assert not result.is_over
    assert "query_list is missing" in result.turn.observation
    assert "search has no parameter query; did you mean query_list?" in result.turn.observation


def test_a_tool_that_is_not_offered_cannot_be_called():
    session = make_env(protocol="tools").start(QUESTION)
    action = '<tool_call>{"name": "read_section", "arguments": {"section_id": "alnwick:full"}}</tool_call>'
    turn = session.step(action, finish="stop").turn
    assert "there is no tool 'read_section'; try search" in turn.observation
    assert turn.calls == ()


def test_a_readable_call_beside_an_unreadable_one_is_made_and_the_other_is_told():
    session = make_env(protocol="tools", invalid_action="stop").start(QUESTION)
    good = '<tool_call>{"name": "search", "arguments": {"query_list": ["Aln"]}}</tool_call>'
    turn = session.step(f"{good}\n<tool_call>{{oops}}</tool_call>", finish="stop").turn
    assert "Alnwick" in turn.observation
    assert "the call is not JSON" in turn.observation
    assert [call.name for call in turn.calls] == ["search"]


def test_a_dead_sandbox_is_an_infrastructure_failure():
    sandbox = ScriptedSandbox([InfrastructureError("the zygote is gone")])
    session = make_env(protocol="code", sandbox=sandbox).start(QUESTION)
    result = session.step("```python\nprint(1)\n```\n", finish="stop")
    assert (result.stop_reason, result.failure) == (StopReason.INFRA_FAILURE, "InfrastructureError: the zygote is gone")
    assert sandbox.num_closed == 1


def test_a_finished_episode_takes_no_further_step():
    session = make_env().start(QUESTION)
    session.step("<answer> Alnwick </answer>", finish="stop")
    with pytest.raises(AssertionError, match="the episode is over"):
        session.step("<answer> Alnwick </answer>", finish="stop")


# Known mistakes of search-training systems, numbered as in their list; 3 to 6 and 10 to 12 belong to other rooms.


@pytest.mark.parametrize("protocol", ["tags", "code", "tools"])
def test_pitfall_1_an_episode_without_an_answer_has_none_whatever_prompt_and_messages_say(protocol):
    session = make_env(protocol=protocol, max_turns=2).start(QUESTION)
    first = session.step("I do not know.", finish="stop")
    second = session.step("I still do not know.", finish="stop")
    assert (second.stop_reason, second.answer) == (StopReason.MAX_TURNS, None)
    told = "".join(message.content for message in session.prompt) + first.turn.observation
    assert re.findall(r"<answer>(.*?)</answer>", told, re.DOTALL) == []


@pytest.mark.parametrize(
    ("settings", "generations", "useful_searches"),
    [({"max_turns": 4, "forced_answer": True}, 5, 4), ({"max_turns": 2}, 2, 1)],
)
def test_pitfall_7_turns_of_published_systems_are_named_with_both_counts(settings, generations, useful_searches):
    config = EnvConfig.model_validate(settings)
    assert (config.num_generations, config.num_useful_searches) == (generations, useful_searches)


def test_pitfall_8_a_long_observation_is_cut_per_document_and_its_tag_stays_closed():
    session = make_env(top_k=3, observation_tokens=20).start(QUESTION)
    turn = session.step("<search> Alnwick Maud harbour </search>", finish="stop").turn
    assert count_words(turn.observation) <= 20
    assert turn.observation.startswith("\n\n<information>Doc 1(Title: ")
    assert turn.observation.endswith("</information>\n\n")
    assert [f"Doc {n}(" in turn.observation for n in (1, 2, 3)] == [True, True, True]
    assert turn.is_observation_truncated
    assert f"Question: {QUESTION.question}?" in session.prompt[-1].content


@pytest.mark.parametrize(
    ("protocol", "action"),
    [
        ("tags", "<search> Fowey </search>"),
        ("code", "```python\ntry:\n    search_pages('Fowey')\nexcept Exception:\n    print('nothing')\n```\n"),
        ("tools", '<tool_call>{"name": "search", "arguments": {"query_list": ["Fowey"]}}</tool_call>'),
    ],
)
def test_pitfall_9_a_broken_search_server_ends_the_episode_and_is_never_an_empty_passage(protocol, action):
    library = FakeLibrary(InfrastructureError("search server: connection refused"))
    session = make_env(protocol=protocol, library=library).start(QUESTION)
    result = session.step(action, finish="stop")
    assert (result.is_over, result.stop_reason) == (True, StopReason.INFRA_FAILURE)
    assert result.failure == "InfrastructureError: search server: connection refused"
    assert (result.turn.observation, result.answer) == ("", None)
