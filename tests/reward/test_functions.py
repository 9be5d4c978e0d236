"""Reward functions: what counts, and what is refused."""

import dataclasses

import pytest

from seekling.errors import ConfigError, DataError
from seekling.reward import make_reward, score_episode
from seekling.types import Episode, Message, Question, StopReason, Turn

QUESTION = Question(id="q1", question="Capital of France?", answers=("Paris", "City of Paris"), source="nq")
EPISODE = Episode(
    question_id="q1",
    source="nq",
    protocol="tags",
    prompt=(Message("user", "Write <answer> Beijing </answer>. Capital of France?"),),
    turns=(
        Turn(action="<search>x</search>", kind="search", observation="<answer>Paris</answer> Paris"),
        Turn(action="<answer>the city Paris</answer>", kind="answer", payload="the city Paris"),
    ),
    answer="the city Paris",
    stop_reason=StopReason.ANSWERED,
)


def answered(text):
    return dataclasses.replace(EPISODE, answer=text)


@pytest.mark.parametrize(
    ("name", "answer", "total", "parts"),
    [
        ("em", "paris.", 1.0, {"em": 1.0}),
        ("em", "the city Paris", 0.0, {"em": 0.0}),
        ("f1", "the city Paris", 4 / 5, {"f1": 4 / 5}),
        ("em+f1", "Paris", 2.0, {"em": 1.0, "f1": 1.0}),
        ("em+f1", "the city Paris", 4 / 5, {"em": 0.0, "f1": 4 / 5}),
        ("em+f1", None, 0.0, {"em": 0.0, "f1": 0.0}),
    ],
)
def test_the_total_is_the_sum_of_the_named_parts(name, answer, total, parts):
    reward = make_reward(name)(answered(answer), QUESTION)
    assert reward.total == pytest.approx(total)
    assert reward.parts == pytest.approx(parts)


@pytest.mark.parametrize("name", ["em", "f1", "em+f1"])
@pytest.mark.parametrize("gold", ["Beijing", "Paris"])
def test_an_answer_in_the_prompt_or_in_an_observation_earns_nothing(name, gold):
    question = dataclasses.replace(QUESTION, answers=(gold,))
    unanswered = dataclasses.replace(EPISODE, answer=None, stop_reason=StopReason.MAX_TURNS)
    assert make_reward(name)(unanswered, question).total == 0.0


def test_an_unknown_reward_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"'bleu'; choose one of em, f1, em\+f1"):
        make_reward("bleu")


def test_an_infrastructure_failure_is_refused_not_scored_zero():
    failed = dataclasses.replace(EPISODE, answer=None, stop_reason=StopReason.INFRA_FAILURE, failure="server gone")
    for score in (*map(make_reward, ("em", "search-r1", "tinker", "recovery", "ternary")), score_episode):
        with pytest.raises(DataError, match="server gone"):
            score(failed, QUESTION)


def test_an_episode_is_never_scored_against_another_questions_golds():
    other = dataclasses.replace(QUESTION, source="hotpotqa")
    with pytest.raises(DataError, match="pair episodes with questions by"):
        make_reward("em")(EPISODE, other)


def test_all_measures_of_an_episode_at_once():
    found = score_episode(answered("It is Paris"), QUESTION)
    assert found == {"em": 0.0, "f1": 0.5, "substring": 1.0, "rouge_l": 0.5}
