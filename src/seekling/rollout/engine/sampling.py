"""Drawing tokens: temperature, top-p and min-p per row, reproducible per row whatever else is in the batch.

The random number of a draw depends only on the episode's seed and the token's position (a counter-based generator), and
inverse-CDF sampling needs one number a row instead of `multinomial`'s one per vocabulary entry.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_ROWS_AT_ONCE = 32
"""Rows whose float32 logits exist at the same time, so that they stay in the processor's cache."""
_STRETCH = 256
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
    logits_RV: Tensor, *, temperature_R: np.ndarray, top_p_R: np.ndarray, min_p_R: np.ndarray, uniform_R: np.ndarray
) -> tuple[list[int], list[float]]:
    """Draw one token per row, of those that both truncations of the tempered distribution keep.

    Args:
        logits_RV: (R, V) in any float type.
        temperature_R: (R,) >= 0; 0 takes the most likely token.
        top_p_R: (R,) in (0, 1]; 1 keeps the whole distribution.
        min_p_R: (R,) in [0, 1]; tokens below this share of the most likely one's probability go, 0 keeps all.
        uniform_R: (R,) in [0, 1).

    Returns:
        R token ids, and their log-probabilities under the untempered, untruncated policy.

    Source: min-p (arXiv:2407.01082), after temperature and beside top-p as in transformers.
    """
    token_ids: list[int] = []
    logprobs: list[float] = []
    for start in range(0, logits_RV.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        tokens_R, logprobs_R = _draw_rows(
            logits_RV[rows].float(), temperature_R[rows], top_p_R[rows], min_p_R[rows], uniform_R[rows]
        )
        token_ids += tokens_R.tolist()
        logprobs += logprobs_R.tolist()
    return token_ids, logprobs


def _draw_rows(
    logits_RV: Tensor, temperature_R: np.ndarray, top_p_R: np.ndarray, min_p_R: np.ndarray, uniform_R: np.ndarray
) -> tuple[Tensor, Tensor]:
    top_R, tokens_R = logits_RV.max(-1)
    weights_RV = torch.exp(logits_RV - top_R[:, None])
    totals_R = weights_RV.sum(-1)
    hot = np.flatnonzero(temperature_R > 0)
    if hot.size:
        device = logits_RV.device
        index = torch.from_numpy(hot).to(device)
        if (temperature_R[hot] != 1).any():
            temperature = torch.from_numpy(temperature_R[hot]).to(logits_RV)
            hot_RV = torch.exp((logits_RV[index] - top_R[index, None]) / temperature[:, None])
        else:
            hot_RV = weights_RV if hot.size == len(temperature_R) else weights_RV[index]
        # The most likely token has weight 1.
        is_low_RV = hot_RV < torch.from_numpy(min_p_R[hot]).to(hot_RV)[:, None] if (min_p_R[hot] > 0).any() else None
        if (top_p_R[hot] < 1).any():
            hot_RV = _nucleus(hot_RV / hot_RV.sum(-1, keepdim=True), torch.from_numpy(top_p_R[hot]).to(hot_RV))
        if is_low_RV is not None:
            hot_RV = hot_RV.masked_fill(is_low_RV, 0.0)
        tokens_R[index] = _invert(hot_RV, torch.from_numpy(uniform_R[hot]).to(device))
    logprobs_R = logits_RV.gather(-1, tokens_R[:, None])[:, 0] - top_R - totals_R.log()
    return tokens_R, logprobs_R


def _invert(weights_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The entry in which the given share of the cumulative sum is reached: first the stretch, then the entry inside it.

    A cumulative sum over a whole vocabulary in float64 costs more than everything else in a draw.
    """
    padded_RV = torch.nn.functional.pad(weights_RV, (0, -weights_RV.shape[-1] % _STRETCH))
    stretches_RCS = padded_RV.view(weights_RV.shape[0], -1, _STRETCH)
    sums_RC = stretches_RCS.sum(-1).double()
    ends_RC = sums_RC.cumsum(-1)
    target_R1 = uniform_R[:, None] * ends_RC[:, -1:]
    stretch_R1 = _first_above(ends_RC, sums_RC, target_R1)
    before_R1 = ends_RC.gather(-1, stretch_R1) - sums_RC.gather(-1, stretch_R1)
    inside_RS = stretches_RCS[torch.arange(len(uniform_R), device=uniform_R.device), stretch_R1[:, 0]].double()
    entry_R1 = _first_above(inside_RS.cumsum(-1), inside_RS, target_R1 - before_R1)
    return (stretch_R1 * _STRETCH + entry_R1)[:, 0]


def _first_above(ends_RC: Tensor, weights_RC: Tensor, target_R1: Tensor) -> Tensor:
    """(R, 1) first place whose end is above the target; where rounding leaves none, the last that has weight."""
    # right=True skips entries of weight zero, whose cumulative sum equals their left neighbour's.
    found_R1 = torch.searchsorted(ends_RC, target_R1, right=True)
    places_C = torch.arange(1, weights_RC.shape[-1] + 1, device=weights_RC.device)
    return torch.minimum(found_R1, ((weights_RC > 0) * places_C).argmax(-1, keepdim=True))


def _nucleus(probs_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Zero everything outside the smallest set of tokens whose probability reaches top_p.

    Source: nucleus sampling (arXiv:1904.09751).
    """
    sorted_RV, order_RV = probs_RV.sort(-1, descending=True)
    before_RV = sorted_RV.cumsum(-1) - sorted_RV
    kept_RV = torch.where(before_RV < top_p_R[:, None], sorted_RV, 0.0)
    return torch.zeros_like(probs_RV).scatter_(-1, order_RV, kept_RV)
