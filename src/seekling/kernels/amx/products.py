"""Products of a few tokens with packed weights, on CPUs with tiles.

oneDNN's own read the weights of a decode step at two thirds of the rate at which memory gives them. Here two blocks of
columns are read at a time and asked for ahead of time; nothing else is slow with so few rows. Many tokens are left to
oneDNN, which has the weights in its own layout beside these words. A sum's order does not depend on how many there are.

Shape letters: P tokens, K inputs, N outputs.
"""

from __future__ import annotations

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


def words_of(weight_NK: Tensor) -> np.ndarray | None:
    """Weights as `multiply` reads them: 32 outputs after 32 outputs, in each pair after pair of inputs, of each all 32.

    None of weights that it does not take: other types than bfloat16, or inputs that do not fill whole steps.
    """
    width = weight_NK.shape[1]
    if weight_NK.dtype != torch.bfloat16 or width % SIDE:
        return None
    pairs = F.pad(weight_NK, (0, 0, 0, -len(weight_NK) % SIDE)).view(torch.uint32)
    words: np.ndarray = pairs.view(-1, SIDE, width // 2).transpose(1, 2).contiguous().flatten().numpy()
    return words


def product(input_PK: Tensor, words: np.ndarray, bias_N: np.ndarray, output_PN: Tensor, *, adds: bool = False) -> None:
    """Write, or add to what is there and round once, a product of a few contiguous bfloat16 rows, any number.

    `words` are of `words_of`, the bias words of bfloat16, or none.
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
