"""Rewards of a group of episodes -> advantages."""

from __future__ import annotations

from typing import Literal

import numpy as np

from seekling.errors import DataError


def group_advantages(rewards_G: np.ndarray, *, scale: Literal["none", "std"] = "std") -> np.ndarray:
    """Turn the rewards of the episodes of one question into advantages.

    Groups may differ in size, since episodes that ended in an infrastructure failure are left out of theirs.

    Args:
        rewards_G: (G,) total reward per episode; any real value, G >= 2.
        scale: "none" subtracts the group mean; "std" also divides by the group's population standard deviation.

    Returns:
        (G,) advantages that sum to 0 up to rounding; equal rewards give exactly 0.

    Raises:
        DataError: the array is not (G,) with G >= 2.

    Source: GRPO (arXiv:2402.03300) for "std", without its epsilon and with 1/G as in seed 001; Dr. GRPO
        (arXiv:2503.20783) for "none".

    Example:
        >>> group_advantages(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
        [1.0, -1.0, -1.0, 1.0]
        >>> group_advantages(np.array([0.1, 0.1, 0.1])).tolist()
        [0.0, 0.0, 0.0]
    """
    if rewards_G.ndim != 1 or rewards_G.shape[0] < 2:
        raise DataError(
            f"group_advantages needs rewards of shape (G,) with G >= 2, got {rewards_G.shape}; "
            "with one episode per question the mean equals the reward and nothing is learned"
        )
    # Compare max with min, not std with 0: the std of three equal 0.1s is 1.4e-17, and dividing by it turns
    # "everyone scored the same" into advantages of -1.
    if np.ptp(rewards_G) == 0:
        return np.zeros_like(rewards_G, dtype=np.float64)
    centred_G: np.ndarray = rewards_G - rewards_G.mean()
    return centred_G if scale == "none" else centred_G / rewards_G.std()


def most_varied(rewards_G: np.ndarray, count: int) -> np.ndarray:
    """Choose the episodes of a group whose rewards differ most: the lowest and the highest.

    Sampling an episode is cheaper than learning from it; those in the middle of a group teach least.

    Args:
        rewards_G: (G,) total reward per episode.
        count: how many to keep; 0 or at least G keeps all.

    Returns:
        Rising indices of the subset of that size with the largest variance; of equal rewards the first come first.

    Source: max-variance down-sampling, PODS (arXiv:2504.13818), theorem 1.

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
