"""The backward pass of causal attention by tiles (`tiles.py`): all five products of a block in one loop.

Scores are computed once more for `QUERIES` queries and `KEYS` keys at a time, and nothing of their size leaves the
processor's caches. Gradients of keys and values lie transposed while they are added up, one sum per thread.

Shape letters: H query heads, C key/value heads, N new tokens, T tokens of the path (whole blocks), D head dimension,
B blocks of K tokens, S threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.amx.attention import add_outputs, pair_dimensions, pair_tokens, put_products
from seekling.kernels.amx.tiles import SIDE, add_product, load_sums, start_tiles, stop_tiles, store_sums
from seekling.kernels.amx.vectors import LOW, pair_gradients
from seekling.kernels.memory import STEP
from seekling.kernels.vector.pointwise import (
    FASTMATH,
    LOG2_E,
    WORD_SHIFTS,
    bits_of,
    rounded,
    rounding,
    use_threads,
    widened,
)

QUERIES, KEYS = 64, 128
_SUM_BYTES = 1 << 27
"""Of the gradients that threads add up apart from each other; where they would take more, fewer threads work."""
_PADDING = 16
"""fp32 between rows that would lie a power of two apart, and then drive each other out of the cache."""


def differentiate_attention(
    d_output_HND: Tensor,
    query_HND: Tensor,
    key_CTD: Tensor,
    value_CTD: Tensor,
    output_HND: Tensor,
    logsum_HN: Tensor,
    *,
    num_before: int,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `vector.paths.attend`: (H, N, D) of its queries in their type, (C, T, D) float32 of keys and values.

    It takes the gradient of the outputs, what went in (T is a whole number of `STEP`) and what came out.
    """
    num_heads, num_new, head_dim = query_HND.shape
    num_kv_heads, num_tokens, _ = key_CTD.shape
    num_parts = -(-num_new // QUERIES)
    bytes_of_sums = 8 * num_kv_heads * head_dim * (num_tokens + _PADDING)
    num_threads = max(1, min(use_threads(), num_parts * num_heads, _SUM_BYTES // bytes_of_sums))
    d_query_NHD = query_HND.new_empty(num_new, num_heads, head_dim)
    d_both_SCDT = torch.zeros(2, num_threads, num_kv_heads, head_dim, num_tokens + _PADDING)
    _loop(head_dim)(
        *(bits_of(each_HND.transpose(0, 1).contiguous()) for each_HND in (d_output_HND, query_HND, output_HND)),
        pair_dimensions(key_CTD, STEP).numpy(),
        pair_dimensions(value_CTD, STEP).numpy(),
        pair_tokens(key_CTD).numpy(),
        logsum_HN.contiguous().numpy(),
        num_before,
        np.float32(scaling),
        bits_of(d_query_NHD),
        *d_both_SCDT.numpy(),
    )
    d_key_CTD, d_value_CTD = d_both_SCDT[..., :num_tokens].sum(1).transpose(2, 3)
    return d_query_NHD.transpose(0, 1), d_key_CTD, d_value_CTD


@cache
def _loop(head_dim: int) -> Callable[..., None]:
    cut, below_half, last = rounding(WORD_SHIFTS[torch.bfloat16])
    side, most, most_queries, low = SIDE, KEYS, QUERIES, np.float32(LOW)

    def differentiate(  # type: ignore[no-untyped-def]
        d_output_NHD, query_NHD, output_NHD, keys_CBEK, values_CBEK, keys_CFD, logsum_HN, num_before, scaling,
        d_query_NHD, d_key_SCDT, d_value_SCDT,
    ):  # fmt: skip # pragma: no cover - compiled
        num_new, num_heads = query_NHD.shape[:2]
        num_threads, num_kv_heads = d_key_SCDT.shape[:2]
        group = num_heads // num_kv_heads
        num_parts = (num_new + most_queries - 1) // most_queries
        factor = scaling * LOG2_E
        for thread in prange(num_threads):
            start_tiles(side // 2)
            query, d_output = np.zeros((2, most_queries, head_dim), np.uint16)
            query_D, d_output_D = np.zeros((2, head_dim, most_queries), np.uint16)
            scores, d_weights = np.zeros((2, most_queries, most), np.float32)
            d_scores = np.zeros((most_queries, most), np.uint16)
            weight_pairs, d_score_pairs = np.zeros((2, most_queries // 2, most), np.uint32)
            d_query = np.empty((most_queries, head_dim), np.float32)
            delta, logsum = np.zeros((2, most_queries), np.float32)
            for item in range(thread, num_parts * num_heads, num_threads):
                # Later parts see more. Every other head's are taken from the end, so that threads get equal shares.
                head, part = item // num_parts, item % num_parts
                first = (part if head % 2 == 0 else num_parts - 1 - part) * most_queries
                kv = head // group
                keys_BEK, values_BEK, keys_FD = keys_CBEK[kv], values_CBEK[kv], keys_CFD[kv]
                d_key_DT, d_value_DT = d_key_SCDT[thread, kv], d_value_SCDT[thread, kv]
                rows = min(most_queries, num_new - first)
                used = (rows + side - 1) // side * side
                for q in range(used):
                    for d in range(head_dim):
                        query[q, d] = query_NHD[first + q, head, d] if q < rows else np.uint16(0)
                        d_output[q, d] = d_output_NHD[first + q, head, d] if q < rows else np.uint16(0)
                        query_D[d, q], d_output_D[d, q] = query[q, d], d_output[q, d]
                        d_query[q, d] = 0
                    along = np.float32(0)
                    if q < rows:
                        for d in range(head_dim):
                            along += widened(d_output[q, d], cut) * widened(output_NHD[first + q, head, d], cut)
                    delta[q], logsum[q] = along, logsum_HN[head, first + q] * LOG2_E if q < rows else np.float32(0)
                end = num_before + first + rows
                for begin in range(0, end, most):
                    size = min(most, (end - begin + side - 1) // side * side)
                    put_products(query, keys_BEK, begin, used, size, scores)
                    put_products(d_output, values_BEK, begin, used, size, d_weights)
                    for q in range(0, used, 2):
                        for each in range(q, q + 2):
                            for k in range(max(num_before + first + each + 1 - begin, 0), size):
                                scores[each, k] = low
                        pair_gradients(
                            scores, d_weights, q * most, most, weight_pairs, d_score_pairs, q // 2 * most, d_scores,
                            size, factor, scaling, logsum, delta, q,
                        )  # fmt: skip
                    add_columns(d_output_D, weight_pairs, begin, used, size, d_value_DT)
                    add_columns(query_D, d_score_pairs, begin, used, size, d_key_DT)
                    add_outputs(d_scores, keys_FD, begin, used, size, d_query)
                for q in range(rows):
                    for d in range(head_dim):
                        d_query_NHD[first + q, head, d] = rounded(d_query[q, d], cut, below_half, last)
            stop_tiles()

    return compile_loop(differentiate, parallel=True, fastmath=FASTMATH, error_model="numpy")


# A global, as `compile_loop` wants it.
@njit(inline="always")
def add_columns(rows_DQ, pairs_GK, begin, used, size, total_DT):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to columns of a matrix, from `begin` on, products of rows and of queries' numbers in pairs."""
    num_rows, num_queries = rows_DQ.shape
    width, row = pairs_GK.shape[1], total_DT.shape[1]
    for d in range(0, num_rows, SIDE):
        for k in range(0, size, SIDE):
            load_sums(total_DT, d * row + begin + k, 4 * row)
            for q in range(0, used, SIDE):
                add_product(
                    rows_DQ, d * num_queries + q, 2 * num_queries, pairs_GK, q // 2 * width + k, 4 * width
                )  # fmt: skip
            store_sums(total_DT, d * row + begin + k, 4 * row)
