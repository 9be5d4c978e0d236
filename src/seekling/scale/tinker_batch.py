"""A batch as a Tinker service wants it: data for a sum over tokens. Shape letters: N targets of a datum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tinker import types
from torch import Tensor

from seekling.errors import NothingToLearnError
from seekling.learn.batch import Batch, LearnStats
from seekling.learn.loss import (
    Aggregation,
    PolicyLoss,
    TokenData,
    TokenLoss,
    TokenMeasure,
    cross_entropy,
    denominator,
    token_weights,
)
from seekling.types import Trajectory


@dataclass(frozen=True, slots=True)
class SentBatch:
    """The trajectories of a batch that have a trained token, and what belongs to these tokens."""

    trajectories: Sequence[Trajectory]
    tokens: TokenData
    weights_A: Tensor
    """What a token's loss is multiplied with."""

    @classmethod
    def of(cls, batch: Batch, aggregation: Aggregation, divide_by: float | None) -> SentBatch:
        """Weigh the tokens of a batch; a NothingToLearnError where none is trained."""
        num_trained_B = batch.num_trained_B
        kept = [index for index, count in enumerate(num_trained_B.tolist()) if count]
        if not kept:
            raise NothingToLearnError(f"none of the {len(batch.trajectories)} trajectories has a trained token")
        if divide_by is None:
            divide_by = denominator(num_trained_B, aggregation, represented_B=batch.represented_B)
        weights_B = batch.represented_B * token_weights(num_trained_B, aggregation) / divide_by

        def joined(values: Sequence[np.ndarray]) -> Tensor:
            parts = [values[index][1:][batch.trajectories[index].train_mask_T[1:]] for index in kept]
            return torch.from_numpy(np.concatenate(parts)).float()

        def repeated(values_B: np.ndarray) -> Tensor:
            return torch.from_numpy(np.repeat(values_B[kept], num_trained_B[kept]))

        behaviour_A = joined([each.logprobs_T for each in batch.trajectories])
        sequence_A = repeated(np.arange(len(num_trained_B)))
        tokens = TokenData(behaviour_A, repeated(batch.advantages_B).float(), sequence_A=sequence_A)
        tokens = replace(tokens, **{name: joined(values) for name, values in batch.per_token.items()})
        return cls([batch.trajectories[index] for index in kept], tokens, repeated(weights_B).float())

    def trained(self, logprobs: Sequence[Tensor]) -> Tensor:
        """(A,) of the (N,) log-probabilities of each datum's targets."""
        pairs = zip(logprobs, self.trajectories, strict=True)
        return torch.cat([each[torch.from_numpy(t.train_mask_T[1:])] for each, t in pairs])

    def data(self, loss: types.LossFnType) -> list[types.Datum]:
        """For a loss of the service."""
        given = {"weights": self.weights_A}
        if loss != "cross_entropy":
            given = {"advantages": self.weights_A * self.tokens.advantages_A, "logprobs": self.tokens.denominator_A}
        counts = [int(each.train_mask_T[1:].sum()) for each in self.trajectories]
        parts = {name: values_A.split(counts) for name, values_A in given.items()}
        made = []
        for index, each in enumerate(self.trajectories):
            inputs = {name: np.zeros(len(each.token_ids_T) - 1, np.float32) for name in parts}
            for name, spread_N in inputs.items():
                spread_N[each.train_mask_T[1:]] = parts[name][index].numpy()
            made.append(sum_datum(each, **inputs))
        return made


def sum_datum(trajectory: Trajectory, **inputs_N: np.ndarray) -> types.Datum:
    """A trajectory whose every token but the first is a target."""
    given = {name: types.TensorData.from_numpy(values.astype(np.float32)) for name, values in inputs_N.items()}
    given["target_tokens"] = types.TensorData.from_numpy(trajectory.token_ids_T[1:].astype(np.int64))
    return types.Datum(types.ModelInput.from_ints(trajectory.token_ids_T[:-1].tolist()), given)


def name_of(loss: TokenLoss, tokens: TokenData) -> tuple[types.LossFnType | None, dict[str, float | str] | None]:
    """The service's name and bounds of a loss; None where it has none that gives the same gradients."""
    if loss is cross_entropy:
        return "cross_entropy", None
    if not isinstance(loss, PolicyLoss):
        return None, None
    config = loss.config
    is_current = config.old_logprobs == "recomputed" and tokens.old_logprobs_A is None
    if is_current or config.correction != "none" or (config.kl_coefficient > 0 and config.kl_in == "loss"):
        return None, None
    if config.kind == "importance_sampling":
        return "importance_sampling", None
    bounds: dict[str, float | str] = {"clip_low_threshold": 1 - config.clip_low}
    bounds["clip_high_threshold"] = 1 + config.clip_high
    names: dict[str, types.LossFnType] = {"ppo": "ppo", "cispo": "cispo"}
    return names.get(config.kind), bounds


def stats_of(logprobs_A: Tensor, sent: SentBatch, loss: TokenLoss, measure: TokenMeasure | None) -> LearnStats:
    """What a learner reports. Minus the mean log-probability stands for the entropy, which no service says."""
    difference_A = logprobs_A - sent.tokens.behaviour_logprobs_A
    num_tokens = sum(len(each.token_ids_T) for each in sent.trajectories)
    found = {
        "loss": (loss(logprobs_A, sent.tokens) * sent.weights_A).sum(),
        "entropy": -logprobs_A.mean(),
        "kl_behaviour": (torch.expm1(difference_A) - difference_A).mean(),
        "drift_mean": difference_A.abs().mean(),
        "drift_max": difference_A.abs().max(),
    }
    if measure is not None:
        measured = measure(logprobs_A, sent.tokens)
        found |= {
            "ratio_mean": measured.ratios_A.mean(),
            "ratio_max": measured.ratios_A.max(),
            "clip_fraction_low": measured.is_clipped_low_A.float().mean(),
            "clip_fraction_high": measured.is_clipped_high_A.float().mean(),
            "weight_mean": measured.weights_A.mean(),
            "weight_square_mean": (measured.weights_A**2).mean(),
        }
    return LearnStats(
        num_trained_tokens=len(logprobs_A),
        num_packed_tokens=num_tokens,
        num_plain_tokens=num_tokens,
        **{name: float(value) for name, value in found.items()},
    )
