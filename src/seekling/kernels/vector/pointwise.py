"""Norms, gated activations and softmaxes of a vocabulary in one or two passes over memory, compiled at first use.

torch makes six to ten passes of them on a CPU, most in float32. Rounding is torch's: where it keeps a value in bfloat16
between two operations, so do these loops. Exponentials are to 2e-7.

Shape letters: N tokens, D width of the model, F width of the gate, T threads, U positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.vector.intrinsics import as_float, as_word

Loop = Callable[..., None]
WORD_SHIFTS = {torch.bfloat16: 16, torch.float32: 0}
"""Types that the loops read: their bits, shifted left by so many, are those of an fp32."""
WORDS = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32, torch.uint32: torch.uint32}
# Without "nnan": a NaN of damaged weights must reach the logits, where it is noticed.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
LOG2_E = np.float32(1.4426950408889634)
_ONE, _HALF, _BIAS, _LOWEST = np.float32(1), np.float32(0.5), np.float32(127), np.float32(-125)
_MANTISSA_BITS = np.int32(23)
_POLY1, _POLY2, _POLY3 = np.float32(0.693147182), np.float32(0.240226462), np.float32(0.0555033415)
_POLY4, _POLY5 = np.float32(0.00961817028), np.float32(0.00133999444)
_HIGHEST, _SIGN, _MAGNITUDE = np.float32(126), np.int32(31), np.int32(0x7FFFFFFF)
LOWEST_ORDERED = ~_MAGNITUDE
"""Below all that `ordered` returns."""
_VOCABULARY_BLOCK = 2048
"""Logits that are summed at a time, so that sums of many stay exact."""
_SERIAL_ELEMENTS = 1 << 16
"""Below this, starting threads takes longer than the loop."""


def rms_norm(hidden_ND: Tensor, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Root mean square norm of contiguous rows, and (N,) float32 factors that these were scaled by."""
    output_ND, scale_N = torch.empty_like(hidden_ND), torch.empty(len(hidden_ND), dtype=torch.float32)
    _norm_loop(hidden_ND)(
        bits_of(hidden_ND), bits_of(weight_D), np.float32(epsilon), bits_of(output_ND), scale_N.numpy()
    )
    return output_ND, scale_N


def rms_norm_backward(
    d_output_ND: Tensor, hidden_ND: Tensor, weight_D: Tensor, scale_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of a norm's input, in its type, and of its weight, in float32; all (N, D) contiguous."""
    d_hidden_ND = torch.empty_like(hidden_ND)
    d_weight_TD = torch.zeros(use_threads(), hidden_ND.shape[1], dtype=torch.float32)
    _norm_backward_loop(hidden_ND)(
        bits_of(d_output_ND),
        bits_of(hidden_ND),
        bits_of(weight_D),
        scale_N.numpy(),
        bits_of(d_hidden_ND),
        d_weight_TD.numpy(),
    )
    return d_hidden_ND, d_weight_TD.sum(0)


def gated_silu(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """silu(gate) * up; (N, F) contiguous, as what is returned."""
    output_NF = torch.empty_like(gate_NF)
    _silu_loop(gate_NF)(bits_of(gate_NF), bits_of(up_NF), 1, bits_of(output_NF))
    return output_NF


def gated_silu_halves(both_NG: Tensor) -> Tensor:
    """As `gated_silu`; (N, 2 F) contiguous, of which the gate is the first half. (N, F)."""
    width = both_NG.shape[1] // 2
    rows, output_NF = bits_of(both_NG.view(-1, width)), both_NG.new_empty(len(both_NG), width)
    _silu_loop(both_NG)(rows, rows, 2, bits_of(output_NF))
    return output_NF


def rotate_(heads_NED: Tensor, num_rotated: int, cos_ND: Tensor, sin_ND: Tensor) -> None:
    """See `kernels.norms`."""
    _rotate_loop(heads_NED)(bits_of(heads_NED), num_rotated, *map(bits_of, (cos_ND, sin_ND)))


def gated_silu_backward(d_output_NF: Tensor, gate_NF: Tensor, up_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the gate and of what it lets through; all (N, F) contiguous."""
    d_gate_NF, d_up_NF = torch.empty_like(gate_NF), torch.empty_like(up_NF)
    _silu_backward_loop(gate_NF)(
        bits_of(d_output_NF), bits_of(gate_NF), bits_of(up_NF), bits_of(d_gate_NF), bits_of(d_up_NF)
    )
    return d_gate_NF, d_up_NF


def softmax_stats(logits_UV: Tensor, temperature_U: Tensor) -> tuple[Tensor, Tensor]:
    """Of softmax(logits / temperature), of contiguous rows and float32 temperatures above 0.

    (U,) float32 logarithms of the sums of the exponentiated quotients, and the means of the quotients they weigh.
    """
    logsum_U, mean_U = torch.empty(2, len(logits_UV), dtype=torch.float32)
    _stats_loop(logits_UV)(bits_of(logits_UV), (1 / temperature_U).numpy(), logsum_U.numpy(), mean_U.numpy())
    return logsum_U, mean_U


def softmax_gradient_(logits_UV: Tensor, temperature_U: Tensor, logsum_U: Tensor, factor_U: Tensor) -> None:
    """Replace logits by probabilities times (U,) factors, given what `softmax_stats` had and its first result."""
    rows = (1 / temperature_U).numpy(), logsum_U.numpy(), factor_U.numpy()
    _probabilities_loop(logits_UV)(bits_of(logits_UV), *rows)


def bits_of(tensor: Tensor) -> np.ndarray:
    """The bits of a tensor, which must be on a CPU and of one of the types of `WORDS`, in the same memory."""
    bits: np.ndarray = tensor.view(WORDS[tensor.dtype]).numpy()
    return bits


def use_threads() -> int:
    """Make numba use as many threads as torch, and say how many that are."""
    _start_threads()
    num_threads: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(num_threads)
    return num_threads


@cache
def _start_threads() -> None:
    """Starting its threads, numba sets OpenMP's number of threads to all cores, for torch as well: put that back."""
    num_threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(num_threads)


# Both are globals: compiled functions in a closure would give the loop another name in numba's cache in every process.
@njit(inline="always", fastmath=FASTMATH)
def power_of_two(exponent):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """2^x to 2e-7, x clamped from below.

    libm's exp is not vectorised and would take longer than all the rest.
    """
    exponent = max(exponent, _LOWEST)
    whole = np.floor(exponent + _HALF)
    f = exponent - whole
    factor = _ONE + f * (_POLY1 + f * (_POLY2 + f * (_POLY3 + f * (_POLY4 + f * _POLY5))))
    return as_float(np.uint32(np.int32(whole + _BIAS) << _MANTISSA_BITS)) * factor


@njit(inline="always", fastmath=FASTMATH)
def widened(word, cut):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """The fp32 whose upper bits these are."""
    return as_float(np.uint32(word) << cut)


@njit(inline="always", fastmath=FASTMATH)
def rounded(value, cut, below_half, last):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """The upper bits of an fp32, rounded to nearest, ties to even: by the constants of `rounding`."""
    word = as_word(value)
    # In 32 bits, so that it is vectorised.
    return np.uint32(np.uint32(word + below_half) + np.uint32((word >> cut) & last)) >> cut


@njit(inline="always", fastmath=FASTMATH)
def ordered(word):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """An int32 that is ordered as the fp32 of these bits is, or these bits again: it is its own inverse.

    A maximum of integers is vectorised, one of floats is not.
    """
    return word ^ ((word >> _SIGN) & _MAGNITUDE)


@njit(inline="always", fastmath=FASTMATH)
def norm_row(hidden_D, weight_D, epsilon, output_D, cut, below_half, last):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the norm of a row; the factor that it was scaled by."""
    width, total = len(hidden_D), np.float32(0)
    for d in range(width):
        total += widened(hidden_D[d], cut) * widened(hidden_D[d], cut)
    scale = _ONE / np.sqrt(total / np.float32(width) + epsilon)
    for d in range(width):
        normed = widened(rounded(widened(hidden_D[d], cut) * scale, cut, below_half, last), cut)
        output_D[d] = rounded(normed * widened(weight_D[d], cut), cut, below_half, last)
    return scale


@njit(inline="always", fastmath=FASTMATH)
def let_through(gate, up, cut, below_half, last):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """silu(gate) * up, of and in words."""
    gate = widened(gate, cut)
    active = gate / (_ONE + power_of_two(min(-gate * LOG2_E, _HIGHEST)))
    active = widened(rounded(active, cut, below_half, last), cut)
    return rounded(active * widened(up, cut), cut, below_half, last)


@njit(inline="always", fastmath=FASTMATH)
def rotate_head(head_D, cos_D, sin_D, cut, below_half, last):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Turn a head in place."""
    half = len(head_D) // 2
    for d in range(half):
        left, right = widened(head_D[d], cut), widened(head_D[d + half], cut)
        left_cos = widened(rounded(left * widened(cos_D[d], cut), cut, below_half, last), cut)
        right_sin = widened(rounded(right * widened(sin_D[d], cut), cut, below_half, last), cut)
        right_cos = widened(rounded(right * widened(cos_D[d + half], cut), cut, below_half, last), cut)
        left_sin = widened(rounded(left * widened(sin_D[d + half], cut), cut, below_half, last), cut)
        head_D[d] = rounded(left_cos - right_sin, cut, below_half, last)
        head_D[d + half] = rounded(right_cos + left_sin, cut, below_half, last)


def rounding(shift: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """How many of the lowest bits `rounded` cuts, and what it adds before."""
    return np.uint32(shift), np.uint32((1 << shift >> 1) - 1 if shift else 0), np.uint32(shift > 0)


LOOPS: list[Callable[[int, bool], Loop]] = []
"""What compiles each of the loops below for the `WORD_SHIFTS` of a type, in parallel or not."""


def _compiled(make: Callable[[np.uint32, np.uint32, np.uint32], Loop]) -> Callable[[Tensor], Loop]:
    """Turn what makes a loop, of the constants of `rounding`, into what picks the compiled one for a tensor."""

    @cache
    def compiled(shift: int, is_parallel: bool) -> Loop:
        return compile_loop(make(*rounding(shift)), parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")

    def pick(tensor: Tensor) -> Loop:
        is_parallel = tensor.numel() > _SERIAL_ELEMENTS and use_threads() > 1
        return compiled(WORD_SHIFTS[tensor.dtype], is_parallel)

    LOOPS.append(compiled)
    return pick


@_compiled
def _norm_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    def norm(hidden_ND, weight_D, epsilon, output_ND, scale_N):  # type: ignore[no-untyped-def]  # pragma: no cover
        for n in prange(len(hidden_ND)):
            scale_N[n] = norm_row(hidden_ND[n], weight_D, epsilon, output_ND[n], cut, below_half, last)

    return norm


@_compiled
def _norm_backward_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    def norm_backward(  # type: ignore[no-untyped-def]
        d_output_ND, hidden_ND, weight_D, scale_N, d_hidden_ND, d_weight_TD
    ):  # pragma: no cover - compiled
        num_rows, width = hidden_ND.shape
        num_threads = d_weight_TD.shape[0]
        for thread in prange(num_threads):
            d_weight_D = d_weight_TD[thread]
            for n in range(num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads):
                scale, along = scale_N[n], np.float32(0)
                for d in range(width):
                    normed = widened(hidden_ND[n, d], cut) * scale
                    d_output = widened(d_output_ND[n, d], cut)
                    d_weight_D[d] += d_output * widened(rounded(normed, cut, below_half, last), cut)
                    along += d_output * widened(weight_D[d], cut) * normed
                along /= np.float32(width)
                for d in range(width):
                    d_normed = widened(d_output_ND[n, d], cut) * widened(weight_D[d], cut)
                    normed = widened(hidden_ND[n, d], cut) * scale
                    d_hidden_ND[n, d] = rounded((d_normed - normed * along) * scale, cut, below_half, last)

    return norm_backward


@_compiled
def _silu_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    def silu(gate_RF, up_RF, step, output_NF):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_rows, width = output_NF.shape
        for n in prange(num_rows):
            gate_F, up_F, output_F = gate_RF[n * step], up_RF[n * step + step - 1], output_NF[n]
            for f in range(width):
                output_F[f] = let_through(gate_F[f], up_F[f], cut, below_half, last)

    return silu


@_compiled
def _silu_backward_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    def silu_backward(  # type: ignore[no-untyped-def]
        d_output_NF, gate_NF, up_NF, d_gate_NF, d_up_NF
    ):  # pragma: no cover - compiled
        num_rows, width = gate_NF.shape
        for n in prange(num_rows):
            for f in range(width):
                d_output, gate = widened(d_output_NF[n, f], cut), widened(gate_NF[n, f], cut)
                sigmoid = _ONE / (_ONE + power_of_two(min(-gate * LOG2_E, _HIGHEST)))
                active = widened(rounded(gate * sigmoid, cut, below_half, last), cut)
                d_active = widened(rounded(d_output * widened(up_NF[n, f], cut), cut, below_half, last), cut)
                d_up_NF[n, f] = rounded(active * d_output, cut, below_half, last)
                slope = sigmoid * (_ONE + gate * (_ONE - sigmoid))
                d_gate_NF[n, f] = rounded(d_active * slope, cut, below_half, last)

    return silu_backward


@_compiled
def _rotate_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    def rotate(heads_NED, num_rotated, cos_ND, sin_ND):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        for n in prange(len(heads_NED)):
            for e in range(num_rotated):
                rotate_head(heads_NED[n, e], cos_ND[n], sin_ND[n], cut, below_half, last)

    return rotate


@_compiled
def _stats_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    block = _VOCABULARY_BLOCK

    def stats(logits_UV, inverse_U, logsum_U, mean_U):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_rows, size = logits_UV.shape
        for u in prange(num_rows):
            largest = LOWEST_ORDERED
            for v in range(size):
                largest = max(largest, ordered(np.int32(np.uint32(logits_UV[u, v]) << cut)))
            highest, inverse = as_float(np.uint32(ordered(largest))), inverse_U[u]
            total = weighed = np.float32(0)
            for start in range(0, size, block):
                some = some_weighed = np.float32(0)
                for v in range(start, min(start + block, size)):
                    logit = (widened(logits_UV[u, v], cut) - highest) * inverse
                    power = power_of_two(logit * LOG2_E)
                    some += power
                    some_weighed += power * logit
                total += some
                weighed += some_weighed
            logsum_U[u] = highest * inverse + np.log(total)
            mean_U[u] = highest * inverse + weighed / total

    return stats


@_compiled
def _probabilities_loop(cut: np.uint32, below_half: np.uint32, last: np.uint32) -> Loop:
    def probabilities(logits_UV, inverse_U, logsum_U, factor_U):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_rows, size = logits_UV.shape
        for u in prange(num_rows):
            inverse, logsum, factor = inverse_U[u], logsum_U[u], factor_U[u]
            for v in range(size):
                power = power_of_two((widened(logits_UV[u, v], cut) * inverse - logsum) * LOG2_E)
                logits_UV[u, v] = rounded(power * factor, cut, below_half, last)

    return probabilities
