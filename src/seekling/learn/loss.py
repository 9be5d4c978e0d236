"""Losses as short pure functions of token log-probabilities; the learner aggregates and differentiates them.

Every loss takes the (A,) log-probabilities of the trained tokens under the current weights and the tensors of the row,
and returns (A,) per-token losses. Observations never appear here: only action tokens have an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenData:
    """What a loss may look at besides the current log-probabilities; all (A,)."""

    behaviour_logprobs_A: Tensor
    """When the token was sampled."""
    advantages_A: Tensor
    reference_logprobs_A: Tensor | None = None
    """Under the KL anchor; None without one."""


TokenLoss = Callable[[Tensor, TokenData], Tensor]


def cross_entropy(logprobs_A: Tensor, data: TokenData) -> Tensor:
    """Negative log-likelihood; advantages are ignored."""
    return -logprobs_A


def clipped_policy_loss(
    logprobs_A: Tensor, data: TokenData, *, clip_low: float = 0.2, clip_high: float = 0.28, kl_coefficient: float = 0.0
) -> Tensor:
    """PPO's pessimistic surrogate with separate bounds, plus the low-variance KL to a reference.

    Args:
        logprobs_A: (A,) under the current weights.
        data: behaviour log-probabilities and advantages; reference log-probabilities when `kl_coefficient` > 0.
        clip_low: the ratio is bounded below by 1 - clip_low.
        clip_high: and above by 1 + clip_high.
        kl_coefficient: weight of the KL term.

    Returns:
        (A,) losses.

    Source: PPO (arXiv:1707.06347) eq. 7; clip-higher from DAPO (arXiv:2503.14476); k3 estimator by Schulman (2020),
        with the log-ratio clamped to [-10, 10] as Search-R1 does.
    """
    ratio_A = torch.exp(logprobs_A - data.behaviour_logprobs_A)
    clipped_A = ratio_A.clamp(1 - clip_low, 1 + clip_high)
    loss_A = -torch.minimum(ratio_A * data.advantages_A, clipped_A * data.advantages_A)
    if kl_coefficient > 0 and data.reference_logprobs_A is not None:
        loss_A = loss_A + kl_coefficient * low_variance_kl(logprobs_A, data.reference_logprobs_A)
    return loss_A


def low_variance_kl(logprobs_A: Tensor, reference_logprobs_A: Tensor) -> Tensor:
    """Estimate of KL(current || reference) from sampled tokens, >= 0 for each token.

    Source: Schulman's k3 (http://joschu.net/blog/kl-approx.html).
    """
    difference_A = (reference_logprobs_A - logprobs_A).clamp(-10, 10)
    return torch.exp(difference_A) - difference_A - 1
