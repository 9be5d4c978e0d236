"""A sampler in a process of its own: engine, environment and index, and groups of episodes on demand.

It is given each group together with the number of the weights that the group must be sampled with, and takes these from
the store first, also right after its start: it has none of its own that it could use by mistake. Where sampling may run
ahead of learning, newer weights do not end the groups that are running: these go on with them from their next turns
(partial rollouts, AReaL, arXiv:2505.24298), and each turn of a trajectory keeps the version that sampled it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from seekling.config import EnvConfig, Recipe
from seekling.models import resolve_model
from seekling.retrieval.library import open_library
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.sampler import Sample, Sampler, SampleRequest, TakesWeights
from seekling.scale.weight_store import WeightStore
from seekling.serve.agent import open_agent
from seekling.types import EpisodeGroup, Question, Trajectory


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run's files are, for a process that may be on another machine."""

    recipe: Recipe
    index: Path
    model: Path
    """Where it is not found, the recipe's model is resolved anew."""
    weights: Path


@dataclass(frozen=True, slots=True)
class Weights:
    """Which weights to sample with."""

    number: int
    """In the store; 0: those of the model, before any was published."""
    version: int
    """As the learner counts."""


@dataclass(frozen=True, slots=True)
class Job:
    """One group to sample."""

    question: Question
    decoding: Decoding
    env: EnvConfig
    group_size: int
    seed: int
    first: int
    """Number of its first episode among those of its question."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a sampler says of itself when it is ready."""

    process: int
    machine: str
    num_slots: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished job."""

    group: EpisodeGroup
    weights: Weights
    """At its end."""
    load_s: float
    """Seconds that taking its weights took, for the one that took them."""
    roll_s: float
    """Seconds that the sampler had it, these included."""


class SwapsBetweenTurns:
    """A sampler whose weights are exchanged when no turn is being sampled: turns that come meanwhile wait."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._num_turns = 0
        self._may_begin, self._is_idle = asyncio.Event(), asyncio.Event()
        self._may_begin.set()
        self._is_idle.set()

    @property
    def policy_version(self) -> int:
        """See `Sampler.policy_version`."""
        return self._sampler.policy_version

    @property
    def num_slots(self) -> int:
        """See `Sampler.num_slots`."""
        return self._sampler.num_slots

    @property
    def dtype(self) -> str:
        """See `Sampler.dtype`."""
        return self._sampler.dtype

    async def sample(self, request: SampleRequest) -> Sample:
        """See `Sampler.sample`."""
        await self._may_begin.wait()
        self._num_turns += 1
        self._is_idle.clear()
        try:
            return await self._sampler.sample(request)
        finally:
            self._num_turns -= 1
            if not self._num_turns:
                self._is_idle.set()

    async def swap(self, load: Callable[[], None]) -> None:
        """Let the turns that are being sampled end, and load."""
        self._may_begin.clear()
        try:
            await self._is_idle.wait()
            load()
        finally:
            self._may_begin.set()

    def teach_drafts(self, trajectories: Iterable[Trajectory]) -> None:
        """See `Sampler.teach_drafts`."""
        self._sampler.teach_drafts(trajectories)

    def close_session(self, session: int) -> None:
        """See `Sampler.close_session`."""
        self._sampler.close_session(session)

    def release_caches(self) -> None:
        """See `Sampler.release_caches`."""
        self._sampler.release_caches()

    def close(self) -> None:
        """See `Sampler.close`."""
        self._sampler.close()


class SamplerActor:
    """What runs in a sampler's process. All of its methods run in one event loop."""

    def __init__(self, place: Place) -> None:
        self._place, self._store = place, WeightStore(place.weights)
        self._stack, self._running = ExitStack(), set[asyncio.Task[EpisodeGroup]]()
        self._weights = Weights(0, 0)
        self._runs_ahead = place.recipe.runs_ahead
        self._lock = asyncio.Lock()
        self._rollers: dict[EnvConfig, Roller] = {}
        self._sampler: SwapsBetweenTurns | None = None
        self._taught: Sequence[Trajectory] | None = None
        """What it was taught before it was ready."""

    async def open(self, taught: Sequence[Trajectory]) -> Opened:
        """Load the model and open the index; the sampler has no weights of the run yet."""
        recipe = self._place.recipe
        model = self._place.model if self._place.model.is_dir() else resolve_model(recipe.model.spec)
        library = open_library(self._place.index, recipe.retrieval)
        self._agent = self._stack.enter_context(open_agent(recipe, library, model))
        self._sampler = sampler = SwapsBetweenTurns(self._agent.sampler)
        self._roller = Roller(self._agent.env, sampler, self._agent.renderer)
        self._gate = self._roller.open_gate()
        self.teach(taught if self._taught is None else self._taught)
        return Opened(os.getpid(), os.uname().nodename, sampler.num_slots, sampler.dtype)

    async def roll(self, job: Job, weights: Weights) -> Outcome:
        """Sample a group with these weights, or newer ones; a straggler is cancelled by newer weights."""
        started = time.perf_counter()
        await self._take(weights)
        load_s = time.perf_counter() - started
        roller = self._rollers.get(job.env)
        if roller is None:
            roller = self._rollers[job.env] = self._roller.over(self._agent.env.with_config(job.env))
        rolling = roller.group(job.question, job.decoding, job.group_size, job.seed, first=job.first, gate=self._gate)
        task = asyncio.create_task(rolling)
        self._running.add(task)
        try:
            group = await task
            return Outcome(group, self._weights, load_s, time.perf_counter() - started)
        finally:
            self._running.discard(task)

    async def sample(self, request: SampleRequest, weights: Weights) -> Sample:
        """See `Sampler.sample`."""
        await self._take(weights)
        return await self._opened.sample(request)

    async def stop(self) -> None:
        """Give up what is running, and the caches; one that is not ready has neither."""
        async with self._lock:
            await self._cancel()
            if self._sampler is not None:
                self._sampler.release_caches()

    async def close(self) -> None:
        """End what the environment has running, such as a sandbox."""
        await self._cancel()
        self._stack.close()

    async def close_session(self, session: int) -> None:
        """See `Sampler.close_session`."""
        self._opened.close_session(session)

    def teach(self, taught: Sequence[Trajectory]) -> None:
        """See `Sampler.teach_drafts`; calls may overtake each other, so one that comes before `open` is kept for it."""
        self._taught = taught
        if self._sampler is not None:
            self._sampler.teach_drafts(taught)

    @property
    def _opened(self) -> SwapsBetweenTurns:
        assert self._sampler is not None, "nothing is sampled before open"
        return self._sampler

    async def _take(self, weights: Weights) -> None:
        """Use these weights from now on."""
        async with self._lock:
            if weights == self._weights or (self._runs_ahead and weights.number < self._weights.number):
                return
            if not self._runs_ahead:
                await self._cancel()  # a straggler of an earlier step, whose place another has taken
            sampler = self._agent.sampler
            assert isinstance(sampler, TakesWeights), f"{type(sampler).__name__} takes no tensors"
            tensors = self._store.read(weights.number)
            await self._opened.swap(lambda: sampler.load_weights(tensors, weights.version))
            self._weights = weights

    async def _cancel(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
