"""Which questions a step asks: an endless walk through reshuffled epochs, and again those that taught something.

Most questions give groups of equal rewards, from which nothing is learned; one whose episodes were rewarded differently
will probably be so again. What is known of a question is a function of the episodes on record: a run can be resumed.
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
    """Chooses the questions of one step after the other, in the order of a seed, a share of them again.

    Source: prioritized sampling as in Kimi k1.5 (arXiv:2501.12599), by whether the last group's rewards differed.
    """

    def __init__(self, questions: Sequence[Question], config: GroupConfig, *, seed: int, per_step: int) -> None:
        self._questions, self._seed, self._per_step = questions, seed, per_step
        self._num_again = round(config.ask_again * per_step)
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)
        self._position = 0
        self._open: dict[tuple[str, str], Question] = {}
        """Questions whose last group had rewards that differ, the one asked longest ago first."""
        self.num_again = 0
        """Questions of the newest step that were asked again."""

    @property
    def is_on(self) -> bool:
        """Whether it ever asks a question again before its epoch."""
        return self._num_again > 0

    def choose(self, step: int) -> list[Question]:
        """The questions of a step, from 0, each once; steps come in order, after the episodes before were taken in.

        Where none is asked again, they are a function of seed and step alone.
        """
        if not self.is_on:
            self._position = step * self._per_step
            return [self._next() for _ in range(self._per_step)]
        chosen = dict(list(self._open.items())[: self._num_again])
        self.num_again = len(chosen)
        while len(chosen) < min(self._per_step, len(self._questions)):
            question = self._next()
            chosen.setdefault(question.key, question)
        return list(chosen.values())

    def take_in(self, records: Iterable[EpisodeRecord]) -> None:
        """Remember how the groups of a step went; episodes without a reward say nothing about their question."""
        totals: dict[tuple[str, str], list[float]] = defaultdict(list)
        questions: dict[tuple[str, str], Question] = {}
        for record in records:
            if record.reward is not None:
                totals[record.question.key].append(record.reward.total)
                questions[record.question.key] = record.question
        for key, rewards in totals.items():
            self._open.pop(key, None)
            if not are_equal(np.asarray(rewards)):
                self._open[key] = questions[key]

    def catch_up(self, num_steps: int, records: Iterable[EpisodeRecord]) -> None:
        """Become what an uninterrupted run's is after its first steps, of these episodes, which count steps from 1."""
        by_step: dict[int, list[EpisodeRecord]] = defaultdict(list)
        for record in records:
            by_step[record.step - 1].append(record)
        for step in range(num_steps):
            self.choose(step)
            self.take_in(by_step[step])

    def _next(self) -> Question:
        epoch, index = divmod(self._position, len(self._questions))
        self._position += 1
        return self._questions[int(self._order(epoch)[index])]

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._questions))
