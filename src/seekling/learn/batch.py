"""What a learner is given and what it reports: a batch of trajectories, and means over their trained tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from seekling.learn.loss import TokenField
from seekling.types import Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories to learn from, with one advantage each."""

    trajectories: Sequence[Trajectory]
    advantages_B: np.ndarray
    """(B,) multiplies every trained token of the trajectory; ones for SFT."""
    per_token: Mapping[TokenField, Sequence[np.ndarray]] = field(default_factory=dict)
    """More for the loss, by the names of TokenData's fields: B arrays (T,) as `logprobs` returns them."""
    weights_B: np.ndarray | None = None
    """See `represented_B`; None: 1 each."""

    @property
    def represented_B(self) -> np.ndarray:
        """(B,) how many trajectories each one stands for, in the sum and in what it is divided by."""
        return np.ones(len(self.trajectories)) if self.weights_B is None else self.weights_B

    @property
    def num_trained_B(self) -> np.ndarray:
        """(B,) trained tokens of each trajectory; a first token has nothing before it that could predict it."""
        return np.asarray([int(t.train_mask_T[1:].sum()) for t in self.trajectories])

    def part(self, start: int, stop: int) -> Batch:
        """The trajectories from `start` to before `stop`, with all that belongs to them."""
        per_token = {name: values[start:stop] for name, values in self.per_token.items()}
        weights_B = None if self.weights_B is None else self.weights_B[start:stop]
        return Batch(self.trajectories[start:stop], self.advantages_B[start:stop], per_token, weights_B)


@dataclass(frozen=True, slots=True)
class LearnStats:
    """Means over the trained tokens of a `forward_backward`, each counted once per trajectory."""

    loss: float
    entropy: float
    """Of the policy's next-token distribution, in nats."""
    kl_behaviour: float
    """Mean of the k3 estimate of KL(behaviour || current policy): drift plus numerical mismatch."""
    num_trained_tokens: int
    num_packed_tokens: int
    """Tokens that went through the model, shared prefixes once."""
    num_plain_tokens: int
    """Tokens there would have been without sharing."""
    drift_mean: float = 0.0
    """Absolute difference between the log-probabilities that were recorded and those found here."""
    drift_max: float = 0.0
    ratio_mean: float = 1.0
    ratio_max: float = 1.0
    clip_fraction_low: float = 0.0
    """Share of tokens whose bounded ratio counts because the ratio is too low; of `measure`, as what follows."""
    clip_fraction_high: float = 0.0
    weight_mean: float = 1.0
    """Of the correction between sampler and learner."""
    weight_square_mean: float = 1.0

    @property
    def weight_share(self) -> float:
        """Effective sample size of those weights over the number of tokens: 1 when all weigh the same."""
        return self.weight_mean**2 / self.weight_square_mean if self.weight_square_mean else 0.0


MAXIMA = frozenset(("drift_max", "ratio_max"))
"""Fields of LearnStats that are the largest value of a trained token."""
MEANS = frozenset(LearnStats.__annotations__) - MAXIMA - {
    "loss", "num_trained_tokens", "num_packed_tokens", "num_plain_tokens"
}  # fmt: skip
"""And those that are means over them."""
