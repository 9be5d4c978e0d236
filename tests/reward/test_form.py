"""Rewards that look at form: Search-R1's vectors on episodes, tinker's three values, and what pages cannot change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seekling.config import RewardConfig
from seekling.reward import make_reward
from seekling.types import Episode, Question, StopReason, Turn

QUESTION = Question("1", "Capital of France?", ("Paris",), source="nq")
WEIGHTS = RewardConfig(structure=0.2, final=0.1, retrieval=0.1)
PAGE = "\n\n<information>Doc 1(Title: x) {} is the capital.</information>\n\n"


def searched(action="<think>a</think>\n<search> q </search>", gold="Paris"):
    return Turn(action, "search", "q", observation=PAGE.format(gold))


def answered(action):
    return Turn(action, "answer", action.partition("<answer>")[2].partition("</answer>")[0].strip())


def episode(*turns, answer="Paris", stop=StopReason.ANSWERED, protocol="tags"):
    return Episode("1", "nq", protocol, (), turns, answer, stop)


WELL = "<think>b</think>\n<answer>{}</answer>"
VECTORS = {
    "perfect": (episode(searched(), answered(WELL.format("Paris"))), 1.0),
    "right without a closed thought": (
        episode(searched("<think>a\n<search> q </search>"), answered(WELL.format("Paris"))),
        0.8,
    ),
    "right without a thought after the pages": (episode(searched(), answered("<answer>Paris</answer>")), 0.8),
    "wrong, and the gold was there": (episode(searched(), answered(WELL.format("Rome")), answer="Rome"), 0.3),
    "wrong": (episode(searched(gold="Lyon"), answered(WELL.format("Rome")), answer="Rome"), 0.2),
    "wrong in another form": (episode(answered("<answer>Rome</answer>"), answer="Rome"), 0.1),
    "right with words after it": (episode(searched(), answered(WELL.format("Paris") + " done")), 0.8),
    "right, then a search": (episode(answered("<think>a</think><answer>Paris</answer><search>q</search>")), 0.8),
}


@pytest.mark.parametrize("name", VECTORS)
def test_episodes_have_the_values_of_search_r1s_format_score(name):
    each, expected = VECTORS[name]
    reward = make_reward("search-r1", WEIGHTS)(each, QUESTION)
    assert reward.total == sum(reward.parts.values()) == pytest.approx(expected)
    assert reward.parts["em"] == float(each.answer == "Paris")


def test_all_weights_at_0_are_pure_exact_match():
    plain = make_reward("search-r1", RewardConfig(structure=0, final=0, retrieval=0))
    assert [plain(each, QUESTION).total for each, _ in VECTORS.values()] == [1, 1, 1, 0, 0, 0, 1, 1]


def test_what_is_no_answer_earns_nothing_and_tags_in_a_page_do_not_break_the_form():
    silent = episode(Turn("hm", "invalid", observation="Again:"), answer=None, stop=StopReason.MAX_TURNS)
    assert make_reward("search-r1", WEIGHTS)(silent, QUESTION).total == 0.0
    turn = replace(searched(), observation=PAGE.format("<think> Paris"))
    assert make_reward("search-r1", WEIGHTS)(episode(turn, answered(WELL.format("Paris"))), QUESTION).total == 1.0


TOOLS = [
    ("Answer: Paris", "Paris", StopReason.ANSWERED, 1.0),
    ("Answer: Rome", "Rome", StopReason.ANSWERED, 0.0),
    ("Paris", None, StopReason.PARSE_ERROR, -0.1),
    ("<tool_call>", None, StopReason.PARSE_ERROR, -0.1),
    ("Answer: Par", None, StopReason.MAX_TOKENS, -0.1),
    ("Answer: Paris <tool_call>{}</tool_call>", None, StopReason.MAX_TURNS, -0.1),
]


@pytest.mark.parametrize(("text", "answer", "stop", "expected"), TOOLS)
def test_tinkers_reward_is_1_or_0_for_an_answer_and_a_tenth_below_0_for_none(text, answer, stop, expected):
    reward = make_reward("tinker")(episode(Turn(text, "answer"), answer=answer, stop=stop, protocol="tools"), QUESTION)
    assert reward.total == sum(reward.parts.values()) == pytest.approx(expected)
