"""Products of a few tokens with packed weights, on CPUs with tiles.

oneDNN's own read the weights of a decode step at two thirds of the rate at which memory gives them. Here two blocks of
columns are read at a time and asked for ahead of time; nothing else is slow with so few rows. The weights are oneDNN's,
so that its kernels take many tokens: 32 columns after 32 columns, in each pairs of inputs, as tiles read them. A sum's
order does not depend on how many tokens there are.

Shape letters: P tokens, K inputs, N outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.amx.tiles import (
    SIDE,
    TILE_ROWS,
    add_product,
    add_stripe,
    clear_sums,
    start_tiles,
    stop_tiles,
    store_stripe,
    store_sums,
)
from seekling.kernels.vector.intrinsics import fetch
from seekling.kernels.vector.pointwise import (
    FASTMATH,
    WORD_SHIFTS,
    bits_of,
    let_through,
    rounded,
    rounding,
    use_threads,
    widened,
)

FEW_TOKENS = 64
"""With more, oneDNN's products are as fast: they compute for longer than they read."""
STRIPE = 2 * SIDE
"""Columns that `multiply` makes."""
WRITE, ADD, GATE = 0, 1, 2
_AHEAD = 1024
"""Words between what is multiplied and what is asked for."""
_SHIFT, _BELOW_HALF, _ = rounding(WORD_SHIFTS[torch.bfloat16])


def words_of(packed: Tensor, weight_NK: Tensor) -> np.ndarray | None:
    """The words of weights that oneDNN has packed, in its memory; None where they do not lie as `multiply` reads them.

    Args:
        packed: opaque; must outlive what is returned.
        weight_NK: the plain bfloat16 weights, contiguous.
    """
    num_columns, width = weight_NK.shape
    num_blocks = -(-num_columns // SIDE)
    if weight_NK.dtype != torch.bfloat16 or width % SIDE:
        return None
    try:
        address, num_bytes = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    except AttributeError:  # a torch that does not tell
        return None
    if num_bytes != 2 * num_blocks * SIDE * width:
        return None
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32))
    words: np.ndarray = np.ctypeslib.as_array(pointer, (num_bytes // 4,))
    is_telling = False
    for block in (0, num_blocks // 2, num_blocks - 1):
        part_NK = weight_NK[block * SIDE : (block + 1) * SIDE]
        expected = F.pad(part_NK, (0, 0, 0, SIDE - len(part_NK))).view(torch.uint32).numpy().T.reshape(-1)
        if not np.array_equal(words[block * expected.size :][: expected.size], expected):
            return None
        is_telling |= bool(expected.min() < expected.max())  # constants lie the same whichever way
    return words if is_telling else None


def product(input_PK: Tensor, words: np.ndarray, bias_N: np.ndarray, output_PN: Tensor, *, adds: bool = False) -> None:
    """Write, or add, a product of a few rows, any number.

    Args:
        input_PK: bfloat16, contiguous.
        words: of `words_of`.
        bias_N: words of bfloat16, or none.
        output_PN: bfloat16, contiguous; written to.
        adds: to what is there; the sum is rounded once.
    """
    num_tokens = len(input_PK)
    if num_tokens > TILE_ROWS:  # whole tiles are read
        input_PK = F.pad(input_PK, (0, 0, 0, -num_tokens % SIDE))
    loop = _product_loop(ADD if adds else WRITE, use_threads() > 1)
    loop(num_tokens, bits_of(input_PK), words, bias_N, bits_of(output_PN))


@cache
def _product_loop(kind: int, is_parallel: bool) -> Callable[..., None]:
    def product(num_tokens, left_PK, words, bias_N, output_PN):  # type: ignore[no-untyped-def]  # pragma: no cover
        num_columns = output_PN.shape[1]
        for stripe in prange((num_columns + STRIPE - 1) // STRIPE):
            multiply(left_PK, left_PK.shape[1], num_tokens, words, bias_N, stripe, num_columns, output_PN, kind)

    return compile_loop(product, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")


# A global, as `compile_loop` wants it.
@njit(inline="always", fastmath=FASTMATH)
def multiply(left_PK, width, num_tokens, words, bias_N, stripe, num_columns, output_PN, kind):  # type: ignore[no-untyped-def]  # pragma: no cover
    """64 columns of a product: WRITE them, ADD them to what is there, or write 32 that GATE the other 32."""
    cut, below_half, last = np.uint32(_SHIFT), np.uint32(_BELOW_HALF), np.uint32(1)
    block = width * TILE_ROWS  # words of 32 columns
    if kind == GATE:
        start, gap, first_column, other_column = stripe * block, num_columns // SIDE * block, stripe * SIDE, num_columns
        num_here = SIDE
    else:
        start, first_column, other_column = 2 * stripe * block, stripe * STRIPE, 0
        num_here = min(STRIPE, num_columns - first_column)
        gap = block if num_here > SIDE else 0
    sums = np.empty((SIDE, STRIPE), np.float32)
    start_tiles(min(num_tokens, TILE_ROWS))
    for first in range(0, num_tokens, SIDE):
        num_rows = min(SIDE, num_tokens - first)
        if num_rows <= TILE_ROWS:
            clear_sums()
            for k in range(0, width, SIDE):
                here = start + k * TILE_ROWS
                fetch(words, here + _AHEAD, SIDE * TILE_ROWS)
                fetch(words, here + gap + _AHEAD, SIDE * TILE_ROWS)
                add_stripe(left_PK, first * width + k, 2 * width, words, here, gap, 4 * SIDE)
            store_stripe(sums, 0, 4 * STRIPE)
        else:
            for half in range(2):
                clear_sums()
                for k in range(0, width, SIDE):
                    here = start + half * gap + k * TILE_ROWS
                    fetch(words, here + _AHEAD, SIDE * TILE_ROWS)
                    add_product(left_PK, first * width + k, 2 * width, words, here, 4 * SIDE)
                store_sums(sums, half * SIDE, 4 * STRIPE)
        if bias_N.size > 0:
            for n in range(num_rows):
                for c in range(num_here):
                    sums[n, c] += widened(bias_N[first_column + c], cut)
                if kind == GATE:
                    for c in range(SIDE):
                        sums[n, SIDE + c] += widened(bias_N[other_column + first_column + c], cut)
        for n in range(num_rows):
            for c in range(num_here):
                if kind == GATE:
                    gate = rounded(sums[n, c], cut, below_half, last)
                    up = rounded(sums[n, SIDE + c], cut, below_half, last)
                    output_PN[first + n, first_column + c] = let_through(gate, up, cut, below_half, last)
                elif kind == ADD:
                    total = sums[n, c] + widened(output_PN[first + n, first_column + c], cut)
                    output_PN[first + n, first_column + c] = rounded(total, cut, below_half, last)
                else:
                    output_PN[first + n, first_column + c] = rounded(sums[n, c], cut, below_half, last)
    stop_tiles()
