"""The policy's weights divided among several processes: the `Learner` of a cluster, which outlives their deaths.

What is asked of it goes to all ranks at once. It notes what was asked since the last training state; when a rank dies,
all are started again, read that state, and are asked the same again: they compute the same, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from seekling.config import RlConfig
from seekling.errors import InfrastructureError, ModelError
from seekling.files import link_or_copy
from seekling.learn.batch import Batch, LearnStats
from seekling.learn.loss import Aggregation, TokenLoss, TokenMeasure
from seekling.scale.rank import LearnerSpec
from seekling.scale.ranks import START_S, RankLostError, Ranks
from seekling.types import Trajectory

REPLAYED_STEPS = 50
"""After so many optimizer steps of which no state was saved, one is: their batches would fill the memory."""
_KEYS = count()


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    args: tuple[object, ...]
    more: Mapping[str, object] = field(default_factory=dict)


class ShardedLearner:
    """A `Learner` over ranks.

    Args:
        ranks: where it lives. They start with their first learner, and end when the last one is closed.
        spec: what it is made of.
        scratch: a folder for what it recovers from, on a disk that all ranks see; made, and removed in the end.
        max_restarts: so often ranks may die within one call.
        log: told when one died, and what was done.

    Raises:
        ModelError: there is no such model, or its family is refused.
        InfrastructureError: the ranks do not start.
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
        self._run(_Call("num_steps", ()))  # it is made now, so that whatever is wrong with the model is known

    @property
    def num_steps(self) -> int:
        """See `Trained.num_steps`."""
        return cast("int", self._run(_Call("num_steps", ())))

    @property
    def has_reference(self) -> bool:
        """See `Learner.has_reference`."""
        return cast("bool", self._run(_Call("has_reference", ())))

    def forward_backward(
        self,
        batch: Batch,
        loss: TokenLoss,
        *,
        aggregation: Aggregation = "token_mean",
        divide_by: float | None = None,
        measure: TokenMeasure | None = None,
    ) -> LearnStats:
        """See `Trained.forward_backward`."""
        more = {"aggregation": aggregation, "divide_by": divide_by, "measure": measure}
        return cast("LearnStats", self._change(_Call("forward_backward", (batch, loss), more)))

    def optim_step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        """See `Trained.optim_step`."""
        norm = cast("float", self._change(_Call("optim_step", (learning_rate,), {"divide_by": divide_by})))
        if sum(call.name == "optim_step" for call in self._calls) >= REPLAYED_STEPS:
            self._keep()
        return norm

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.logprobs`."""
        return cast("list[np.ndarray]", self._run(_Call("logprobs", (trajectories,))))

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""
        return cast("list[np.ndarray]", self._run(_Call("reference_logprobs", (trajectories,))))

    def keep_reference(self, folder: Path | None = None) -> None:
        """See `Learner.keep_reference`."""
        begins: list[_Call] = []
        if folder is None:
            if self._calls:
                self._keep()
            begins = [_Call("load", (self._saved,))] if self._saved else []
        call = _Call("keep_reference", (folder,))
        self._run(call)
        self._anchor = [*begins, call]

    def add_critic(self, config: RlConfig, *, lora_rank: int, begins_at: Path | None = None) -> None:
        """Refused: a critic's weights are not divided."""
        raise ModelError(
            f"a critic cannot be trained by {self._ranks.number} ranks; set scale.learner_ranks = 1, or another "
            "rl.advantage.baseline"
        )

    def start_stage(
        self,
        *,
        row_tokens: int,
        max_grad_norm: float,
        betas: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        keep_moments: bool = False,
    ) -> None:
        """See `Learner.start_stage`."""
        if self._calls:
            self._keep()  # what came before was with other settings, which are no part of a state
        self._spec = replace(self._spec, row_tokens=row_tokens, max_grad_norm=max_grad_norm)
        more = {"betas": betas, "weight_decay": weight_decay, "keep_moments": keep_moments}
        self._change(_Call("start_stage", (), {"row_tokens": row_tokens, "max_grad_norm": max_grad_norm, **more}))

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
        return cast("Mapping[str, Tensor]", self._run(_Call("export_weights", ())))

    def save_adapter(self, folder: Path, *, base_model: str) -> None:
        """See `LocalLearner.save_adapter`; the folder is on a disk that all ranks see."""
        self._run(_Call("save_adapter", (folder.absolute(),), {"base_model": base_model}))

    def save(self, folder: Path) -> None:
        """See `Checkpoint.save`; the folder is on a disk that all ranks see, and may be moved afterwards."""
        self._run(_Call("save", (folder.absolute(),)))
        self._recover_from(folder)

    def load(self, folder: Path) -> None:
        """See `Checkpoint.load`."""
        self._run(_Call("load", (folder.absolute(),)))
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
        ends = [number for number, call in enumerate(self._calls) if call.name != "forward_backward"]
        # Gradients that wait for their step are in no state.
        self._saved, self._calls = path, self._calls[ends[-1] + 1 :] if ends else self._calls
        if old is not None and not any(old in call.args for call in self._anchor):
            shutil.rmtree(old, ignore_errors=True)

    def _change(self, call: _Call) -> object:
        found = self._run(call)
        self._calls.append(call)
        return found

    def _run(self, call: _Call) -> object:
        """What the ranks answer; where one of them dies, what those answer that take their place."""
        problem = ""
        for _ in range(self._max_restarts + 1):
            try:
                if not self._ranks.processes:
                    self._ranks.start()
                if self._generation != self._ranks.generation:
                    self._restore(call if problem else None)
                return self._ask(call)
            except RankLostError as error:
                problem = str(error)
                self._log(f"learner: {problem} in {call.name}; all {self._ranks.number} ranks are started again")
                self._ranks.stop()
        raise InfrastructureError(
            f"the learner's ranks were started {self._max_restarts + 1} times and did not get through {call.name}: "
            f"{problem}. When that is mended, give the same command again: the run goes on from its last training state"
        )

    def _restore(self, interrupted: _Call | None) -> None:
        self._ranks.call("open", self._key, self._spec, limit_s=START_S)
        saved = [_Call("load", (self._saved,))] if self._saved else []
        for call in (*self._anchor, *saved, *self._calls):
            self._ask(call)
        self._generation = self._ranks.generation
        if interrupted is not None:
            num_steps = sum(call.name == "optim_step" for call in self._calls)
            self._log(
                f"learner: {self._ranks.number} ranks read {self._saved or self._spec.model_dir}, did "
                f"{num_steps} steps again, and do {interrupted.name} again"
            )

    def _ask(self, call: _Call) -> Any:
        return self._ranks.call("run", self._key, call.name, *call.args, **call.more)[0]
