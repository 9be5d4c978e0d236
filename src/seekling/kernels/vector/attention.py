"""Attention loops for CPUs, compiled at first use: decode attention, and the gradient of a softmax.

In decode attention every row reads its own tokens' keys and values, and no others. Batched attention calls pad all rows
to the longest context and the widest draft, and spend most of their time in small matrix products' overhead. Here an
item is one key/value head of one row, three queries at a time share what is read, and sums are fp32.

Shape letters: S slots, R decode rows (of the softmax: queries that share a key/value head), P decode tokens of all
rows, H query heads, C key/value heads, L slot length, B blocks of a slot, K keys of a block or tile, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.memory import STEP
from seekling.kernels.vector.intrinsics import as_float, as_word, fetch
from seekling.kernels.vector.pointwise import (
    FASTMATH,
    LOG2_E,
    LOWEST_ORDERED,
    WORD_SHIFTS,
    WORDS,
    ordered,
    power_of_two,
    rounded,
    rounding,
    use_threads,
    widened,
)


@cache
def row_loop(shift: int, head_dim: int, group: int) -> Callable[..., None]:
    """The loop of decode rows for one type, head dimension and number of query heads per key/value head.

    It takes (P, H, D) queries, (P, C, D) new keys and values, the slots' (S, C, B, D, K) keys and (S, C, L, D) values,
    both written to, `DecodeRows.places`, the factor on the scores, and (P, H, D), which it writes. Token w of a row
    sees the first `past + w + 1` of its slot; of these, `shared` are read from its leader's.
    """
    (cut, below_half, last), step = rounding(shift), STEP

    def attend(  # type: ignore[no-untyped-def]
        query_PHD, key_PCD, value_PCD, keys_SCBDK, values_SCLD, order_R, parts_I, slots_R, starts_R, pasts_R,
        widths_R, leaders_R, shared_R, scaling, output_PHD,
    ):  # fmt: skip # pragma: no cover - compiled
        num_kv_heads = keys_SCBDK.shape[1]
        for item in prange(order_R.shape[0] * num_kv_heads):
            attend_row(
                query_PHD, key_PCD, value_PCD, 0, 0, keys_SCBDK, values_SCLD, order_R[item // num_kv_heads],
                item % num_kv_heads, slots_R, starts_R, pasts_R, widths_R, leaders_R, shared_R, scaling, head_dim,
                group, step, cut, below_half, last, output_PHD,
            )  # fmt: skip

    return compile_loop(attend, parallel=True, fastmath=FASTMATH, error_model="numpy")


# Globals, as `compile_loop` wants them.
@njit(inline="always", fastmath=FASTMATH)
def attend_row(  # type: ignore[no-untyped-def]
    query_PHD, key_PED, value_PED, key_at, value_at, keys_SCBDK, values_SCLD, row, head, slots_R, starts_R, pasts_R,
    widths_R, leaders_R, shared_R, scaling, head_dim, group, step, cut, below_half, last, output_PHD,
):  # fmt: skip # pragma: no cover - compiled
    """One key/value head of one row; its new keys and values are at `key_at` + head and `value_at` + head."""
    start, past, width = starts_R[row], pasts_R[row], widths_R[row]
    keys_BDK, values_LD = keys_SCBDK[slots_R[row], head], values_SCLD[slots_R[row], head]
    head_keys_BDK, head_values_LD = keys_SCBDK[leaders_R[row], head], values_SCLD[leaders_R[row], head]
    end, num_queries, shared = past + width, width * group, shared_R[row]
    for w in range(width):
        block, place = (past + w) // step, (past + w) % step
        for d in range(head_dim):
            keys_BDK[block, d, place] = key_PED[start + w, key_at + head, d]
            values_LD[past + w, d] = value_PED[start + w, value_at + head, d]
    query = np.empty((num_queries, head_dim), np.float32)
    for each in range(num_queries):
        for d in range(head_dim):
            word = query_PHD[start + each // group, head * group + each % group, d]
            query[each, d] = widened(word, cut) * scaling * LOG2_E
    num_blocks = (end + step - 1) // step
    padded = num_blocks * step
    scores = np.zeros((num_queries, padded), np.float32)
    for b in range(num_blocks):
        first = b * step
        block_keys_BDK = head_keys_BDK if first < shared else keys_BDK
        block_scores, ahead = scores[:, first : first + step], (b + 1) * head_dim * step
        for each in range(0, num_queries - 2, 3):
            add_three(query, each, block_keys_BDK[b], 0, head_dim, cut, step, block_keys_BDK, ahead, block_scores)
        for each in range(num_queries // 3 * 3, num_queries):
            add_one(query, each, block_keys_BDK[b], 0, head_dim, cut, step, block_scores)
    fetch(head_values_LD if shared > 0 else values_LD, 0, head_dim * step)
    for each in range(num_queries):
        seen = past + 1 + each // group
        largest = LOWEST_ORDERED
        for place in range(seen):
            largest = max(largest, ordered(np.int32(as_word(scores[each, place]))))
        highest, total = as_float(np.uint32(ordered(largest))), np.float32(0)
        for place in range(seen):
            scores[each, place] = power_of_two(scores[each, place] - highest)
            total += scores[each, place]
        share = np.float32(1) / total
        for place in range(seen):
            scores[each, place] *= share
        for place in range(seen, padded):
            scores[each, place] = 0
    output = np.zeros((num_queries, head_dim), np.float32)
    for first in range(0, end, step):
        last_value = min(first + step, end)
        block_values_LD = head_values_LD if first < shared else values_LD
        for each in range(0, num_queries - 2, 3):
            add_three(
                scores, each, block_values_LD, first, last_value, cut, head_dim, block_values_LD, step * head_dim,
                output,
            )  # fmt: skip
        for each in range(num_queries // 3 * 3, num_queries):
            add_one(scores, each, block_values_LD, first, last_value, cut, head_dim, output)
    for each in range(num_queries):
        for d in range(head_dim):
            word = rounded(output[each, d], cut, below_half, last)
            output_PHD[start + each // group, head * group + each % group, d] = word


# Three queries at a time share what is read; sums stay in registers for four dimensions or tokens.
@njit(inline="always", fastmath=FASTMATH)
def add_three(weights, each, rows_NW, start, stop, cut, width, ahead, begins, totals):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add rows from `start` to `stop`, weighed, to the totals of a query and the two behind it.

    Meanwhile rows of the array `ahead` are asked for, the first of which would be at `begins`.
    """
    x, y, z = totals[each], totals[each + 1], totals[each + 2]
    for n in range(start, stop - 3, 4):
        if each == 0:
            fetch(ahead, begins + n * width, 4 * width)
        a0, a1, a2, a3 = weights[each, n], weights[each, n + 1], weights[each, n + 2], weights[each, n + 3]
        b0, b1 = weights[each + 1, n], weights[each + 1, n + 1]
        b2, b3 = weights[each + 1, n + 2], weights[each + 1, n + 3]
        c0, c1 = weights[each + 2, n], weights[each + 2, n + 1]
        c2, c3 = weights[each + 2, n + 2], weights[each + 2, n + 3]
        w0, w1, w2, w3 = rows_NW[n], rows_NW[n + 1], rows_NW[n + 2], rows_NW[n + 3]
        for w in range(width):
            x0, x1 = widened(w0[w], cut), widened(w1[w], cut)
            x2, x3 = widened(w2[w], cut), widened(w3[w], cut)
            x[w] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
            y[w] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            z[w] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
    for place in range(3):
        add_one(weights, each + place, rows_NW, start + (stop - start) // 4 * 4, stop, cut, width, totals)


@njit(inline="always", fastmath=FASTMATH)
def add_one(weights, each, rows_NW, start, stop, cut, width, totals):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The same of one query."""
    total = totals[each]
    for n in range(start, stop):
        weight, row = weights[each, n], rows_NW[n]
        for w in range(width):
            total[w] += weight * widened(row[w], cut)


def differentiate_softmax(
    scores_CRK: Tensor,
    d_weights_CRK: Tensor,
    logsum_CR: Tensor,
    delta_CR: Tensor,
    *,
    num_queries: int,
    num_before: int,
    scaling: float,
) -> None:
    """Replace products of queries and keys by attention weights, and the weights' gradients by those of the products.

    `logsum_CR` are float32 logarithms of the sums of the exponentiated scores over each query's whole path, `delta_CR`
    inner products of each query's output with its gradient. Of `num_queries` of each head among the R, query b sees the
    first `num_before + b + 1` of the K keys; `num_before` may be negative.
    """
    num_threads, words = use_threads(), WORDS[scores_CRK.dtype]
    _softmax_kernel(WORD_SHIFTS[scores_CRK.dtype])(
        scores_CRK.view(words).flatten(0, -2).numpy(),
        d_weights_CRK.view(words).flatten(0, -2).numpy(),
        logsum_CR.flatten().numpy(),
        delta_CR.flatten().numpy(),
        num_queries,
        num_before,
        np.float32(scaling),
        num_threads,
    )


@cache
def _softmax_kernel(shift: int) -> Callable[..., None]:
    """The compiled loop for words that are the upper bits of an fp32, without the lowest `shift`."""
    cut, below_half, last = rounding(shift)

    def differentiate(  # type: ignore[no-untyped-def]
        scores_NK, d_weights_NK, logsum_N, delta_N, num_queries, num_before, scaling, num_threads
    ):  # pragma: no cover - compiled
        num_rows, num_keys = scores_NK.shape
        for thread in prange(num_threads):
            factor = scaling * LOG2_E
            for n in range(num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads):
                scores_K, d_weights_K, delta, logsum = scores_NK[n], d_weights_NK[n], delta_N[n], logsum_N[n] * LOG2_E
                seen = min(max(num_before + n % num_queries + 1, 0), num_keys)
                for k in range(seen):
                    weight = power_of_two(widened(scores_K[k], cut) * factor - logsum)
                    d_score = weight * (widened(d_weights_K[k], cut) - delta) * scaling
                    scores_K[k] = rounded(weight, cut, below_half, last)
                    d_weights_K[k] = rounded(d_score, cut, below_half, last)
                for k in range(seen, num_keys):
                    scores_K[k] = 0
                    d_weights_K[k] = 0

    return compile_loop(differentiate, parallel=True, fastmath=FASTMATH, error_model="numpy")
