"""Drawing tokens in one compiled loop on CPUs: what `sampling.draw` does in a dozen passes of torch, in two.

Shape letters: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.vector.intrinsics import as_float
from seekling.kernels.vector.pointwise import (
    FASTMATH,
    LOG2_E,
    LOWEST_ORDERED,
    WORD_SHIFTS,
    bits_of,
    ordered,
    power_of_two,
    use_threads,
    widened,
)

STRETCH = 256
"""Tokens that race as one before they race each other: a random number for every token would cost more than the rest
of a draw."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_CUT, _UNIT = np.uint64(12), 2.0**-52
_INFINITE, _HIGHEST_ORDERED = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
_LARGEST_FACTOR = 1e30
_NO_WEIGHT = np.float32(-125)
"""Exponents below it weigh nothing: the smallest normal number, of a sum that is at least 1."""


def draw_untruncated(
    logits_RV: Tensor, temperature_R: np.ndarray, min_p_R: np.ndarray, key_R: np.ndarray
) -> tuple[list[int], list[float]]:
    """As `kernels.draw.draw`, without top-p, of logits that loops take."""
    num_rows = len(logits_RV)
    token_R, logprob_R = np.empty(num_rows, np.int64), np.empty(num_rows, np.float32)
    loop = _loop(WORD_SHIFTS[logits_RV.dtype], use_threads() > 1)
    factor_R = np.divide(LOG2_E, temperature_R, out=np.zeros(num_rows), where=temperature_R > 0)
    factor_R = np.minimum(factor_R, _LARGEST_FACTOR).astype(np.float32)
    loop(bits_of(logits_RV.contiguous()), factor_R, min_p_R.astype(np.float32), key_R, token_R, logprob_R)
    return token_R.tolist(), logprob_R.tolist()


@cache
def _loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, stretch = np.uint32(shift), STRETCH

    def race(logits_RV, factor_R, min_p_R, key_R, token_R, logprob_R):  # type: ignore[no-untyped-def]  # pragma: no cover
        size = logits_RV.shape[1]
        num_stretches = (size + stretch - 1) // stretch
        for r in prange(len(logits_RV)):
            logits_V, factor, min_p, key = logits_RV[r], factor_R[r], min_p_R[r], key_R[r]
            largest, smallest = LOWEST_ORDERED, _HIGHEST_ORDERED
            for v in range(size):
                order = ordered(np.int32(np.uint32(logits_V[v]) << cut))
                largest, smallest = max(largest, order), min(smallest, order)
            highest = as_float(np.uint32(ordered(largest)))
            power = factor if factor > 0 else LOG2_E
            total, fastest, winner = np.float32(0), -1.0, 0
            for part in range(num_stretches):
                start, stop = part * stretch, min((part + 1) * stretch, size)
                some = np.float32(0)
                for v in range(start, stop):
                    some += weight_of((widened(logits_V[v], cut) - highest) * power)
                total += some
                if min_p > 0:
                    some = np.float32(0)
                    for v in range(start, stop):
                        weight = weight_of((widened(logits_V[v], cut) - highest) * power)
                        some += weight if weight >= min_p else np.float32(0)
                speed = some / exponential(key, part)
                if speed > fastest:
                    fastest, winner = speed, part
            token, fastest, heaviest = winner * stretch, 0.0, np.float32(0)
            for v in range(winner * stretch, min((winner + 1) * stretch, size)):
                weight = weight_of((widened(logits_V[v], cut) - highest) * power)
                speed = (weight if weight >= min_p else 0.0) / exponential(key, num_stretches + v - winner * stretch)
                if speed > fastest:
                    fastest, token = speed, v
                elif fastest == 0 and weight > heaviest:  # min-p leaves none, by another rounding than above
                    heaviest, token = weight, v
            if factor == 0:
                token = 0
                while token < size - 1 and ordered(np.int32(np.uint32(logits_V[token]) << cut)) < largest:
                    token += 1
            is_number = largest < _INFINITE and smallest >= ordered(np.int32(_INFINITE | ~_HIGHEST_ORDERED))
            token_R[r] = token if is_number else 0
            tempered = (widened(logits_V[token_R[r]], cut) - highest) * (power / LOG2_E)
            logprob_R[r] = tempered - np.log(total) if is_number else np.float32(np.nan)

    return compile_loop(race, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


# Globals, as `compile_loop` wants them.
@njit(inline="always", fastmath=FASTMATH)
def weight_of(exponent):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """2^x, or 0 where that is less than a sum of 1 would notice."""
    return power_of_two(exponent) if exponent >= _NO_WEIGHT else np.float32(0)


@njit(inline="always")
def exponential(key, index):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """The `index`-th of `sampling.exponentials`."""
    return as_exponential(mix(key + np.uint64(index + 1) * GOLDEN))


@njit(inline="always")
def mix(z):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser of a uint64; as Python, of an array of them."""
    z = (z ^ (z >> _SHIFTS[0])) * _FIRST
    z = (z ^ (z >> _SHIFTS[1])) * _SECOND
    return z ^ (z >> _SHIFTS[2])


@njit(inline="always")
def as_exponential(bits):  # type: ignore[no-untyped-def]
    """Above 0, of the exponential distribution with mean 1; of an array too, as `mix`."""
    # 52 bits and a half: with one more, the largest would be rounded to 1, whose logarithm is 0.
    return -np.log((np.float64(bits >> _CUT) + 0.5) * _UNIT)
