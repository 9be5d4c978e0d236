"""Losses as short pure functions of token log-probabilities; the learner aggregates and differentiates them.

Every loss takes the (A,) log-probabilities of the trained tokens under the current weights and what else is known of
them, and returns (A,) losses. Observations have no entry. `make_policy_loss` puts together the pieces that a recipe
names; docs/ALGORITHMS.md has the formulas side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from seekling.config import LossConfig


@dataclass(frozen=True, slots=True)
class TokenData:
    """What a loss may look at besides the current log-probabilities; all (A,)."""

    behaviour_logprobs_A: Tensor
    """When the token was sampled."""
    advantages_A: Tensor
    reference_logprobs_A: Tensor | None = None
    """Under the KL anchor; None without one."""
    old_logprobs_A: Tensor | None = None
    """Denominator of the ratios: under the learner's weights before the first step. None: the behaviour's."""
    sequence_A: Tensor | None = None
    """int64: which trajectory a token belongs to; all trained tokens of a trajectory are there."""
    returns_A: Tensor | None = None
    """What a critic should have predicted."""
    old_values_A: Tensor | None = None
    """What it did predict before the first step."""

    @property
    def denominator_A(self) -> Tensor:
        """Log-probabilities that ratios divide by."""
        return self.behaviour_logprobs_A if self.old_logprobs_A is None else self.old_logprobs_A


TokenField = Literal["advantages_A", "reference_logprobs_A", "old_logprobs_A", "returns_A", "old_values_A"]
TokenLoss = Callable[[Tensor, TokenData], Tensor]


@dataclass(frozen=True, slots=True)
class TokenMeasures:
    """What a policy loss did with each token; all (A,)."""

    ratios_A: Tensor
    """Current over old probability; of the whole trajectory with gspo."""
    is_clipped_low_A: Tensor
    """bool: the ratio is below its lower bound, and the bounded one counts."""
    is_clipped_high_A: Tensor
    weights_A: Tensor
    """Of the correction between sampler and learner; 1 without one."""


TokenMeasure = Callable[[Tensor, TokenData], TokenMeasures]
Aggregation = Literal["token_mean", "sequence_mean", "sum", "constant"]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A token loss that says which one it is, for a learner that has the same one elsewhere."""

    config: LossConfig
    tokens: TokenLoss

    def __call__(self, logprobs_A: Tensor, data: TokenData) -> Tensor:
        """(A,) losses."""
        return self.tokens(logprobs_A, data)


def make_policy_loss(config: LossConfig) -> PolicyLoss:
    """Put the loss of a recipe together: surrogate x correction + KL."""
    surrogate, cap = importance_sampling, config.correction_cap
    if config.kind != "importance_sampling":
        bounded = {"ppo": clipped_policy_loss, "cispo": cispo, "gspo": gspo}[config.kind]
        surrogate = partial(bounded, clip_low=config.clip_low, clip_high=config.clip_high)
    kl_coefficient = config.kl_coefficient if config.kl_in == "loss" else 0.0

    def loss(logprobs_A: Tensor, data: TokenData) -> Tensor:
        data = _with_old(config, logprobs_A, data)
        loss_A = surrogate(logprobs_A, data)
        if config.correction != "none":
            correct = CORRECTIONS[config.correction]
            loss_A = loss_A * correct(data.denominator_A, data.behaviour_logprobs_A, cap)
        if kl_coefficient > 0:
            assert data.reference_logprobs_A is not None, "a KL term needs the reference's log-probabilities"
            loss_A = loss_A + kl_coefficient * KL_ESTIMATORS[config.kl](logprobs_A, data.reference_logprobs_A)
        return loss_A

    return PolicyLoss(config, loss)


def make_policy_measure(config: LossConfig) -> TokenMeasure:
    """Say how the loss of the same recipe treated its tokens."""

    def measure(logprobs_A: Tensor, data: TokenData) -> TokenMeasures:
        data = _with_old(config, logprobs_A, data)
        ratios_A = (sequence_ratios if config.kind == "gspo" else token_ratios)(logprobs_A, data)
        is_low_A, is_high_A = ratios_A < 1 - config.clip_low, ratios_A > 1 + config.clip_high
        if config.kind == "importance_sampling":
            is_low_A, is_high_A = torch.zeros_like(is_low_A), torch.zeros_like(is_high_A)
        elif config.kind != "cispo":  # the pessimistic minimum takes the bounded term on one side only
            is_low_A, is_high_A = is_low_A & (data.advantages_A < 0), is_high_A & (data.advantages_A > 0)
        weights_A = torch.ones_like(ratios_A)
        if config.correction != "none":
            correct = CORRECTIONS[config.correction]
            weights_A = correct(data.denominator_A, data.behaviour_logprobs_A, config.correction_cap)
        return TokenMeasures(ratios_A, is_low_A, is_high_A, weights_A)

    return measure


def _with_old(config: LossConfig, logprobs_A: Tensor, data: TokenData) -> TokenData:
    """In the first step after a rollout the current weights are the old ones."""
    if config.old_logprobs == "recomputed" and data.old_logprobs_A is None:
        return replace(data, old_logprobs_A=logprobs_A.detach())
    return data


def cross_entropy(logprobs_A: Tensor, data: TokenData) -> Tensor:
    """Negative log-likelihood; advantages are ignored."""
    return -logprobs_A


def importance_sampling(logprobs_A: Tensor, data: TokenData) -> Tensor:
    """REINFORCE, weighted by how much likelier a token is now than when it was sampled.

    Source: REINFORCE (Williams, 1992) with the importance weight of tinker's `importance_sampling` loss.
    """
    return -token_ratios(logprobs_A, data) * data.advantages_A


def clipped_policy_loss(
    logprobs_A: Tensor, data: TokenData, *, clip_low: float = 0.2, clip_high: float = 0.28
) -> Tensor:
    """PPO's pessimistic surrogate; ratios are bounded by 1 - clip_low and 1 + clip_high.

    Source: PPO (arXiv:1707.06347) eq. 7; clip-higher from DAPO (arXiv:2503.14476).
    """
    return _pessimistic(token_ratios(logprobs_A, data), data, clip_low, clip_high)


def gspo(logprobs_A: Tensor, data: TokenData, *, clip_low: float, clip_high: float) -> Tensor:
    """PPO's surrogate with one ratio per trajectory.

    Source: GSPO (arXiv:2507.18071) eq. 5 to 7; meant for `sequence_mean` and bounds of some 1e-4.
    """
    return _pessimistic(sequence_ratios(logprobs_A, data), data, clip_low, clip_high)


def _pessimistic(ratio_A: Tensor, data: TokenData, clip_low: float, clip_high: float) -> Tensor:
    clipped_A = ratio_A.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio_A * data.advantages_A, clipped_A * data.advantages_A)


def token_ratios(logprobs_A: Tensor, data: TokenData) -> Tensor:
    """(A,) how much likelier each token is now than it was."""
    return torch.exp(logprobs_A - data.denominator_A)


def sequence_ratios(logprobs_A: Tensor, data: TokenData) -> Tensor:
    """(A,) the geometric mean of the ratios of the trajectory that each token belongs to."""
    assert data.sequence_A is not None, "ratios of trajectories need to know whose tokens they are"
    _, owner_A, count_B = torch.unique(data.sequence_A, return_inverse=True, return_counts=True)
    sum_B = torch.zeros(len(count_B), dtype=logprobs_A.dtype, device=logprobs_A.device)
    mean_B = sum_B.index_add(0, owner_A, logprobs_A - data.denominator_A) / count_B
    return torch.exp(mean_B)[owner_A]


def cispo(logprobs_A: Tensor, data: TokenData, *, clip_low: float, clip_high: float) -> Tensor:
    """REINFORCE with a bounded importance weight through which no gradient flows: every token keeps teaching.

    Source: CISPO (MiniMax-M1, arXiv:2506.13585) eq. 4; with clip_low = 1 only the upper bound is left, as there.
    """
    weight_A = torch.exp(logprobs_A.detach() - data.denominator_A).clamp(1 - clip_low, 1 + clip_high)
    return -weight_A * data.advantages_A * logprobs_A


def value_loss(values_A: Tensor, data: TokenData, *, value_clip: float) -> Tensor:
    """Half the squared error of a critic, the larger one of where it is and of where the clip would leave it.

    A prediction may move by `value_clip` before its own error stops counting.

    Source: PPO's public code, described in arXiv:2005.12729, section 3.
    """
    assert data.returns_A is not None
    assert data.old_values_A is not None
    moved_A = data.old_values_A + (values_A - data.old_values_A).clamp(-value_clip, value_clip)
    return 0.5 * torch.maximum((values_A - data.returns_A) ** 2, (moved_A - data.returns_A) ** 2)


def truncated_weights(old_logprobs_A: Tensor, behaviour_logprobs_A: Tensor, cap: float) -> Tensor:
    """How much likelier the learner finds a token than the sampler did, at most `cap`.

    Source: truncated importance sampling between engines (Yao et al., 2025, "Your efficient RL framework secretly
        brings you off-policy RL training"), per token.
    """
    return torch.exp(old_logprobs_A - behaviour_logprobs_A).clamp(max=cap)


def masked_weights(old_logprobs_A: Tensor, behaviour_logprobs_A: Tensor, cap: float) -> Tensor:
    """The same weight, but 0 where it is above `cap`: such a token teaches nothing.

    Source: masked importance sampling (Liu et al., 2025, "When speed kills stability"), per token.
    """
    weight_A = torch.exp(old_logprobs_A - behaviour_logprobs_A)
    return torch.where(weight_A <= cap, weight_A, 0.0)


CORRECTIONS = {"tis": truncated_weights, "mask": masked_weights}
"""Old and behaviour log-probabilities, cap -> weights; by the value of `rl.loss.correction`."""


def log_ratio_kl(logprobs_A: Tensor, reference_logprobs_A: Tensor) -> Tensor:
    """Schulman's k1: unbiased, of either sign, and without a useful gradient."""
    return logprobs_A - reference_logprobs_A


def squared_kl(logprobs_A: Tensor, reference_logprobs_A: Tensor) -> Tensor:
    """Schulman's k2: half the squared log-ratio; biased, but its gradient is that of the KL."""
    return 0.5 * (logprobs_A - reference_logprobs_A) ** 2


def low_variance_kl(logprobs_A: Tensor, reference_logprobs_A: Tensor) -> Tensor:
    """Schulman's k3: >= 0 for each token, and at most 10: a token beyond that no longer pulls.

    Unbiased for samples of the first argument's policy, but for what the bound takes off.

    Source: Schulman (http://joschu.net/blog/kl-approx.html), bounded as Search-R1's and slime's `low_var_kl` is.
    """
    # Far from both bounds of the estimate (it is 10 at 2.6 and at -11), so that exp overflows nowhere.
    difference_A = (reference_logprobs_A - logprobs_A).clamp(-20, 20)
    return (torch.exp(difference_A) - difference_A - 1).clamp(max=10)


KL_ESTIMATORS = {"k1": log_ratio_kl, "k2": squared_kl, "k3": low_variance_kl}
"""Log-probabilities under the policy that sampled and under another -> KL(policy || other); by `rl.loss.kl`."""


def token_weights(num_trained_B: np.ndarray, aggregation: Aggregation) -> np.ndarray:
    """(B,) weights of each trained token of a trajectory, of which it has (B,), before the division by `denominator`.

    Both are apart because gradients of a step may add up before its size is known.
    """
    return 1.0 / np.maximum(num_trained_B, 1) if aggregation == "sequence_mean" else np.ones(len(num_trained_B))


def denominator(
    num_trained_B: np.ndarray, aggregation: Aggregation, *, represented_B: np.ndarray | None = None, constant: int = 1
) -> float:
    """What the weighted sum over all tokens is divided by; trajectories without a trained token do not count.

    Args:
        num_trained_B: (B,) trained tokens of each trajectory of a step.
        represented_B: (B,) how many trajectories each one stands for; None: 1.
        aggregation: token_mean, DAPO's (arXiv:2503.14476); sequence_mean, GRPO's (arXiv:2402.03300); sum, tinker's;
            constant, Dr. GRPO's (arXiv:2503.20783): tokens per trajectory, whatever its length.
        constant: of `constant`, in tokens.
    """
    represented_B = np.ones(len(num_trained_B)) if represented_B is None else represented_B
    num_sequences = float(represented_B[num_trained_B > 0].sum())
    sizes = {
        "token_mean": float(represented_B @ num_trained_B),
        "sequence_mean": num_sequences,
        "sum": 1,
        "constant": num_sequences * constant,
    }
    return float(sizes[aggregation])
