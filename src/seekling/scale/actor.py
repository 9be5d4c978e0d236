"""A sampler in a process of its own: engine, environment and index, and groups of episodes on demand.

It is given each group together with the number of the weights that the group must be sampled with, and takes these from
the store first, also right after its start: it has none of its own that it could use by mistake.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from seekling.config import EnvConfig, Recipe
from seekling.models import resolve_model
from seekling.retrieval.library import open_library
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.sampler import Sample, SampleRequest, TakesWeights
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
    weights: Weights


@dataclass(frozen=True, slots=True)
class Opened:
    """What a sampler says of itself when it is ready."""

    process: int
    machine: str
    num_slots: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished job, and the seconds that taking its weights took, for the one that took them."""

    group: EpisodeGroup
    weights: Weights
    load_s: float


class SamplerActor:
    """What runs in a sampler's process. All of its methods run in one event loop."""

    def __init__(self, place: Place) -> None:
        self._place, self._store = place, WeightStore(place.weights)
        self._stack, self._running = ExitStack(), set[asyncio.Task[EpisodeGroup]]()
        self._weights = Weights(0, 0)
        self._lock = asyncio.Lock()
        self._rollers: dict[EnvConfig, Roller] = {}

    async def open(self, taught: Sequence[Trajectory]) -> Opened:
        """Load the model and open the index; the sampler has no weights of the run yet."""
        recipe = self._place.recipe
        model = self._place.model if self._place.model.is_dir() else resolve_model(recipe.model.spec)
        library = open_library(self._place.index, recipe.retrieval)
        self._agent = self._stack.enter_context(open_agent(recipe, library, model))
        self._sampler = self._agent.sampler
        self._gate = self._agent.roller.open_gate()
        self.teach(taught)
        return Opened(os.getpid(), os.uname().nodename, self._sampler.num_slots, self._sampler.dtype)

    async def roll(self, job: Job) -> Outcome:
        """Sample a group with the weights that it names; one that others have made meanwhile is cancelled."""
        started = time.perf_counter()
        await self._take(job.weights)
        load_s = time.perf_counter() - started
        roller = self._rollers.get(job.env)
        if roller is None:
            roller = self._rollers[job.env] = self._agent.roller.over(self._agent.env.with_config(job.env))
        rolling = roller.group(job.question, job.decoding, job.group_size, job.seed, first=job.first, gate=self._gate)
        task = asyncio.create_task(rolling)
        self._running.add(task)
        try:
            return Outcome(await task, job.weights, load_s)
        finally:
            self._running.discard(task)

    async def sample(self, request: SampleRequest, weights: Weights) -> Sample:
        """See `Sampler.sample`."""
        await self._take(weights)
        return await self._sampler.sample(request)

    async def stop(self) -> None:
        """Give up what is running, and the caches."""
        async with self._lock:
            await self._cancel()
            self._sampler.release_caches()

    async def close(self) -> None:
        """End what the environment has running, such as a sandbox."""
        await self._cancel()
        self._stack.close()

    async def close_session(self, session: int) -> None:
        """See `Sampler.close_session`."""
        self._sampler.close_session(session)

    def teach(self, taught: Sequence[Trajectory]) -> None:
        """See `Sampler.teach_drafts`."""
        self._sampler.teach_drafts(taught)

    async def _take(self, weights: Weights) -> None:
        """Use these weights from now on."""
        async with self._lock:
            if self._weights != weights:
                await self._cancel()  # a straggler of an earlier step, whose place another has taken
                assert isinstance(self._sampler, TakesWeights), f"{type(self._sampler).__name__} takes no tensors"
                self._sampler.load_weights(self._store.read(weights.number), weights.version)
                self._weights = weights

    async def _cancel(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
