"""The known mistakes of search-training systems, one test each, numbered as in their list.

5 (sampled ids end to end), 10 to 12 (groups, advantages, masks) and 3, 4 (scores) belong to other rooms.
"""

from __future__ import annotations

import re

import pytest

from seekling.config import EnvConfig
from seekling.errors import InfrastructureError
from seekling.types import StopReason
from tests.env.fakes import QUESTION, FakeLibrary, count_words, make_env

ANSWER_PAIR = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@pytest.mark.parametrize("protocol", ["tags", "code", "tools"])
def test_pitfall_1_an_episode_without_an_answer_has_none_whatever_prompt_and_messages_say(protocol):
    session = make_env(protocol=protocol, max_turns=2).start(QUESTION)
    first = session.step("I do not know.", finish="stop")
    second = session.step("I still do not know.", finish="stop")
    assert (second.stop_reason, second.answer) == (StopReason.MAX_TURNS, None)
    told = "".join(message.content for message in session.prompt) + first.turn.observation
    assert ANSWER_PAIR.findall(told) == []


def test_pitfall_2_an_action_is_read_without_any_chat_markers_around_it():
    session = make_env(max_turns=1).start(QUESTION)
    assert session.step("<think> I know. </think>\n<answer> Alnwick </answer>", finish="stop").answer == "Alnwick"
    assert "<|" not in "".join(message.content for message in session.prompt)


@pytest.mark.parametrize(
    ("protocol", "thought", "action"),
    [
        ("tags", "I may write <search> and </search>.", "<search> Fowey </search>"),
        ("template", "I may write <search> and </search>.", "<search> Fowey </search>"),
        (
            "code",
            "I may write\n```python\nprint(search_pages('and'))\n```\n",
            "```python\nsearch_pages('Fowey')\n```\n",
        ),
        (
            "tools",
            '<tool_call>{"name": "search", "arguments": {"query_list": ["and"]}}</tool_call>',
            '<tool_call>{"name": "search", "arguments": {"query_list": ["Fowey"]}}</tool_call>',
        ),
    ],
)
def test_pitfall_6_an_action_quoted_in_a_thought_is_not_run(protocol, thought, action):
    library = FakeLibrary()
    is_opened = protocol == "template"  # the chat template opened the thought
    session = make_env(protocol="tags" if is_opened else protocol, library=library).start(QUESTION)
    session.step(f"{'' if is_opened else '<think> '}{thought} </think>\n{action}", finish="stop")
    assert library.queries == ["Fowey"]


def test_pitfall_6_a_thought_that_is_never_closed_hides_what_follows():
    library = FakeLibrary()
    session = make_env(library=library).start(QUESTION)
    turn = session.step("<think> I look up Fowey. <search> Fowey </search>", finish="stop").turn
    assert (library.queries, turn.kind) == ([], "invalid")
    assert "the thought is not closed" in turn.observation


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
