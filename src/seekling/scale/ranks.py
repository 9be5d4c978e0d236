"""The processes among which a learner's weights are divided: Ray actors that are started, called and replaced together.

They compute in step, so one that dies stops all. It is noticed at once, or after a time-out where it only hangs; then
all are replaced, and whoever had weights in them must bring these back (`ShardedLearner` does).
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, cast

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from seekling.cores import cores_here
from seekling.errors import InfrastructureError, SeeklingError
from seekling.models.load import Device
from seekling.scale.cluster import environment
from seekling.scale.rank import Rank

GRACE_S = 10.0
"""When one rank has failed, so long the others have to finish; then they are taken to wait for it."""


START_S = 600.0
"""So long processes may take to start and to read a model; a cluster may have to make room for them first."""


class RankLostError(InfrastructureError):
    """A rank is dead, hangs or is out of step: nothing more can be asked of any of them."""


class Ranks:
    """Processes in step.

    Args:
        number: how many.
        device: where they compute; on cuda each has a GPU of its own.
        timeout_s: one that takes longer for one call hangs.
    """

    def __init__(self, number: int, *, device: Device = "cpu", timeout_s: float = 1800.0) -> None:
        self.number, self.timeout_s = number, timeout_s
        self.device: Device = device
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
        """Start all of them anew, and end those that there were.

        Raises:
            RankLostError: they did not find each other in time.
        """
        self.stop()
        self.generation += 1
        kind = ray.remote(_Actor).options(
            num_cpus=0,  # they learn while samplers wait for them, so both may count on the same processors
            num_gpus=1 if self.device == "cuda" else 0,
            scheduling_strategy="SPREAD",
            runtime_env=environment(max(1, int(cores_here()) // self.number)),
        )
        self._actors = [kind.remote(each, self.number, self.device, self.timeout_s) for each in range(self.number)]
        processes = cast("list[int]", self.call("process", limit_s=START_S))
        address = self._ask([self._actors[0].address.remote()], START_S)[0]
        self.call("join", address, limit_s=START_S)
        self.processes = processes

    def stop(self) -> None:
        """End all of them."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self.processes = [], []

    def call(self, method: str, *args: object, limit_s: float | None = None, **kwargs: object) -> list[object]:
        """Call a method of all of them at once.

        Args:
            method: of `Rank`.
            args: the same for all.
            limit_s: so long they may take; None: as long as for every call.
            kwargs: as `args`.

        Returns:
            What each one returned.

        Raises:
            RankLostError: one is dead, hangs, or failed.
            SeeklingError: what the method raises.
        """
        shared = [ray.put(each) for each in args]
        asked = [getattr(actor, method).remote(*shared, **kwargs) for actor in self._actors]
        return self._ask(asked, self.timeout_s if limit_s is None else limit_s)

    def _ask(self, asked: list[Any], limit_s: float) -> list[Any]:
        """The answers of all."""
        answers: dict[Any, Any] = {}
        problems: list[tuple[bool, str]] = []
        started, waiting = time.monotonic(), list(asked)
        while waiting:
            left_s = started + limit_s - time.monotonic()
            ready, waiting = ray.wait(waiting, timeout=max(left_s, 0.0))
            if not ready:
                break
            try:
                answer = answers[ready[0]] = ray.get(ready[0])
            except RayError as error:
                answer = error
                problems.append((isinstance(error, RayActorError), f"rank {asked.index(ready[0])} {_reason(error)}"))
            if isinstance(answer, Exception):
                limit_s = min(limit_s, time.monotonic() - started + GRACE_S)
        problems += [(False, f"rank {asked.index(each)} gave no answer for {limit_s:.0f} s") for each in waiting]
        for answer in answers.values():
            if isinstance(answer, SeeklingError):
                if problems:
                    self.stop()  # the others wait for it
                raise answer
        if problems:
            raise RankLostError(max(problems, key=lambda problem: problem[0])[1])  # a death explains the others
        return [answers[each] for each in asked]


class _Actor(Rank):
    """A rank as Ray has it."""

    def process(self) -> int:
        return os.getpid()

    def address(self) -> str:
        """Where the others can meet this one: its machine, and a port that is free now."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as found:
            found.bind(("", 0))
            return f"{host}:{found.getsockname()[1]}"


def _reason(error: RayError) -> str:
    if isinstance(error, RayActorError):
        return "died"
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"failed: {type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
