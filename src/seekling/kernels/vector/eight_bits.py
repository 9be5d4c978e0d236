"""Linear layers whose weights are integers of eight bits, for CPUs where reading float32 weights bounds decoding.

Each output has a scale: weight = scale * integer, the largest of a row at 127. Inputs are rounded too, a row at a time,
to integers of up to 16 bits: as many levels as keep every sum within 32 bits, 29,000 with 576 inputs. Products of pairs
are then added up exactly, at one to two times the rate of float32 and for a quarter of the bytes, whatever the rows.

Shape letters: P tokens, K inputs, N outputs, B blocks of `COLUMNS` outputs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, prange
from numba.core import cgutils, types
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.vector.intrinsics import as_float, elements, typed_intrinsic
from seekling.kernels.vector.pointwise import FASTMATH, WORD_SHIFTS, bits_of, let_through, rounded, use_threads, widened

COLUMNS = 16
"""Outputs that are computed at once."""
WRITE, ADD, GATE = 0, 1, 2
_ROWS = 4
"""Tokens that share what is read, so that sums and weights stay in a vector unit's 16 registers."""
_ROWS_AT_ONCE = 256
"""Tokens whose inputs stay in the processor's cache while all weights pass."""
_MOST, _LARGEST_SUM = 127, 2**31 - 1
_SMALLEST, _HALF = np.float32(1e-30), np.float32(0.5)
_MAGNITUDE, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)


def quantise(weight_NK: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Round finite weights to int8, flat, and (B * COLUMNS,) float32 scales; outputs beyond N are 0.

    In blocks of `COLUMNS` outputs, in each pair after pair of inputs, of each output two.
    """
    num_outputs, width = weight_NK.shape
    padded_NK = torch.nn.functional.pad(weight_NK.float(), (0, width % 2, 0, -num_outputs % COLUMNS))
    scale_N = padded_NK.abs().amax(1).clamp(min=float(_SMALLEST)) / _MOST
    integers_NK = padded_NK.div_(scale_N[:, None]).round_().to(torch.int8)
    pairs = integers_NK.view(torch.int16).view(-1, COLUMNS, (width + 1) // 2).transpose(1, 2).contiguous()
    return pairs.view(torch.int8).flatten().numpy(), scale_N.numpy()


def product(
    input_PK: Tensor, integers: np.ndarray, scale_N: np.ndarray, bias_N: np.ndarray, output_PN: Tensor, *, adds: bool
) -> None:
    """Write, or add to what is there and round once, a product with what `quantise` made; a bias is float32."""
    loop = _product_loop(ADD if adds else WRITE, WORD_SHIFTS[input_PK.dtype], use_threads() > 1)
    loop(bits_of(input_PK), integers, scale_N, bias_N, bits_of(output_PN))


@cache
def _product_loop(kind: int, shift: int, is_parallel: bool) -> Callable[..., None]:
    cut, at_once = np.uint32(shift), _ROWS_AT_ONCE

    def product(input_PK, integers, scale_N, bias_N, output_PN):  # pragma: no cover - compiled
        num_tokens, width = input_PK.shape
        num_blocks = (output_PN.shape[1] + COLUMNS - 1) // COLUMNS
        level_PK, step_P = np.empty((num_tokens, width + width % 2), np.int16), np.empty(num_tokens, np.float32)
        for n in prange(num_tokens):
            step_P[n] = to_levels(input_PK[n], level_PK[n], cut)
        for first in range(0, num_tokens, at_once):
            last = min(num_tokens, first + at_once)
            for block in prange(num_blocks):
                multiply(level_PK, step_P, first, last, integers, scale_N, bias_N, block, output_PN, kind, shift)

    return compile_loop(product, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


# Globals, as `compile_loop` wants them.
@njit(inline="always", fastmath=FASTMATH)
def to_levels(input_K, level_K, cut):  # pragma: no cover - compiled
    """Round a row to integers, and return what a step of them is worth: NaN if the row has one, which no integer is."""
    width, bits = len(input_K), np.int32(0)
    for k in range(width):
        bits = max(bits, np.int32(np.uint32(input_K[k]) << cut) & _MAGNITUDE)  # ordered as the numbers are, NaN last
    largest = max(as_float(np.uint32(bits)), _SMALLEST) if bits < _INFINITE else as_float(np.uint32(bits))
    most = np.float32(min(32767, _LARGEST_SUM // (_MOST * len(level_K)) - 1))
    factor = most / largest
    for k in range(width):
        level_K[k] = np.int16(np.floor(widened(input_K[k], cut) * factor + _HALF))
    if width < len(level_K):
        level_K[width] = 0
    return largest / most


@njit(inline="always", fastmath=FASTMATH)
def multiply(
    level_PK, step_P, start, stop, integers, scale_N, bias_N, block, output_PN, kind, shift
):  # pragma: no cover
    """A block of outputs of some tokens: WRITE them, ADD them to what is there, or GATE as many others and write these.

    The others lie behind all of the output's columns.
    """
    cut, below_half, last = np.uint32(shift), np.uint32((1 << shift >> 1) - 1 if shift else 0), np.uint32(shift > 0)
    width, num_columns, column = level_PK.shape[1], output_PN.shape[1], block * COLUMNS
    here, ahead, other = block * width * COLUMNS, width * COLUMNS, num_columns // COLUMNS * width * COLUMNS
    sums, other_sums = np.empty((_ROWS, COLUMNS), np.int32), np.empty((_ROWS, COLUMNS), np.int32)
    for first in range(start, stop, _ROWS):
        num_rows = min(_ROWS, stop - first)
        add_up(sums, level_PK, first, num_rows, integers, here, ahead)
        if kind == GATE:
            add_up(other_sums, level_PK, first, num_rows, integers, here + other, ahead)
        for n in range(num_rows):
            step = step_P[first + n]
            output_N = output_PN[first + n]
            for c in range(min(COLUMNS, num_columns - column)):
                value = np.float32(sums[n, c]) * step * scale_N[column + c]
                if bias_N.size > 0:
                    value += bias_N[column + c]
                if kind == GATE:
                    up = np.float32(other_sums[n, c]) * step * scale_N[num_columns + column + c]
                    if bias_N.size > 0:
                        up += bias_N[num_columns + column + c]
                    gate_word, up_word = rounded(value, cut, below_half, last), rounded(up, cut, below_half, last)
                    output_N[column + c] = let_through(gate_word, up_word, cut, below_half, last)
                elif kind == ADD:
                    output_N[column + c] = rounded(value + widened(output_N[column + c], cut), cut, below_half, last)
                else:
                    output_N[column + c] = rounded(value, cut, below_half, last)


@njit(inline="always")
def add_up(sums, level_PK, first, num_rows, integers, here, ahead):  # pragma: no cover
    """Sums of up to `_ROWS` tokens."""
    width = level_PK.shape[1]
    if num_rows == 4:
        _four(sums, level_PK, first * width, width, integers, here, ahead)
    elif num_rows == 3:
        _three(sums, level_PK, first * width, width, integers, here, ahead)
    elif num_rows == 2:
        _two(sums, level_PK, first * width, width, integers, here, ahead)
    else:
        _one(sums, level_PK, first * width, width, integers, here, ahead)


def _adder(num_rows: int) -> Callable[..., Any]:
    """An intrinsic that multiplies rows of levels with a block of integers, and asks for another block meanwhile."""

    def define(typing, sums, levels, start, width, integers, here, ahead):
        def generate(context, builder, signature, arguments):
            _add_rows(context, builder, signature, arguments, num_rows)
            return context.get_dummy_value()

        number = types.intp
        return types.void(sums, levels, number, number, integers, number, number), generate

    define.__name__ = f"add_{num_rows}_rows"
    return typed_intrinsic(define)


_WORD, _PLACE, _BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8)
_SUMS, _WIDE = ir.VectorType(_WORD, COLUMNS), ir.VectorType(_WORD, 2 * COLUMNS)
_SHORTS, _BYTES = ir.VectorType(ir.IntType(16), 2 * COLUMNS), ir.VectorType(_BYTE, 2 * COLUMNS)


def _add_rows(context, builder, signature, arguments, num_rows: int) -> None:
    """Vectors of fixed sizes, in LLVM's terms: a processor with longer registers uses them, one with shorter splits."""
    to, levels, integers = (elements(context, builder, signature.args[n], arguments[n]) for n in (0, 1, 4))
    start, width, here, ahead = (arguments[n] for n in (2, 3, 5, 6))
    totals = [cgutils.alloca_once_value(builder, ir.Constant(_SUMS, None)) for _ in range(num_rows)]
    rows = [builder.gep(levels, [builder.add(start, builder.mul(width, _PLACE(n)))]) for n in range(num_rows)]
    with cgutils.for_range_slice(builder, _PLACE(0), width, _PLACE(2), _PLACE) as (k, _):
        place = builder.gep(integers, [builder.add(here, builder.mul(k, _PLACE(COLUMNS)))])
        _prefetch(builder, builder.gep(place, [ahead]))
        right = builder.load(builder.bitcast(place, _BYTES.as_pointer()), align=1)
        right = builder.sext(builder.sext(right, _SHORTS), _WIDE)
        for row, total in zip(rows, totals, strict=True):
            pair = builder.load(builder.bitcast(builder.gep(row, [k]), _WORD.as_pointer()), align=2)
            left = builder.insert_element(ir.Constant(_SUMS, ir.Undefined), pair, _WORD(0))
            left = builder.sext(builder.bitcast(_picked(builder, left, [0] * COLUMNS), _SHORTS), _WIDE)
            both = builder.mul(left, right)
            even, odd = (_picked(builder, both, range(side, 2 * COLUMNS, 2)) for side in (0, 1))
            builder.store(builder.add(builder.load(total), builder.add(even, odd)), total)
    for n, total in enumerate(totals):
        place = builder.bitcast(builder.gep(to, [_PLACE(n * COLUMNS)]), _SUMS.as_pointer())
        builder.store(builder.load(total), place, align=4)


def _picked(builder, vector: ir.Value, places: Sequence[int]) -> ir.Value:
    mask = ir.Constant(ir.VectorType(_WORD, len(places)), list(places))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _prefetch(builder, place: ir.Value) -> None:
    call = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _WORD, _WORD, _WORD])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE.as_pointer()], call)
    builder.call(function, [place, _WORD(0), _WORD(3), _WORD(1)])


_one, _two, _three, _four = (_adder(num_rows) for num_rows in range(1, _ROWS + 1))
