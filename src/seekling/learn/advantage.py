"""Rewards of episodes -> advantages, relative to a group or to a critic's values. Plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from seekling.errors import DataError

EQUAL_WITHIN = 1e-6
"""Rewards of a group that differ by no more than this share of the largest, or of 1, are the same."""


def are_equal(rewards_G: np.ndarray) -> bool:
    """Whether a group's (G,) rewards, before any KL is taken off, are the same up to rounding.

    Example:
        >>> are_equal(np.array([0.3, 0.1 + 0.2])), are_equal(np.array([0.3, 0.31]))
        (True, False)
    """
    return bool(np.ptp(rewards_G) <= EQUAL_WITHIN * max(1.0, float(np.abs(rewards_G).max())))


def group_advantages(rewards_G: np.ndarray, *, scale: Literal["none", "std", "sample_std"] = "std") -> np.ndarray:
    """Turn the (G,) rewards of the episodes of one question, G >= 2, into (G,) advantages that sum to 0.

    Rewards that are equal up to rounding give exactly 0. Groups may differ in size: failed episodes are left out.

    Args:
        rewards_G: total reward per episode.
        scale: "none" subtracts the group mean; "std" also divides by the group's population standard deviation, with
            1/G; "sample_std" by the sample's, with 1/(G-1).

    Raises:
        DataError: the array is not (G,) with G >= 2.

    Source: GRPO (arXiv:2402.03300) for both deviations, without its epsilon: 1/G as SLM-RL-Search writes it, 1/(G-1) as
        Search-R1 and slime compute it; Dr. GRPO (arXiv:2503.20783) for "none".

    Example:
        >>> group_advantages(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
        [1.0, -1.0, -1.0, 1.0]
    """
    if rewards_G.ndim != 1 or rewards_G.shape[0] < 2:
        raise DataError(
            f"group_advantages needs rewards of shape (G,) with G >= 2, got {rewards_G.shape}; "
            "with one episode per question the mean equals the reward and nothing is learned"
        )
    # Compare max with min, not std with 0: the std of three equal 0.1s is 1.4e-17, and dividing by it turns
    # "everyone scored the same" into advantages of -1.
    if are_equal(rewards_G):
        return np.zeros_like(rewards_G, dtype=np.float64)
    centred_G: np.ndarray = rewards_G - rewards_G.mean()
    return centred_G if scale == "none" else centred_G / rewards_G.std(ddof=scale == "sample_std")


def leave_one_out_advantages(rewards_G: np.ndarray) -> np.ndarray:
    """Each of the (G,) rewards minus the mean of the others': (G,) advantages; G and equal rewards as above.

    Source: RLOO (arXiv:2402.14740) section 3.2.

    Example:
        >>> leave_one_out_advantages(np.array([1.0, 0.0, 0.0, 0.0, 0.0])).tolist()
        [1.0, -0.25, -0.25, -0.25, -0.25]
    """
    size = len(rewards_G)
    return group_advantages(rewards_G, scale="none") * size / (size - 1)


def generalized_advantages(
    rewards_A: np.ndarray, values_A: np.ndarray, *, gamma: float, gae_lambda: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns of the action tokens of one episode, (A,) each.

    Observations are not in the arrays: neither discount nor critic sees what the environment wrote.

    Args:
        rewards_A: that each action token earned, most of them 0.
        values_A: the critic's prediction before each action token.
        gamma: discount per action token, in [0, 1].
        gae_lambda: 0 trusts the critic after one token, 1 waits for the end.

    Returns:
        Advantages, and advantages + values: what the critic should have predicted.

    Source: GAE (arXiv:1506.02438) eq. 16, over action tokens only.

    Example:
        >>> generalized_advantages(np.array([0.0, 1.0]), np.array([0.5, 0.25]), gamma=1.0, gae_lambda=1.0)[0].tolist()
        [0.5, 0.75]
    """
    next_values_A = np.append(values_A[1:], 0.0)
    surprises_A = rewards_A + gamma * next_values_A - values_A
    advantages_A = np.zeros(len(values_A))
    carried = 0.0
    for index in range(len(values_A) - 1, -1, -1):
        carried = advantages_A[index] = surprises_A[index] + gamma * gae_lambda * carried
    return advantages_A, advantages_A + values_A


def whiten(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Shift and scale arrays (A,) together to mean 0 and population deviation 1; equal ones become 0."""
    joined = np.concatenate(values)
    # As in `group_advantages`: rounding must not turn equal values into a deviation.
    deviation = np.inf if are_equal(joined) else joined.std()
    return [(each - joined.mean()) / deviation for each in values]


def most_varied(rewards_G: np.ndarray, count: int) -> np.ndarray:
    """Rising indices of the `count` episodes of a group whose (G,) rewards vary most; 0 or at least G keeps all.

    Sampling an episode is cheaper than learning from it; those in the middle of a group teach least. Baseline and
    deviation are the whole group's: taken from the chosen ones they would be those of another distribution.

    Source: max-variance down-sampling, PODS (arXiv:2504.13818), theorem 1; `num_represented` weighs what it chooses.

    Example:
        >>> most_varied(np.array([0.0, 1.0, 0.0, 0.0, 0.0, 1.0]), 4).tolist()
        [0, 1, 2, 5]
    """
    size = len(rewards_G)
    if not 0 < count < size:
        return np.arange(size)
    rising = np.argsort(rewards_G, kind="stable")
    falling = np.argsort(-rewards_G, kind="stable")
    subsets = [np.concatenate([rising[: count - high], falling[:high]]) for high in range(count + 1)]
    return np.sort(max(subsets, key=lambda chosen: float(np.var(rewards_G[chosen]))))


def num_represented(rewards_G: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(M,) how many episodes of its group each of the (M,) chosen ones stands for: its weight in the group's sums.

    An episode that was left out is stood for by the chosen ones of its reward, in equal parts, or by those of the next
    lower and higher reward, so shared that its reward is their weighted mean. Weights are at least 1 and add up to G,
    weighted advantages to 0. Where every reward of the group has a chosen one, the weighted sum over these has the
    expectation of the sum over all; for a reward that was left out it is biased.

    Example:
        >>> num_represented(np.array([0.0, 1.0, 0.0, 0.0, 0.0]), np.array([0, 1, 2])).tolist()
        [2.0, 1.0, 2.0]
    """
    rewards_G = rewards_G.round(6)
    values, which, counts = np.unique(rewards_G[chosen], return_inverse=True, return_counts=True)
    shares = np.asarray([np.interp(rewards_G, values, each).sum() for each in np.eye(len(values))])
    weights: np.ndarray = (shares / counts)[which]
    return weights
