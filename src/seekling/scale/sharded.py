"""The policy's weights divided among several processes: the `Learner` of a cluster, which outlives their deaths.

The processes compute in step, so one that dies stops all. That is noticed at once, or after a time-out where one only
hangs; then all are started again. The learner notes what was asked since the last training state: the new ones read
that state, and are asked the same again. They compute the same, bit for bit.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from torch import Tensor

from seekling.config import RlConfig
from seekling.cores import cores_here
from seekling.errors import InfrastructureError, ModelError, SeeklingError
from seekling.files import link_or_copy
from seekling.learn.batch import Batch, LearnStats
from seekling.learn.loss import TokenLoss
from seekling.models.lazy_weights import Adapters
from seekling.models.load import Device
from seekling.scale.cluster import environment, first_line
from seekling.scale.launch import LEARNER
from seekling.scale.rank import LearnerSpec, Rank
from seekling.types import Trajectory

START_S = 600.0
"""So long processes may take to start and to read a model; a cluster may have to make room for them first."""
GRACE_S = 10.0
"""When one rank has failed, so long the others have to finish; then they are taken to wait for it."""
REPLAYED_STEPS = 50
"""After so many optimizer steps of which no state was saved, one is: their batches would fill the memory."""
_KEYS = count()
_Call = tuple[str, tuple[object, ...], dict[str, object]]
"""Name of a method of `RankLearner`, and what it is given."""


class RankLostError(InfrastructureError):
    """A rank is dead, hangs or is out of step: nothing more can be asked of any of them."""


class Ranks:
    """Processes in step: Ray actors that are started, called and replaced together.

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
            resources={LEARNER: 1} if ray.cluster_resources().get(LEARNER, 0) >= self.number else None,
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
        """Call a method of all of them at once, and wait so long for what each one returns (None: `timeout_s`).

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
                # A machine that died with an answer never sends it.
                answer = ray.get(ready[0], timeout=max(ends - time.monotonic(), GRACE_S))
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
    if isinstance(error, RayActorError):
        return "died"
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"failed: {type(cause).__name__}: {first_line(cause)}"


class ShardedLearner:
    """A `Learner` over ranks.

    Args:
        ranks: where it lives. They start with their first learner, and end when the last one is closed.
        spec: what it is made of.
        scratch: a folder for what it recovers from, on a disk that all ranks see; made, and removed in the end.
        max_restarts: so often ranks may die within one call.
        log: told when one died, and what was done.
    """

    critic = None

    def __init__(
        self,
        ranks: Ranks,
        spec: LearnerSpec,
        *,
        scratch: Path,
        max_restarts: int = 5,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._ranks, self._spec, self._scratch = ranks, spec, scratch
        self._max_restarts, self._log = max_restarts, log
        self._key, self._generation = next(_KEYS), 0
        self._calls: list[_Call] = []
        """What changed it since the last state."""
        self._anchor: list[_Call] = []
        """What brings its reference back."""
        self._saved: Path | None = None
        self._numbers = count()
        ranks.learners.add(self._key)
        self._run("num_steps")  # it is made now, so that whatever is wrong with the model is known

    @property
    def num_steps(self) -> int:
        """See `Learner.num_steps`."""
        return cast("int", self._run("num_steps"))

    @property
    def has_reference(self) -> bool:
        """See `Learner.has_reference`."""
        return cast("bool", self._run("has_reference"))

    def forward_backward(self, batch: Batch, loss: TokenLoss, **how: object) -> LearnStats:
        """See `Trained.forward_backward`."""
        return cast("LearnStats", self._change("forward_backward", batch, loss, **how))

    def optim_step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        """See `Trained.optim_step`."""
        norm = cast("float", self._change("optim_step", learning_rate, divide_by=divide_by))
        if self._num_replayed >= REPLAYED_STEPS:
            self._keep()
        return norm

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.logprobs`."""
        return cast("list[np.ndarray]", self._run("logprobs", trajectories))

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""
        return cast("list[np.ndarray]", self._run("reference_logprobs", trajectories))

    def keep_reference(self, folder: Path | None = None) -> None:
        """See `Learner.keep_reference`."""
        if folder is None and self._calls:
            self._keep()
        begins: list[_Call] = [("load", (self._saved,), {})] if folder is None and self._saved else []
        self._run("keep_reference", folder)
        self._anchor = [*begins, ("keep_reference", (folder,), {})]

    def add_critic(self, config: RlConfig, *, lora_rank: int, begins_at: Path | None = None) -> None:
        """Refused: a critic's weights are not divided."""
        raise ModelError(
            f"a critic cannot be trained by {self._ranks.number} ranks; set scale.learner_ranks = 1, or another "
            "rl.advantage.baseline"
        )

    def start_stage(self, *, row_tokens: int, max_grad_norm: float, **more: object) -> None:
        """See `Learner.start_stage`."""
        if self._calls:
            self._keep()  # what came before was with other settings, which are no part of a state
        self._spec = replace(self._spec, row_tokens=row_tokens, max_grad_norm=max_grad_norm)
        self._change("start_stage", row_tokens=row_tokens, max_grad_norm=max_grad_norm, **more)

    def close(self) -> None:
        """See `Learner.close`."""
        self._ranks.learners.discard(self._key)
        try:
            if not self._ranks.learners:
                self._ranks.stop()
            elif self._generation == self._ranks.generation:
                self._ranks.call("drop", self._key)
        except RankLostError:
            pass  # gone with its memory
        shutil.rmtree(self._scratch, ignore_errors=True)

    def export_weights(self) -> Mapping[str, Tensor]:
        """The policy's weights by the names of the plain transformers model, adapters merged; copies."""
        return cast("Mapping[str, Tensor]", self._run("export_weights"))

    def adapters(self) -> Adapters | None:
        """See `LocalLearner.adapters`; copies."""
        return cast("Adapters | None", self._run("adapters"))

    def base_weights(self) -> Mapping[str, Tensor]:
        """See `LocalLearner.base_weights`; copies."""
        return cast("Mapping[str, Tensor]", self._run("base_weights"))

    def save_adapter(self, folder: Path, *, base_model: str) -> None:
        """See `LocalLearner.save_adapter`; the folder is on a disk that all ranks see."""
        self._run("save_adapter", folder.absolute(), base_model=base_model)

    def save(self, folder: Path) -> None:
        """See `Checkpoint.save`; the folder is on a disk that all ranks see, and may be moved afterwards."""
        self._run("save", folder.absolute())
        self._recover_from(folder)

    def load(self, folder: Path) -> None:
        """See `Checkpoint.load`."""
        self._run("load", folder.absolute())
        self._calls = []
        self._recover_from(folder)

    def _keep(self) -> None:
        """Save a state for itself."""
        path = self._scratch / "next"
        path.mkdir(parents=True, exist_ok=True)
        self.save(path)
        shutil.rmtree(path)

    def _recover_from(self, folder: Path) -> None:
        """Begin anew from this state, should ranks die; its files stay for that, whatever becomes of the folder."""
        path, old = self._scratch.absolute() / f"state-{next(self._numbers)}", self._saved
        shutil.copytree(folder, path, copy_function=link_or_copy)
        ends = [number for number, (name, _, _) in enumerate(self._calls) if name != "forward_backward"]
        # Gradients that wait for their step are in no state.
        self._saved, self._calls = path, self._calls[ends[-1] + 1 :] if ends else self._calls
        if old is not None and not any(old in args for _, args, _ in self._anchor):
            shutil.rmtree(old, ignore_errors=True)

    @property
    def _num_replayed(self) -> int:
        return sum(name == "optim_step" for name, _, _ in self._calls)

    def _change(self, name: str, *args: object, **kwargs: object) -> object:
        found = self._run(name, *args, **kwargs)
        self._calls.append((name, args, kwargs))
        return found

    def _run(self, name: str, *args: object, **kwargs: object) -> object:
        """What the ranks answer; where one of them dies, what those answer that take their place."""
        problem, ranks = "", self._ranks
        for _ in range(self._max_restarts + 1):
            try:
                if not ranks.processes:
                    ranks.start()
                if self._generation != ranks.generation:
                    self._restore()
                    if problem:
                        since = f"read {self._saved or self._spec.model_dir}, did {self._num_replayed} steps again"
                        self._log(f"learner: {ranks.number} ranks {since}, and do {name} again")
                return ranks.call("run", self._key, name, *args, more=kwargs)[0]
            except RankLostError as error:
                problem = str(error)
                self._log(f"learner: {problem} in {name}; all {ranks.number} ranks are started again")
                ranks.stop()
        raise InfrastructureError(
            f"the learner's ranks were started {self._max_restarts + 1} times and did not get through {name}: "
            f"{problem}. When that is mended, give the same command again: the run goes on from its last training state"
        )

    def _restore(self) -> None:
        self._ranks.call("open", self._key, self._spec, limit_s=START_S)
        saved: list[_Call] = [("load", (self._saved,), {})] if self._saved else []
        for name, args, kwargs in (*self._anchor, *saved, *self._calls):
            self._ranks.call("run", self._key, name, *args, more=kwargs)
        self._generation = self._ranks.generation
