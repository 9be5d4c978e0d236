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

WORD_SHIFTS = {torch.bfloat16: 16, torch.float32: 0}
"""Types that the loops read: their bits, shifted left by so many, are those of an fp32."""
WORDS = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32}
# Without "nnan": a NaN of damaged weights must reach the logits, where it is noticed.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
LOG2_E = np.float32(1.4426950408889634)
_ONE, _HALF, _BIAS, _LOWEST, _MANTISSA_BITS = (
    np.float32(1),
    np.float32(0.5),
    np.float32(127),
    np.float32(-125),
    np.int32(23),
)
_POLY1, _POLY2, _POLY3 = np.float32(0.693147182), np.float32(0.240226462), np.float32(0.0555033415)
_POLY4, _POLY5 = np.float32(0.00961817028), np.float32(0.00133999444)
_HIGHEST, _SIGN, _MAGNITUDE = np.float32(126), np.int32(31), np.int32(0x7FFFFFFF)
LOWEST_ORDERED = ~_MAGNITUDE
"""Below all that `ordered` returns."""
_VOCABULARY_BLOCK = 2048
"""Logits that are worked on at a time: they stay in the first cache."""
_SERIAL_ELEMENTS = 1 << 16
"""Below this, starting threads takes longer than the loop."""


def can_loop(*tensors: Tensor) -> bool:
    """Whether the loops take these tensors, of one type on a CPU."""
    return all(each.device.type == "cpu" for each in tensors) and (
        {each.dtype for each in tensors} in ({torch.bfloat16}, {torch.float32})
    )


def rms_norm(hidden_ND: Tensor, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Root mean square norm.

    Args:
        hidden_ND: (N, D), contiguous.
        weight_D: of the same type.
        epsilon: added to the mean square.

    Returns:
        (N, D) of the same type, and (N,) float32 factors that the rows were scaled by.
    """
    output_ND, scale_N = torch.empty_like(hidden_ND), torch.empty(len(hidden_ND), dtype=torch.float32)
    _loop("norm", hidden_ND)(
        _words(hidden_ND), weight_D.float().numpy(), np.float32(epsilon), _words(output_ND), scale_N.numpy()
    )
    return output_ND, scale_N


def rms_norm_backward(
    d_output_ND: Tensor, hidden_ND: Tensor, weight_D: Tensor, scale_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of a norm's input, in its type, and of its weight, in float32; all (N, D) contiguous."""
    d_hidden_ND = torch.empty_like(hidden_ND)
    d_weight_TD = torch.zeros(use_threads(), hidden_ND.shape[1], dtype=torch.float32)
    _loop("norm_backward", hidden_ND)(
        _words(d_output_ND),
        _words(hidden_ND),
        weight_D.float().numpy(),
        scale_N.numpy(),
        _words(d_hidden_ND),
        d_weight_TD.numpy(),
    )
    return d_hidden_ND, d_weight_TD.sum(0)


def gated_silu(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """silu(gate) * up; (N, F) contiguous, as what is returned."""
    output_NF = torch.empty_like(gate_NF)
    _loop("silu", gate_NF)(_words(gate_NF), _words(up_NF), _words(output_NF))
    return output_NF


def gated_silu_backward(d_output_NF: Tensor, gate_NF: Tensor, up_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the gate and of what it lets through; all (N, F) contiguous."""
    d_gate_NF, d_up_NF = torch.empty_like(gate_NF), torch.empty_like(up_NF)
    _loop("silu_backward", gate_NF)(
        _words(d_output_NF), _words(gate_NF), _words(up_NF), _words(d_gate_NF), _words(d_up_NF)
    )
    return d_gate_NF, d_up_NF


def softmax_stats(logits_UV: Tensor) -> tuple[Tensor, Tensor]:
    """(U,) float32 logarithms of the sums of the exponentiated logits, and the means of the logits they weigh."""
    if not can_loop(logits_UV):
        wide_UV = logits_UV.float()
        logsum_U = torch.logsumexp(wide_UV, -1)
        return logsum_U, ((wide_UV - logsum_U[:, None]).exp_() * wide_UV).sum(-1)
    logsum_U, mean_U = torch.empty(2, len(logits_UV), dtype=torch.float32)
    _loop("stats", logits_UV)(_words(logits_UV), logsum_U.numpy(), mean_U.numpy())
    return logsum_U, mean_U


def softmax_gradient_(logits_UV: Tensor, logsum_U: Tensor, factor_U: Tensor) -> None:
    """Replace logits by their probabilities, times a factor for each row.

    Args:
        logits_UV: (U, V), contiguous.
        logsum_U: (U,) float32, as `softmax_stats` returns it.
        factor_U: (U,) float32.
    """
    if not can_loop(logits_UV):
        logits_UV.copy_((logits_UV.float() - logsum_U[:, None]).exp_().mul_(factor_U[:, None]))
        return
    _loop("probabilities", logits_UV)(_words(logits_UV), logsum_U.numpy(), factor_U.numpy())


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
def split_power(exponent):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Split 2^x, x clamped from below: bits of an fp32 power of two, and a factor.

    libm's exp is not vectorised and would take longer than all the rest. To 2e-7.
    """
    exponent = max(exponent, _LOWEST)
    whole = np.floor(exponent + _HALF)
    f = exponent - whole
    factor = _ONE + f * (_POLY1 + f * (_POLY2 + f * (_POLY3 + f * (_POLY4 + f * _POLY5))))
    return np.int32(whole + _BIAS) << _MANTISSA_BITS, factor


@njit(inline="always", fastmath=FASTMATH)
def rounded(word, cut, below_half, last):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Round the bits of an fp32 to nearest, ties to even, and cut the lowest: by the constants of `rounding`."""
    # In 32 bits, so that it is vectorised.
    return np.uint32(np.uint32(word + below_half) + np.uint32((word >> cut) & last)) >> cut


@njit(inline="always", fastmath=FASTMATH)
def ordered(word):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """An int32 that is ordered as the fp32 of these bits is, or these bits again: it is its own inverse.

    A maximum of integers is vectorised, one of floats is not.
    """
    return word ^ ((word >> _SIGN) & _MAGNITUDE)


def rounding(shift: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """How many of the lowest bits `rounded` cuts, and what it adds before."""
    return np.uint32(shift), np.uint32((1 << shift >> 1) - 1 if shift else 0), np.uint32(shift > 0)


def _words(tensor: Tensor) -> np.ndarray:
    words: np.ndarray = tensor.view(WORDS[tensor.dtype]).numpy()
    return words


def _loop(name: str, tensor: Tensor) -> Callable[..., None]:
    is_parallel = tensor.numel() > _SERIAL_ELEMENTS and use_threads() > 1
    return _LOOPS[name](WORD_SHIFTS[tensor.dtype], is_parallel)


@cache
def _norm_loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, below_half, last = rounding(shift)

    def norm(hidden_ND, weight_D, epsilon, output_ND, scale_N):  # type: ignore[no-untyped-def]  # pragma: no cover
        num_rows, width = hidden_ND.shape
        for n in prange(num_rows):
            words = np.empty(width, np.uint32)
            row = words.view(np.float32)
            total = np.float32(0)
            for d in range(width):
                words[d] = np.uint32(hidden_ND[n, d]) << cut
            for d in range(width):
                total += row[d] * row[d]
            scale = _ONE / np.sqrt(total / np.float32(width) + epsilon)
            scale_N[n] = scale
            for d in range(width):
                row[d] *= scale
            for d in range(width):
                words[d] = rounded(words[d], cut, below_half, last) << cut
            for d in range(width):
                row[d] *= weight_D[d]
            for d in range(width):
                output_ND[n, d] = rounded(words[d], cut, below_half, last)

    return compile_loop(norm, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


@cache
def _norm_backward_loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, below_half, last = rounding(shift)

    def norm_backward(  # type: ignore[no-untyped-def]
        d_output_ND, hidden_ND, weight_D, scale_N, d_hidden_ND, d_weight_TD
    ):  # pragma: no cover - compiled
        num_rows, width = hidden_ND.shape
        num_threads = d_weight_TD.shape[0]
        for thread in prange(num_threads):
            d_weight_D = d_weight_TD[thread]
            d_words, words, whole = np.empty(width, np.uint32), np.empty(width, np.uint32), np.empty(width, np.uint32)
            d_row, row, normed = d_words.view(np.float32), words.view(np.float32), whole.view(np.float32)
            for n in range(num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads):
                scale = scale_N[n]
                for d in range(width):
                    d_words[d] = np.uint32(d_output_ND[n, d]) << cut
                    words[d] = np.uint32(hidden_ND[n, d]) << cut
                for d in range(width):
                    normed[d] = row[d] * scale
                for d in range(width):
                    words[d] = rounded(whole[d], cut, below_half, last) << cut
                along = np.float32(0)
                for d in range(width):
                    d_weight_D[d] += d_row[d] * row[d]
                    d_row[d] *= weight_D[d]
                    along += d_row[d] * normed[d]
                along /= np.float32(width)
                for d in range(width):
                    d_row[d] = (d_row[d] - normed[d] * along) * scale
                for d in range(width):
                    d_hidden_ND[n, d] = rounded(d_words[d], cut, below_half, last)

    return compile_loop(norm_backward, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


@cache
def _silu_loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, below_half, last = rounding(shift)

    def silu(gate_NF, up_NF, output_NF):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_rows, width = gate_NF.shape
        for n in prange(num_rows):
            gate_words, up_words, bits = (
                np.empty(width, np.uint32),
                np.empty(width, np.uint32),
                np.empty(width, np.int32),
            )
            gate, up, powers = gate_words.view(np.float32), up_words.view(np.float32), bits.view(np.float32)
            factors = np.empty(width, np.float32)
            for f in range(width):
                gate_words[f] = np.uint32(gate_NF[n, f]) << cut
                up_words[f] = np.uint32(up_NF[n, f]) << cut
            for f in range(width):
                bits[f], factors[f] = split_power(min(-gate[f] * LOG2_E, _HIGHEST))
            for f in range(width):
                gate[f] /= _ONE + powers[f] * factors[f]
            for f in range(width):
                gate_words[f] = rounded(gate_words[f], cut, below_half, last) << cut
            for f in range(width):
                gate[f] *= up[f]
            for f in range(width):
                output_NF[n, f] = rounded(gate_words[f], cut, below_half, last)

    return compile_loop(silu, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


@cache
def _silu_backward_loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, below_half, last = rounding(shift)

    def silu_backward(  # type: ignore[no-untyped-def]
        d_output_NF, gate_NF, up_NF, d_gate_NF, d_up_NF
    ):  # pragma: no cover - compiled
        num_rows, width = gate_NF.shape
        for n in prange(num_rows):
            d_words, gate_words = np.empty(width, np.uint32), np.empty(width, np.uint32)
            up_words, bits = np.empty(width, np.uint32), np.empty(width, np.int32)
            active_words = np.empty(width, np.uint32)
            d_row, gate = d_words.view(np.float32), gate_words.view(np.float32)
            up, powers, active = up_words.view(np.float32), bits.view(np.float32), active_words.view(np.float32)
            factors = np.empty(width, np.float32)
            for f in range(width):
                d_words[f] = np.uint32(d_output_NF[n, f]) << cut
                gate_words[f] = np.uint32(gate_NF[n, f]) << cut
                up_words[f] = np.uint32(up_NF[n, f]) << cut
            for f in range(width):
                bits[f], factors[f] = split_power(min(-gate[f] * LOG2_E, _HIGHEST))
            for f in range(width):
                factors[f] = _ONE / (_ONE + powers[f] * factors[f])  # the sigmoid
                active[f] = gate[f] * factors[f]
            for f in range(width):
                active_words[f] = rounded(active_words[f], cut, below_half, last) << cut
            for f in range(width):
                active[f] *= d_row[f]
                d_row[f] *= up[f]
            for f in range(width):
                d_words[f] = rounded(d_words[f], cut, below_half, last) << cut
            for f in range(width):
                d_row[f] *= factors[f] * (_ONE + gate[f] * (_ONE - factors[f]))
            for f in range(width):
                d_up_NF[n, f] = rounded(active_words[f], cut, below_half, last)
                d_gate_NF[n, f] = rounded(d_words[f], cut, below_half, last)

    return compile_loop(silu_backward, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


@cache
def _stats_loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, block = np.uint32(shift), _VOCABULARY_BLOCK

    def stats(logits_UV, logsum_U, mean_U):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_rows, size = logits_UV.shape
        for u in prange(num_rows):
            words, bits = np.empty(block, np.uint32), np.empty(block, np.int32)
            logits, signed, powers = words.view(np.float32), words.view(np.int32), bits.view(np.float32)
            factors, top = np.empty(block, np.float32), np.empty(1, np.int32)
            largest = LOWEST_ORDERED
            for start in range(0, size, block):
                width = min(block, size - start)
                for v in range(width):
                    words[v] = np.uint32(logits_UV[u, start + v]) << cut
                for v in range(width):
                    largest = max(largest, ordered(signed[v]))
            top[0] = ordered(largest)
            highest = top.view(np.float32)[0]
            total = weighed = np.float32(0)
            for start in range(0, size, block):
                width = min(block, size - start)
                for v in range(width):
                    words[v] = np.uint32(logits_UV[u, start + v]) << cut
                for v in range(width):
                    logits[v] -= highest
                for v in range(width):
                    bits[v], factors[v] = split_power(logits[v] * LOG2_E)
                some = some_weighed = np.float32(0)
                for v in range(width):
                    power = powers[v] * factors[v]
                    some += power
                    some_weighed += power * logits[v]
                total += some
                weighed += some_weighed
            logsum_U[u] = highest + np.log(total)
            mean_U[u] = highest + weighed / total

    return compile_loop(stats, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


@cache
def _probabilities_loop(shift: int, is_parallel: bool) -> Callable[..., None]:
    (cut, below_half, last), block = rounding(shift), _VOCABULARY_BLOCK

    def probabilities(logits_UV, logsum_U, factor_U):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_rows, size = logits_UV.shape
        for u in prange(num_rows):
            words, bits = np.empty(block, np.uint32), np.empty(block, np.int32)
            logits, powers = words.view(np.float32), bits.view(np.float32)
            logsum, factor = logsum_U[u], factor_U[u]
            for start in range(0, size, block):
                width = min(block, size - start)
                for v in range(width):
                    words[v] = np.uint32(logits_UV[u, start + v]) << cut
                for v in range(width):
                    bits[v], logits[v] = split_power((logits[v] - logsum) * LOG2_E)
                for v in range(width):
                    logits[v] *= powers[v] * factor
                for v in range(width):
                    logits_UV[u, start + v] = rounded(words[v], cut, below_half, last)

    return compile_loop(probabilities, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


_LOOPS: dict[str, Callable[[int, bool], Callable[..., None]]] = {
    "norm": _norm_loop,
    "norm_backward": _norm_backward_loop,
    "silu": _silu_loop,
    "silu_backward": _silu_backward_loop,
    "stats": _stats_loop,
    "probabilities": _probabilities_loop,
}
