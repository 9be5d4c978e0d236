"""The walk through the questions, and past those that taught nothing."""

from __future__ import annotations

import pytest

from seekling.config import GroupConfig
from seekling.learn.curriculum import Curriculum
from seekling.types import Episode, EpisodeRecord, Question, Reward, StopReason

QUESTIONS = [Question(str(number), "?", ("x",), source="s") for number in range(6)]


def records(step, rewards):
    """Two episodes of each question, of step `step` from 0, with these rewards; None is a failure."""
    return [
        EpisodeRecord(
            "rl",
            question,
            Episode(question.id, "s", "tags", (), (), "x", StopReason.ANSWERED),
            step=step + 1,
            reward=None if reward is None else Reward(reward),
        )
        for question, pair in rewards.items()
        for reward in pair
    ]


def curriculum(**settings):
    return Curriculum(QUESTIONS, GroupConfig(**settings), seed=3, per_step=2)


def walk(mine, steps, rewards_of):
    """Choose and take in; what was chosen, and all records."""
    chosen, taken = [], []
    for step in steps:
        questions = mine.choose(step)
        chosen.append([question.id for question in questions])
        taken += (now := records(step, {question: rewards_of(question) for question in questions}))
        mine.take_in(step, now)
    return chosen, taken


def asked(chosen):
    return [name for names in chosen for name in names]


def never_solved(question):
    return (0.0, 0.0) if question.id in "012" else (0.0, 1.0)


def test_without_it_every_epoch_asks_every_question_once_whatever_happened():
    mine = curriculum()
    chosen, _ = walk(mine, range(6), never_solved)
    assert sorted(asked(chosen[:3])) == sorted(asked(chosen[3:])) == [q.id for q in QUESTIONS]
    assert [[q.id for q in curriculum().choose(step)] for step in reversed(range(6))] == chosen[::-1]


@pytest.mark.parametrize("pair", [(0.0, 0.0), (1.0, 1.0)])
def test_questions_that_are_never_or_always_solved_are_passed_over(pair):
    mine = curriculum(skip_after=1)
    chosen, _ = walk(mine, range(12), lambda question: pair if question.id in "012" else (0.0, 1.0))
    assert sorted(asked(chosen[:3])) == [q.id for q in QUESTIONS]
    assert set(asked(chosen[3:])) == set("345")


def test_they_are_asked_again_after_some_steps():
    mine = curriculum(skip_after=1, retry_steps=4)
    chosen, _ = walk(mine, range(8), never_solved)
    again = [step for step, names in enumerate(chosen) if step >= 3 and set(names) & set("012")]
    assert again
    assert min(again) >= 4


def test_when_all_teach_nothing_the_walk_goes_on():
    mine = curriculum(skip_after=1)
    chosen, _ = walk(mine, range(9), lambda question: (0.0, 0.0))
    assert all(len(names) == 2 for names in chosen)
    assert mine.num_passed == len(QUESTIONS)


def test_failed_episodes_say_nothing_about_their_question():
    mine = curriculum(skip_after=1)
    chosen, _ = walk(mine, range(6), lambda question: (None, 1.0))
    assert sorted(asked(chosen[3:])) == [q.id for q in QUESTIONS]


@pytest.mark.parametrize("num_steps", [0, 1, 5, 9])
def test_a_resumed_run_asks_what_the_straight_one_asks(num_steps):
    mine = curriculum(skip_after=1, retry_steps=3)
    _, taken = walk(mine, range(num_steps), never_solved)
    again = curriculum(skip_after=1, retry_steps=3)
    again.catch_up(num_steps, taken)
    assert walk(again, range(num_steps, 14), never_solved) == walk(mine, range(num_steps, 14), never_solved)
