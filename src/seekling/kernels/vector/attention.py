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
        for each in range(0, num_queries - 2, 3):
            add_three_scores(query, each, block_keys_BDK, b, cut, head_dim, step, scores[:, first : first + step])
        for each in range(num_queries // 3 * 3, num_queries):
            add_scores(query, each, block_keys_BDK[b], 0, cut, head_dim, step, scores[:, first : first + step])
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
            add_three_outputs(scores, each, block_values_LD, first, last_value, cut, head_dim, step, output)
        for each in range(num_queries // 3 * 3, num_queries):
            add_outputs(scores, each, block_values_LD, first, last_value, cut, head_dim, output)
    for each in range(num_queries):
        for d in range(head_dim):
            word = rounded(output[each, d], cut, below_half, last)
            output_PHD[start + each // group, head * group + each % group, d] = word


# Three queries at a time share what is read; sums stay in registers for four dimensions or tokens.
@njit(inline="always", fastmath=FASTMATH)
def add_three_scores(query, each, keys_BDK, b, cut, head_dim, step, scores):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to the scores of a block's keys for a query and the two behind it."""
    keys_DK, ahead = keys_BDK[b], (b + 1) * head_dim * step
    x, y, z = scores[each], scores[each + 1], scores[each + 2]
    for d in range(0, head_dim - 3, 4):
        if each == 0:
            fetch(keys_BDK, ahead + d * step, 4 * step)
        a0, a1, a2, a3 = query[each, d], query[each, d + 1], query[each, d + 2], query[each, d + 3]
        b0, b1, b2, b3 = query[each + 1, d], query[each + 1, d + 1], query[each + 1, d + 2], query[each + 1, d + 3]
        c0, c1, c2, c3 = query[each + 2, d], query[each + 2, d + 1], query[each + 2, d + 2], query[each + 2, d + 3]
        w0, w1, w2, w3 = keys_DK[d], keys_DK[d + 1], keys_DK[d + 2], keys_DK[d + 3]
        for k in range(step):
            x0, x1 = widened(w0[k], cut), widened(w1[k], cut)
            x2, x3 = widened(w2[k], cut), widened(w3[k], cut)
            x[k] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
            y[k] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            z[k] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
    for place in range(3):
        add_scores(query, each + place, keys_DK, head_dim // 4 * 4, cut, head_dim, step, scores)


@njit(inline="always", fastmath=FASTMATH)
def add_scores(query, each, keys_DK, start, cut, head_dim, step, scores):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to the scores of a block's keys for one query, from a dimension on."""
    a = scores[each]
    for d in range(start, head_dim):
        q, w = query[each, d], keys_DK[d]
        for k in range(step):
            a[k] += q * widened(w[k], cut)


@njit(inline="always", fastmath=FASTMATH)
def add_three_outputs(scores, each, values_LD, start, stop, cut, head_dim, step, output):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add weighed values to the outputs of a query and the two behind it."""
    a, b, c = output[each], output[each + 1], output[each + 2]
    for n in range(start, stop - 3, 4):
        if each == 0:
            fetch(values_LD, (n + step) * head_dim, 4 * head_dim)
        a0, a1, a2, a3 = scores[each, n], scores[each, n + 1], scores[each, n + 2], scores[each, n + 3]
        b0, b1, b2, b3 = scores[each + 1, n], scores[each + 1, n + 1], scores[each + 1, n + 2], scores[each + 1, n + 3]
        c0, c1, c2, c3 = scores[each + 2, n], scores[each + 2, n + 1], scores[each + 2, n + 2], scores[each + 2, n + 3]
        w0, w1, w2, w3 = values_LD[n], values_LD[n + 1], values_LD[n + 2], values_LD[n + 3]
        for d in range(head_dim):
            x0, x1 = widened(w0[d], cut), widened(w1[d], cut)
            x2, x3 = widened(w2[d], cut), widened(w3[d], cut)
            a[d] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
            b[d] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            c[d] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
    for place in range(3):
        add_outputs(scores, each + place, values_LD, start + (stop - start) // 4 * 4, stop, cut, head_dim, output)


@njit(inline="always", fastmath=FASTMATH)
def add_outputs(scores, each, values_LD, start, stop, cut, head_dim, output):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add weighed values to the output of one query."""
    a = output[each]
    for n in range(start, stop):
        p, w = scores[each, n], values_LD[n]
        for d in range(head_dim):
            a[d] += p * widened(w[d], cut)


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
