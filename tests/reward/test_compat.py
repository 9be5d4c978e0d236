"""Other systems' scorers, against values that their own code gave."""

import pytest

from seekling.config import RewardConfig
from seekling.reward.compat import (
    PROMPT_PAIRS,
    search_r1_answer,
    search_r1_format_score,
    tinker_answer,
)

PROMPT = f"<|im_start|>user\n{PROMPT_PAIRS}<|im_end|>\n<|im_start|>assistant\n"
INVALID = "\nMy action is not correct. Put the answer between <answer> and </answer>.\n"


def response(text):
    return PROMPT + text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>Paris</answer>", None),
        ("no tags", None),
        (f"{PROMPT_PAIRS} nothing", "Beijing"),
        (f"{PROMPT_PAIRS} {INVALID}", "and"),
        (f"{PROMPT_PAIRS} <answer>\n Paris \n</answer>", "Paris"),
        (f"{PROMPT_PAIRS} <answer>Rome</answer> <answer>Paris</answer>", "Paris"),
    ],
)
def test_the_last_pair_of_at_least_two_is_the_answer(text, answer):
    assert search_r1_answer(text) == answer


DOCS = "<information>Doc 1(Title: x) Paris is the capital.</information>"
WELL_FORMED = f"<think>a</think>\n<search>q</search>\n\n{DOCS}\n\n<think>b</think>\n<answer>%s</answer>"
FORMAT = [
    (WELL_FORMED % "Paris", 1.0),
    ("nothing at all", 0.1),
    ("<think>" + " " * 5000 + "<answer>Rome</answer>" * 99, 0.1),  # and soon
]


@pytest.mark.parametrize(("text", "expected"), FORMAT)
def test_the_format_score_has_the_values_of_the_reference(text, expected):
    weights = RewardConfig(structure=0.2, final=0.1, retrieval=0.1)
    assert search_r1_format_score(response(text), ["Paris"], weights) == pytest.approx(expected)


def test_without_a_chat_template_no_text_is_ever_well_formed():
    raw = PROMPT_PAIRS + WELL_FORMED % "Paris"
    assert search_r1_format_score(raw, ["Paris"], RewardConfig(structure=0.2)) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("I think so.\nAnswer: Paris", "Paris"),
        ("Answer: Paris\nbecause", "Paris\nbecause"),
        ("Answer: Rome. Answer: Paris", None),
        ("answer: Paris", None),
        ("Answer:", ""),
    ],
)
def test_tinker_wants_its_mark_exactly_once(message, answer):
    assert tinker_answer(message) == answer
