"""Drawing tokens: temperature, top-p and min-p per row, reproducible per row whatever else is in the batch.

The random numbers of a draw depend only on the episode's seed and the token's position (a counter-based generator).
Tokens are drawn by the Gumbel-max trick, so that a draw changes about as seldom as the distribution does: weights that
rounding has moved a little, as another batch does in bfloat16, mostly draw the same. By inverting the cumulative sum, a
draw would move with everything that comes before it in the vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STRETCH = 256
"""Tokens of a block of the two-level reduction: random numbers for all tokens would cost more than the rest."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_CUT, _UNIT = np.uint64(12), 2.0**-52
_ROWS_AT_ONCE = 32
"""Rows whose float32 logits exist at the same time, so that they stay in the processor's cache."""


def draw_keys(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(R,) uint64 states of the random numbers of draws, from (R,) seeds of episode turns and positions of tokens.

    Source: SplitMix64's finaliser (Steele, Lea, Flood 2014) over seed and counter.
    """
    with np.errstate(over="ignore"):
        return _mix(_mix(seeds.astype(np.uint64) + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def exponentials(key_R: np.ndarray, count: int) -> np.ndarray:
    """(R, count) float64 random numbers of the exponential distribution with mean 1, above 0."""
    with np.errstate(over="ignore"):
        bits = _mix(key_R[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    # 52 bits and a half: with one more, the largest would be rounded to 1, whose logarithm is 0.
    numbers: np.ndarray = -np.log(((bits >> _CUT).astype(np.float64) + 0.5) * _UNIT)
    return numbers


def _mix(z: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> _SHIFTS[0])) * _FIRST
    z = (z ^ (z >> _SHIFTS[1])) * _SECOND
    mixed: np.ndarray = z ^ (z >> _SHIFTS[2])
    return mixed


def draw(
    logits_RV: Tensor, *, temperature_R: np.ndarray, top_p_R: np.ndarray, min_p_R: np.ndarray, key_R: np.ndarray
) -> tuple[list[int], list[float]]:
    """Draw one token per row, of those that both truncations of the tempered distribution keep.

    Args:
        logits_RV: (R, V) in any float type.
        temperature_R: (R,) >= 0; 0 takes the most likely token.
        top_p_R: (R,) in (0, 1]; 1 keeps the whole distribution.
        min_p_R: (R,) in [0, 1]; tokens below this share of the most likely one's probability go, 0 keeps all.
        key_R: (R,) uint64, of `draw_keys`.

    Returns:
        R token ids, and their log-probabilities under the tempered, untruncated policy; greedy ones at temperature 1.

    Source: min-p (arXiv:2407.01082), after temperature and beside top-p as in transformers.
    """
    token_ids: list[int] = []
    logprobs: list[float] = []
    for start in range(0, logits_RV.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        tokens_R, logprobs_R = _draw_rows(
            logits_RV[rows], temperature_R[rows], top_p_R[rows], min_p_R[rows], key_R[rows]
        )
        token_ids += tokens_R.tolist()
        logprobs += logprobs_R.tolist()
    return token_ids, logprobs


def _draw_rows(
    logits_RV: Tensor, temperature_R: np.ndarray, top_p_R: np.ndarray, min_p_R: np.ndarray, key_R: np.ndarray
) -> tuple[Tensor, Tensor]:
    hot, divisor_R = np.flatnonzero(temperature_R > 0), np.where(temperature_R > 0, temperature_R, 1.0)
    divisor_R1 = torch.from_numpy(divisor_R[:, None]).to(logits_RV.device, torch.float32)
    weights_RV = logits_RV.to(torch.float32, copy=True)
    top_R1 = weights_RV.amax(-1, keepdim=True)
    weights_RV.sub_(top_R1).div_(divisor_R1).exp_()
    tokens_R = torch.zeros(len(logits_RV), dtype=torch.int64, device=logits_RV.device)
    if hot.size < len(temperature_R):
        tokens_R = logits_RV.argmax(-1)
    if hot.size:
        index = torch.from_numpy(hot).to(logits_RV.device)
        hot_RV = weights_RV if hot.size == len(temperature_R) else weights_RV[index]
        # The most likely token has weight 1.
        is_low_RV = hot_RV < torch.from_numpy(min_p_R[hot]).to(hot_RV)[:, None] if (min_p_R[hot] > 0).any() else None
        if (top_p_R[hot] < 1).any():
            hot_RV = _nucleus(hot_RV / hot_RV.sum(-1, keepdim=True), torch.from_numpy(top_p_R[hot]).to(hot_RV))
        if is_low_RV is not None:
            hot_RV = hot_RV.masked_fill(is_low_RV, 0.0)
        tokens_R[index] = _race(hot_RV, key_R[hot])
    chosen_R1 = (logits_RV.gather(-1, tokens_R[:, None]).float() - top_R1) / divisor_R1
    return tokens_R, (chosen_R1 - weights_RV.sum(-1, keepdim=True).log())[:, 0]


def _race(weights_RV: Tensor, key_R: np.ndarray) -> Tensor:
    """(R,) one entry of each row, drawn in proportion to the weights: first the stretch, then the entry inside it.

    Source: exponential races (A* sampling, arXiv:1411.0030, in other words): of arrivals at a random time over a
    weight, each is the first as often as it weighs.
    """
    missing = -weights_RV.shape[-1] % STRETCH
    padded_RV = torch.nn.functional.pad(weights_RV, (0, missing)) if missing else weights_RV
    stretches_RCS = padded_RV.view(weights_RV.shape[0], -1, STRETCH)
    num_stretches = stretches_RCS.shape[1]
    times_RN = torch.from_numpy(exponentials(key_R, num_stretches + STRETCH)).to(weights_RV.device)
    stretch_R = (stretches_RCS.sum(-1) / times_RN[:, :num_stretches]).argmax(-1)
    inside_RS = stretches_RCS[torch.arange(len(key_R), device=weights_RV.device), stretch_R]
    return stretch_R * STRETCH + (inside_RS / times_RN[:, num_stretches:]).argmax(-1)


def _nucleus(probs_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Zero everything outside the smallest set of tokens whose probability reaches top_p.

    Source: nucleus sampling (arXiv:1904.09751).
    """
    sorted_RV, order_RV = probs_RV.sort(-1, descending=True)
    before_RV = sorted_RV.cumsum(-1) - sorted_RV
    kept_RV = torch.where(before_RV < top_p_R[:, None], sorted_RV, 0.0)
    return torch.zeros_like(probs_RV).scatter_(-1, order_RV, kept_RV)
