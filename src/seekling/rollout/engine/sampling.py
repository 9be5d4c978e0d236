"""Drawing tokens: temperature and top-p per row, reproducible per row whatever else is in the batch.

The random number of a draw depends only on the episode's seed and the token's position (a counter-based generator), and
inverse-CDF sampling needs one number a row instead of `multinomial`'s one per vocabulary entry.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One uniform number in [0, 1) per row.

    Args:
        seeds: (R,) uint64, one per episode turn.
        positions: (R,) uint64, position of the token to draw.

    Returns:
        (R,) float64.

    Source: SplitMix64's finaliser (Steele, Lea, Flood 2014) over seed and counter.
    """
    with np.errstate(over="ignore"):
        z = _mix(seeds.astype(np.uint64) + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mixed: np.ndarray = _mix(z) >> np.uint64(11)
    numbers: np.ndarray = mixed.astype(np.float64) * 2.0**-53
    return numbers


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def draw(
    logits_RV: Tensor, *, temperature_R: np.ndarray, top_p_R: np.ndarray, uniform_R: np.ndarray
) -> tuple[list[int], list[float]]:
    """Draw one token per row.

    Args:
        logits_RV: (R, V) in any float type.
        temperature_R: (R,) >= 0; 0 takes the most likely token.
        top_p_R: (R,) in (0, 1]; 1 keeps the whole distribution.
        uniform_R: (R,) in [0, 1).

    Returns:
        R token ids, and their log-probabilities under the untempered, untruncated policy.
    """
    logits_RV = logits_RV.float()
    tokens_R = logits_RV.argmax(-1)
    hot = np.flatnonzero(temperature_R > 0)
    if hot.size:
        index = torch.from_numpy(hot).to(logits_RV.device)
        temperature = torch.from_numpy(temperature_R[hot]).to(logits_RV)
        probs = torch.softmax(logits_RV[index] / temperature[:, None], -1)
        if (top_p_R[hot] < 1).any():
            probs = _nucleus(probs, torch.from_numpy(top_p_R[hot]).to(probs))
        cdf = probs.double().cumsum(-1)
        target = torch.from_numpy(uniform_R[hot]).to(cdf.device)[:, None] * cdf[:, -1:]
        # right=True skips entries of probability zero, whose cdf equals their left neighbour's.
        tokens_R[index] = torch.searchsorted(cdf, target, right=True)[:, 0].clamp_max(logits_RV.shape[-1] - 1)
    logprobs_R = logits_RV.gather(-1, tokens_R[:, None])[:, 0] - torch.logsumexp(logits_RV, -1)
    return tokens_R.tolist(), logprobs_R.tolist()


def _nucleus(probs_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Zero everything outside the smallest set of tokens whose probability reaches top_p.

    Source: nucleus sampling (arXiv:1904.09751).
    """
    sorted_RV, order_RV = probs_RV.sort(-1, descending=True)
    before_RV = sorted_RV.cumsum(-1) - sorted_RV
    kept_RV = torch.where(before_RV < top_p_R[:, None], sorted_RV, 0.0)
    return torch.zeros_like(probs_RV).scatter_(-1, order_RV, kept_RV)
