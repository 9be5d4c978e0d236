"""Attention loops for CPUs, compiled at first use: decode attention, and the gradient of a softmax.

In decode attention every row reads its own cached tokens, and no others. Batched attention calls pad all rows to the
longest context and the widest draft, and spend most of their time in small matrix products' overhead. Here a work item
is one key/value head of one row, keys and values are read once for all queries that share them, and sums are fp32. This
module knows neither slots' owners nor layers.

Shape letters: S slots, R decode rows (of the softmax: queries that share a key/value head), P decode tokens of all
rows, H query heads, C key/value heads, L slot length, K keys of a tile, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numba import prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.models.pointwise import (
    FASTMATH,
    LOG2_E,
    LOWEST_ORDERED,
    WORD_SHIFTS,
    WORDS,
    ordered,
    rounded,
    rounding,
    split_power,
    use_threads,
)


def decode_attention(
    query_PHD: Tensor,
    keys_SCLD: Tensor,
    values_SCLD: Tensor,
    *,
    slots_R: np.ndarray,
    starts_R: np.ndarray,
    pasts_R: np.ndarray,
    widths_R: np.ndarray,
    scaling: float,
) -> Tensor:
    """Attend from each row's new tokens to its slot; the new tokens' own keys and values are there already.

    Args:
        query_PHD: (P, H, D), of the type of the caches, one of `WORD_SHIFTS`.
        keys_SCLD: (S, C, L, D).
        values_SCLD: (S, C, L, D).
        slots_R: slot of each row.
        starts_R: first of the row's tokens among the P.
        pasts_R: tokens before it in the slot; token w of a row sees the first `past + w + 1`.
        widths_R: tokens of the row.
        scaling: factor on the scores.

    Returns:
        (P, H, D) in the query's type.
    """
    num_heads, head_dim = query_PHD.shape[1:]
    words = WORDS[keys_SCLD.dtype]
    output_PHD = torch.empty(query_PHD.shape, dtype=torch.float32)
    num_threads = use_threads()
    # Every thread takes an equal stretch of the rows: dealt out by length, the stretches take equally long.
    by_length_R = np.argsort(pasts_R, kind="stable")
    order_R = np.concatenate([by_length_R[thread::num_threads] for thread in range(num_threads)])
    _kernel(head_dim, num_heads // keys_SCLD.shape[1])(
        query_PHD.float().contiguous().numpy(),
        keys_SCLD.view(words).numpy(),
        values_SCLD.view(words).numpy(),
        order_R,
        slots_R,
        starts_R,
        pasts_R,
        widths_R,
        np.float32(scaling),
        np.uint32(WORD_SHIFTS[keys_SCLD.dtype]),
        output_PHD.numpy(),
    )
    return output_PHD.to(query_PHD.dtype)


@cache
def _kernel(head_dim: int, group: int) -> Callable[..., None]:
    """The compiled loop for one head dimension and number of query heads per key/value head: constants, so unrolled."""

    def attend(  # type: ignore[no-untyped-def]
        query_PHD, keys_SCLD, values_SCLD, order_R, slots_R, starts_R, pasts_R, widths_R, scaling, shift, output_PHD
    ):  # pragma: no cover - compiled
        num_kv_heads = keys_SCLD.shape[1]
        for item in prange(order_R.shape[0] * num_kv_heads):
            row, head = order_R[item // num_kv_heads], item % num_kv_heads
            start, past, width = starts_R[row], pasts_R[row], widths_R[row]
            keys_LD, values_LD = keys_SCLD[slots_R[row], head], values_SCLD[slots_R[row], head]
            end, num_queries = past + width, width * group
            # Eight keys at a time: what a query loads serves eight products. Past the end they count as zeros.
            padded = (end + 7) // 8 * 8
            words = np.zeros((8, head_dim), np.uint32)
            block = words.view(np.float32)
            query = np.empty((num_queries, head_dim), np.float32)
            for each in range(num_queries):
                for d in range(head_dim):
                    query[each, d] = query_PHD[start + each // group, head * group + each % group, d] * scaling * LOG2_E
            scores = np.zeros((num_queries, padded), np.float32)
            score_words, top = scores.view(np.int32), np.empty(1, np.int32)
            for first in range(0, end, 8):
                for j in range(min(8, end - first)):
                    for d in range(head_dim):
                        words[j, d] = np.uint32(keys_LD[first + j, d]) << shift
                for each in range(num_queries):
                    # Two times four sums: as many as stay in registers.
                    for j in range(0, 8, 4):
                        sum0 = sum1 = sum2 = sum3 = np.float32(0)
                        for d in range(head_dim):
                            sum0 += query[each, d] * block[j, d]
                            sum1 += query[each, d] * block[j + 1, d]
                            sum2 += query[each, d] * block[j + 2, d]
                            sum3 += query[each, d] * block[j + 3, d]
                        scores[each, first + j] = sum0
                        scores[each, first + j + 1] = sum1
                        scores[each, first + j + 2] = sum2
                        scores[each, first + j + 3] = sum3
            bits = np.empty(padded, np.int32)
            powers = bits.view(np.float32)
            for each in range(num_queries):
                seen = past + 1 + each // group
                largest = LOWEST_ORDERED
                for place in range(seen):
                    largest = max(largest, ordered(score_words[each, place]))
                top[0] = ordered(largest)
                highest = top.view(np.float32)[0]
                for place in range(seen):
                    bits[place], scores[each, place] = split_power(scores[each, place] - highest)
                total = np.float32(0)
                for place in range(seen):
                    scores[each, place] *= powers[place]
                    total += scores[each, place]
                for place in range(seen):
                    scores[each, place] /= total
                for place in range(seen, padded):
                    scores[each, place] = 0
            output = np.zeros((num_queries, head_dim), np.float32)
            for first in range(0, end, 8):
                for j in range(min(8, end - first)):
                    for d in range(head_dim):
                        words[j, d] = np.uint32(values_LD[first + j, d]) << shift
                for each in range(num_queries):
                    p = scores[each, first : first + 8]
                    for d in range(head_dim):
                        output[each, d] += (
                            p[0] * block[0, d]
                            + p[1] * block[1, d]
                            + p[2] * block[2, d]
                            + p[3] * block[3, d]
                            + p[4] * block[4, d]
                            + p[5] * block[5, d]
                            + p[6] * block[6, d]
                            + p[7] * block[7, d]
                        )
            for each in range(num_queries):
                for d in range(head_dim):
                    output_PHD[start + each // group, head * group + each % group, d] = output[each, d]

    return compile_loop(attend, parallel=True, fastmath=FASTMATH, error_model="numpy")


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

    Args:
        scores_CRK: (C, R, K) products; become weights, 0 where the key comes after the query.
        d_weights_CRK: (C, R, K) of the same type; become the gradients of the products.
        logsum_CR: (C, R) float32 logarithms of the sums of the exponentiated scores over each query's whole path.
        delta_CR: (C, R) float32 inner products of each query's output with its gradient.
        num_queries: rows of each head among the R; query b sees the first `num_before + b + 1` of the K keys.
        num_before: of the path before the first query, counted from the first of the K keys; may be negative.
        scaling: factor on the products.
    """
    if scores_CRK.device.type != "cpu" or scores_CRK.dtype not in WORD_SHIFTS:
        query_R = torch.arange(scores_CRK.shape[1], device=scores_CRK.device) % num_queries
        is_future_RK = torch.arange(scores_CRK.shape[2], device=query_R.device) > (num_before + query_R)[:, None]
        weights_CRK = torch.exp(scores_CRK.float() * scaling - logsum_CR.unsqueeze(-1)).masked_fill_(is_future_RK, 0)
        scores_CRK.copy_(weights_CRK)
        d_weights_CRK.copy_(weights_CRK * (d_weights_CRK.float() - delta_CR.unsqueeze(-1)) * scaling)
        return
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
            weight_words, d_words = np.empty(num_keys, np.uint32), np.empty(num_keys, np.uint32)
            weights, d_weights = weight_words.view(np.float32), d_words.view(np.float32)
            bits = np.empty(num_keys, np.int32)
            powers = bits.view(np.float32)
            for n in range(num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads):
                scores_K, d_weights_K, delta = scores_NK[n], d_weights_NK[n], delta_N[n]
                factor, logsum = scaling * LOG2_E, logsum_N[n] * LOG2_E
                seen = min(max(num_before + n % num_queries + 1, 0), num_keys)
                for k in range(seen):
                    weight_words[k] = np.uint32(scores_K[k]) << cut
                    d_words[k] = np.uint32(d_weights_K[k]) << cut
                for k in range(seen):
                    bits[k], weights[k] = split_power(weights[k] * factor - logsum)
                for k in range(seen):
                    weights[k] *= powers[k]
                    d_weights[k] = weights[k] * (d_weights[k] - delta) * scaling
                for k in range(seen):
                    scores_K[k] = rounded(weight_words[k], cut, below_half, last)
                    d_weights_K[k] = rounded(d_words[k], cut, below_half, last)
                for k in range(seen, num_keys):
                    scores_K[k] = 0
                    d_weights_K[k] = 0

    return compile_loop(differentiate, parallel=True, fastmath=FASTMATH, error_model="numpy")
