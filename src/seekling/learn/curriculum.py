"""Which questions a step asks: an endless walk through reshuffled epochs, past those that taught nothing so far.

A question that the policy always or never solves gives groups of equal rewards, from which nothing is learned. What is
known of a question is a function of the episodes on record, so a resumed run finds it again in its episodes file.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from seekling.config import GroupConfig
from seekling.learn.advantage import are_equal
from seekling.types import EpisodeRecord, Question


class Curriculum:
    """Chooses the questions of one step after the other.

    Args:
        questions: all there are.
        config: when a question is passed over; never by default.
        seed: of the order.
        per_step: questions of a step.
    """

    def __init__(self, questions: Sequence[Question], config: GroupConfig, *, seed: int, per_step: int) -> None:
        self._questions, self._config, self._seed, self._per_step = questions, config, seed, per_step
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)
        self._position = 0
        self._equal_groups: dict[tuple[str, str], int] = {}
        self._asked_at: dict[tuple[str, str], int] = {}
        self.num_passed = 0
        """Questions that the newest step passed over."""

    @property
    def is_on(self) -> bool:
        """Whether it ever passes over a question."""
        return self._config.skip_after > 0

    def choose(self, step: int) -> list[Question]:
        """The questions of a step; steps come in order, each after the episodes before it were taken in.

        Args:
            step: from 0. Without passing over, the questions are a function of seed and step alone.
        """
        if not self.is_on:
            self._position = step * self._per_step
        chosen: list[Question] = []
        self.num_passed = 0
        while len(chosen) < self._per_step:
            epoch, index = divmod(self._position, len(self._questions))
            question = self._questions[self._order(epoch)[index]]
            self._position += 1
            # When all of them taught nothing, the next ones are as good as any.
            if self._teaches_nothing(question, step) and self.num_passed < len(self._questions):
                self.num_passed += 1
            else:
                chosen.append(question)
        return chosen

    def take_in(self, step: int, records: Iterable[EpisodeRecord]) -> None:
        """Remember how the groups of a step went.

        Args:
            step: from 0.
            records: its episodes; those without a reward failed, and say nothing about their question.
        """
        totals: dict[tuple[str, str], list[float]] = defaultdict(list)
        for record in records:
            if record.reward is not None:
                totals[record.question.key].append(record.reward.total)
        for key, rewards in totals.items():
            if len(rewards) >= 2:
                self._equal_groups[key] = self._equal_groups.get(key, 0) + 1 if are_equal(np.asarray(rewards)) else 0
                self._asked_at[key] = step

    def catch_up(self, num_steps: int, records: Iterable[EpisodeRecord]) -> None:
        """Become what the curriculum of an uninterrupted run is after its first steps.

        Args:
            num_steps: that are done.
            records: their episodes, each with its step from 1.
        """
        by_step: dict[int, list[EpisodeRecord]] = defaultdict(list)
        for record in records:
            by_step[record.step - 1].append(record)
        for step in range(num_steps):
            self.choose(step)
            self.take_in(step, by_step[step])

    def _teaches_nothing(self, question: Question, step: int) -> bool:
        if not self.is_on or self._equal_groups.get(question.key, 0) < self._config.skip_after:
            return False
        return step - self._asked_at[question.key] < self._config.retry_steps

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._questions))
