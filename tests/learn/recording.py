"""A learner whose policy is one number, the sync that tells a scripted sampler this number, and its checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from seekling.config import RlConfig
from seekling.errors import DataError, InfrastructureError, ModelError, NothingToLearnError
from seekling.learn.batch import Batch, LearnStats
from seekling.learn.loss import TokenData, denominator, token_weights
from seekling.types import Trajectory


class RecordingLearner:
    """Says of the n-th token of an action that its log-probability is -scale n/8, and moves `scale` by the rate."""

    critic: RecordingLearner | None = None

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.num_steps, self.reference = scale, 0, None
        self.calls: list[str] = []
        self._gradient: float | None = None

    @property
    def has_reference(self) -> bool:
        return self.reference is not None

    def forward_backward(self, batch, loss, *, aggregation="token_mean", divide_by=None, measure=None) -> LearnStats:
        self.calls.append("forward_backward")
        num_trained_B = batch.num_trained_B
        if not num_trained_B.any():
            raise NothingToLearnError("no token is trained")
        divide_by = divide_by or denominator(num_trained_B, aggregation, represented_B=batch.represented_B)
        weights_B = batch.represented_B * token_weights(num_trained_B, aggregation) / divide_by
        sequence_A = np.repeat(np.arange(len(num_trained_B)), num_trained_B)
        scale = torch.tensor(self.scale, requires_grad=True)
        logprobs_A = -scale * torch.from_numpy(_trained(_units(batch.trajectories), batch))
        data = TokenData(
            torch.from_numpy(_trained([each.logprobs_T for each in batch.trajectories], batch)),
            torch.from_numpy(batch.advantages_B[sequence_A]).float(),
            sequence_A=torch.from_numpy(sequence_A),
            **{name: torch.from_numpy(_trained(values, batch)) for name, values in batch.per_token.items()},
        )
        total = (loss(logprobs_A, data) * torch.from_numpy(weights_B[sequence_A]).float()).sum()
        total.backward()
        self._gradient = (self._gradient or 0.0) + float(scale.grad)
        num_tokens = sum(len(each.token_ids_T) for each in batch.trajectories)
        return LearnStats(total.item(), 0.0, 0.0, len(sequence_A), num_tokens, num_tokens)

    def optim_step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        self.calls.append("optim_step")
        if self._gradient is None:
            raise NothingToLearnError("there is no gradient")
        gradient, self._gradient = self._gradient / divide_by, None
        self.num_steps += 1
        if math.isfinite(gradient):
            self.scale -= math.copysign(learning_rate, gradient)
        return abs(gradient)

    def logprobs(self, trajectories: Sequence[Trajectory], scale: float | None = None) -> list[np.ndarray]:
        return [-(self.scale if scale is None else scale) * units_T for units_T in _units(trajectories)]

    def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        return self.logprobs(trajectories)

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        return self.logprobs(trajectories, self.reference)

    def keep_reference(self, folder: Path | None = None) -> None:
        self.reference = self.scale if folder is None else _read(folder / "policy.json")["scale"]

    def add_critic(self, config: RlConfig, *, lora_rank: int, begins_at: Path | None = None) -> None:
        self.critic = RecordingLearner(0.0)

    def start_stage(self, **settings: object) -> None:
        self.num_steps = 0

    def close(self) -> None:
        self.calls.append("close")


class RecordingSync:
    """Tells the sampler the number; of a learner without one only the version."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, learner, sampler, version: int) -> None:
        self._tell(getattr(learner, "scale", sampler.scale), sampler, version)

    def publish_exported(self, folder: Path, sampler, version: int) -> None:
        self._tell(_read(folder / "policy.json")["scale"], sampler, version)

    def _tell(self, scale: float, sampler, version: int) -> None:
        if sampler.num_running:
            raise InfrastructureError("samples are still running")
        sampler.scale, sampler.policy_version = scale, version
        self.versions.append(version)


class JsonCheckpoint:
    """Writes the numbers down."""

    def save(self, learner, folder: Path) -> None:
        parts = [learner, learner.critic] if learner.critic else [learner]
        state = [[each.scale, each.num_steps, each.reference] for each in parts]
        (folder / "state.json").write_text(json.dumps(state))

    def load(self, learner, folder: Path) -> None:
        parts = [learner, learner.critic] if learner.critic else [learner]
        for each, row in zip(parts, _read(folder / "state.json"), strict=True):
            each.scale, each.num_steps, each.reference = row

    def export(self, learner, folder: Path, *, base: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "policy.json").write_text(json.dumps({"scale": learner.scale}))

    def export_adapter(self, learner, folder: Path, *, base: Path, base_name: str) -> None:
        raise ModelError("one number has no adapter")


def _read(path: Path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error})") from None


def _units(trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
    """(T,) the number of each trained token in its action, in eighths; 0 elsewhere."""
    found = []
    for each in trajectories:
        mask_T = each.train_mask_T & (np.arange(len(each.train_mask_T)) > 0)
        count_T = np.cumsum(mask_T)
        before_T = np.maximum.accumulate(np.where(mask_T, 0, count_T))
        found.append(np.where(mask_T, (count_T - before_T) / 8, 0).astype(np.float32))
    return found


def _trained(values: Sequence[np.ndarray], batch: Batch) -> np.ndarray:
    """(A,) the entries of trained tokens."""
    pairs = zip(values, batch.trajectories, strict=True)
    return np.concatenate([values_T[1:][each.train_mask_T[1:]] for values_T, each in pairs]).astype(np.float32)
