"""The walk through the questions, and those that are asked again because they taught something."""

from __future__ import annotations

import pytest

from seekling.config import GroupConfig
from seekling.learn.curriculum import Curriculum
from seekling.types import Episode, EpisodeRecord, Question, Reward, StopReason

QUESTIONS = [Question(str(number), "?", ("x",), source="s") for number in range(6)]
EQUAL, DIFFERENT = (1.0, 1.0), (0.0, 1.0)


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


def curriculum(per_step=2, **settings):
    return Curriculum(QUESTIONS, GroupConfig(**settings), seed=3, per_step=per_step)


def walk(mine, steps, rewards_of):
    """Choose and take in; what was chosen, and all records."""
    chosen, taken = [], []
    for step in steps:
        questions = mine.choose(step)
        chosen.append([question.id for question in questions])
        taken += (now := records(step, {question: rewards_of(question) for question in questions}))
        mine.take_in(now)
    return chosen, taken


def asked(chosen):
    return [name for names in chosen for name in names]


def first_three_differ(question):
    return DIFFERENT if question.id in "012" else EQUAL


def test_without_it_every_epoch_asks_every_question_once_whatever_happened():
    mine = curriculum()
    chosen, _ = walk(mine, range(6), first_three_differ)
    assert sorted(asked(chosen[:3])) == sorted(asked(chosen[3:])) == [q.id for q in QUESTIONS]
    assert [[q.id for q in curriculum().choose(step)] for step in reversed(range(6))] == chosen[::-1]


def test_questions_whose_rewards_differ_are_asked_again_the_longest_ago_first():
    mine = curriculum(ask_again=0.5)
    chosen, _ = walk(mine, range(12), first_three_differ)
    known = [name for name in asked(chosen[:6]) if name in "012"]
    assert all(len(set(names)) == 2 for names in chosen), "no question twice in a step"
    assert all(set(names) & set("012") for names in chosen[3:])
    assert {name for names in chosen for name in names if name in "012"} == set(known), "all three come back"
    assert {name for name in asked(chosen) if name in "345"} == set("345"), "the walk goes on"
    assert mine.num_again == 1


def test_a_question_that_is_solved_is_let_go():
    mine = curriculum(ask_again=1.0)
    walk(mine, range(3), lambda question: DIFFERENT)
    walk(mine, range(3, 9), lambda question: EQUAL)
    mine.choose(9)
    assert mine.num_again == 0


def test_no_more_questions_than_there_are():
    mine = curriculum(per_step=9, ask_again=0.5)
    chosen, _ = walk(mine, range(3), lambda question: DIFFERENT)
    assert [sorted(names) for names in chosen] == [[q.id for q in QUESTIONS]] * 3


def test_failed_episodes_say_nothing_about_their_question():
    mine = curriculum(ask_again=0.5)
    walk(mine, range(6), lambda question: (None, 1.0))
    mine.choose(6)
    assert mine.num_again == 0


@pytest.mark.parametrize("num_steps", [0, 1, 5, 9])
def test_a_resumed_run_asks_what_the_straight_one_asks(num_steps):
    mine = curriculum(ask_again=0.5)
    _, taken = walk(mine, range(num_steps), first_three_differ)
    again = curriculum(ask_again=0.5)
    again.catch_up(num_steps, taken)
    assert walk(again, range(num_steps, 14), first_three_differ) == walk(mine, range(num_steps, 14), first_three_differ)
