"""The processes among which a learner's weights are divided: Ray actors that are started, called and replaced together.

They compute in step, so one that dies stops all. That is noticed at once, or after a time-out where one only hangs;
then all are replaced, and whoever had weights in them brings these back (`ShardedLearner`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from seekling.cores import cores_here
from seekling.errors import InfrastructureError, SeeklingError
from seekling.models.load import Device
from seekling.scale.cluster import environment
from seekling.scale.rank import Rank

START_S = 600.0
"""So long processes may take to start and to read a model; a cluster may have to make room for them first."""
GRACE_S = 10.0
"""When one rank has failed, so long the others have to finish; then they are taken to wait for it."""


class RankLostError(InfrastructureError):
    """A rank is dead, hangs or is out of step: nothing more can be asked of any of them."""


class Ranks:
    """Processes in step.

    Args:
        number: how many.
        device: where they compute; on cuda each has a GPU of its own. auto: cuda where the cluster has so many.
        timeout_s: one that takes longer for one call hangs.
    """

    def __init__(self, number: int, *, device: Device = "cpu", timeout_s: float = 1800.0) -> None:
        self.number, self.timeout_s, self.device = number, timeout_s, device
        if device == "auto":
            self.device = "cuda" if ray.cluster_resources().get("GPU", 0) >= number else "cpu"
        self.generation = 0
        """How often they were started."""
        self.processes: list[int] = []
        """Their process ids, each on its machine; none before they are started."""
        self.learners: set[int] = set()
        """Keys of the learners that they have parts of."""
        self._actors: list[Any] = []

    def start(self) -> None:
        """Start all of them, in place of those that there were; a RankLostError where they do not find each other."""
        self.stop()
        self.generation += 1
        kind = ray.remote(Rank).options(
            num_cpus=0,  # they learn while samplers wait for them, so both may count on the same processors
            num_gpus=1 if self.device == "cuda" else 0,
            scheduling_strategy="SPREAD",
            runtime_env=environment(max(1, int(cores_here()) // self.number)),
        )
        self._actors = [kind.remote(each, self.number, self.device, self.timeout_s) for each in range(self.number)]
        places = cast("list[tuple[int, str]]", self.call("place", limit_s=START_S))
        self.call("join", places[0][1], limit_s=START_S)
        self.processes = [process for process, _ in places]

    def stop(self) -> None:
        """End all of them."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self.processes = [], []

    def call(
        self,
        method: str,
        *args: object,
        more: Mapping[str, object] = MappingProxyType({}),
        limit_s: float | None = None,
    ) -> list[object]:
        """Call a method of all of them at once.

        Args:
            method: of `Rank`.
            args: the same for all.
            more: by name.
            limit_s: so long they may take; None: `timeout_s`.

        Returns:
            What each one returned.

        Raises:
            RankLostError: one is dead, hangs, or failed.
            SeeklingError: what the method raises.
        """
        shared = [ray.put(each) for each in args]
        asked = [getattr(actor, method).remote(*shared, **more) for actor in self._actors]
        answers: dict[Any, Any] = {}
        limit_s = limit_s or self.timeout_s
        ends, waiting = time.monotonic() + limit_s, list(asked)
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=max(ends - time.monotonic(), 0.0))
            if not ready:
                break
            try:
                answer = ray.get(ready[0])
            except RayError as error:
                answer = error
            answers[ready[0]] = answer
            if isinstance(answer, Exception):
                ends = min(ends, time.monotonic() + GRACE_S)
        found = [answers.get(each) for each in asked]
        mistakes = [each for each in found if isinstance(each, SeeklingError)]
        problems = [f"rank {asked.index(each)} gave no answer for {limit_s:.0f} s" for each in waiting]
        failures = [(rank, each) for rank, each in enumerate(found) if isinstance(each, RayError)]
        # A death explains the other failures, and these explain that somebody waits.
        for rank, failure in sorted(failures, key=lambda each: isinstance(each[1], RayActorError)):
            problems.insert(0, f"rank {rank} {_reason(failure)}")
        if mistakes and problems:
            self.stop()  # the others wait for it
        if mistakes:
            raise mistakes[0]
        if problems:
            raise RankLostError(problems[0])
        return found


def _reason(error: RayError) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    words = f"failed: {type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
    return "died" if isinstance(error, RayActorError) else words
