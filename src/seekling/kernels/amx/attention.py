"""Attention by tiles (`seekling.kernels.amx.tiles`): of many new tokens to a path, and of decode rows to their slots.

In prefill, scores of 32 queries exist for `KEYS` keys at a time, in the processor's nearest cache; of decode rows all.
Keys and values lie in pairs: two dimensions of a key, or two tokens' values, in one 32-bit word, the even one in the
lower half. The loops read up to the end of the block that holds the path's last token; what is there must be finite.

Shape letters: S slots, H query heads, C key/value heads, N new tokens, P decode tokens of all rows, R decode rows,
T tokens of a path or slot (whole blocks), D head dimension, E = D / 2 pairs of dimensions, F = T / 2 pairs of tokens,
B blocks of K tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.kernels.amx.tiles import (
    SIDE,
    TILE_ROWS,
    add_product,
    add_stripe,
    clear_sums,
    load_stripe,
    load_sums,
    start_tiles,
    stop_tiles,
    store_stripe,
    store_sums,
)
from seekling.kernels.amx.vectors import LOW, row_maximum, row_powers
from seekling.kernels.vector.intrinsics import fetch
from seekling.kernels.vector.pointwise import (
    FASTMATH,
    LOG2_E,
    WORD_SHIFTS,
    bits_of,
    power_of_two,
    rounded,
    rounding,
    use_threads,
)

KEYS = 256
_SHIFT, _BELOW_HALF, _ = rounding(WORD_SHIFTS[torch.bfloat16])


def pair_dimensions(tensor_CTD: Tensor, step: int) -> Tensor:
    """(C, B, E, K) words, a token's neighbouring dimensions in each; `step` is K."""
    num_heads, num_tokens, head_dim = tensor_CTD.shape
    words_CTE = tensor_CTD.contiguous().view(torch.uint32)
    return words_CTE.view(num_heads, num_tokens // step, step, head_dim // 2).transpose(2, 3).contiguous()


def pair_tokens(tensor_CTD: Tensor) -> Tensor:
    """(C, F, D) words, a dimension of two neighbouring tokens in each."""
    num_heads, num_tokens, head_dim = tensor_CTD.shape
    halves = tensor_CTD.contiguous().view(num_heads, num_tokens // 2, 2, head_dim)
    return halves.transpose(2, 3).contiguous().view(torch.uint32).squeeze(-1)


def store_pairs(past: int, key_CND: Tensor, value_CND: Tensor, keys_CBEK: Tensor, values_CFD: Tensor) -> None:
    """Write keys and values of N tokens behind a slot's first `past`, whose last pair of values may be half full."""
    use_threads()
    _store_loop()(past, *map(_bits, (key_CND, value_CND)), keys_CBEK.numpy(), values_CFD.numpy())


def attend_tiled(
    query_HND: Tensor, keys_CBEK: Tensor, values_CFD: Tensor, *, num_before: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """As `vector.paths.attend`, of keys by `pair_dimensions` and values by `pair_tokens`."""
    num_heads, num_new, head_dim = query_HND.shape
    output_NHD = query_HND.new_empty(num_new, num_heads, head_dim)
    logsum_HN = torch.empty(num_heads, num_new)
    _attend_loop(head_dim)(
        _bits(query_HND.transpose(0, 1)),
        keys_CBEK.numpy(),
        values_CFD.numpy(),
        num_before,
        np.float32(scaling),
        use_threads(),
        bits_of(output_NHD),
        logsum_HN.numpy(),
    )
    return output_NHD.transpose(0, 1), logsum_HN


def _bits(tensor: Tensor) -> np.ndarray:
    return bits_of(tensor.contiguous())


@cache
def _attend_loop(head_dim: int) -> Callable[..., None]:
    (cut, below_half, last), side, most, low = rounding(WORD_SHIFTS[torch.bfloat16]), SIDE, KEYS, np.float32(LOW)

    def attend(  # type: ignore[no-untyped-def]
        query_NHD, keys_CBEK, values_CFD, num_before, scaling, num_threads, output_NHD, logsum_HN
    ):  # pragma: no cover - compiled
        num_new, num_heads = query_NHD.shape[:2]
        group = num_heads // keys_CBEK.shape[0]
        num_parts = (num_new + side - 1) // side
        for thread in prange(num_threads):
            start_tiles(side // 2)
            query = np.zeros((side, head_dim), np.uint16)
            scores, weights = np.empty((side, most), np.float32), np.empty((side, most), np.uint16)
            output = np.empty((side, head_dim), np.float32)
            highest, total = np.empty(side, np.float32), np.empty(side, np.float32)
            factor = scaling * LOG2_E
            for item in range(thread, num_parts * num_heads, num_threads):
                head, first = item % num_heads, item // num_heads * side
                keys_BEK, values_FD = keys_CBEK[head // group], values_CFD[head // group]
                rows = min(side, num_new - first)
                for q in range(side):
                    for d in range(head_dim):
                        query[q, d] = query_NHD[first + q, head, d] if q < rows else np.uint16(0)
                        output[q, d] = 0
                    highest[q], total[q] = np.float32(-3e38), 0
                end = num_before + first + rows
                for begin in range(0, end, most):
                    size = min(most, (end - begin + side - 1) // side * side)
                    put_products(query, keys_BEK, begin, side, size, scores)
                    for q in range(rows):
                        for k in range(max(num_before + first + q + 1 - begin, 0), size):
                            scores[q, k] = low
                        before = highest[q]
                        now = max(before, row_maximum(scores, q * most, size) * factor)
                        some = row_powers(scores, q * most, weights, q * most, size, factor, now)
                        shrink = power_of_two(before - now)
                        highest[q], total[q] = now, total[q] * shrink + some
                        if shrink < 1:
                            for d in range(head_dim):
                                output[q, d] *= shrink
                    add_outputs(weights, values_FD, begin, side, size, output)
                for q in range(rows):
                    share = np.float32(1) / total[q]
                    logsum_HN[head, first + q] = (highest[q] + np.log2(total[q])) / LOG2_E
                    for d in range(head_dim):
                        output_NHD[first + q, head, d] = rounded(output[q, d] * share, cut, below_half, last)
            stop_tiles()

    return compile_loop(attend, parallel=True, fastmath=FASTMATH, error_model="numpy")


@cache
def decode_loop(head_dim: int, group: int) -> Callable[..., None]:
    """The compiled loop of `vector.attention.decode_attention` over slots in pairs."""

    def decode(  # type: ignore[no-untyped-def]
        query_PHD, key_PCD, value_PCD, keys_SCBEK, values_SCFD, order_R, parts_I, slots_R, starts_R, pasts_R, widths_R,
        leaders_R, shared_R, scaling, output_PHD,
    ):  # fmt: skip # pragma: no cover - compiled
        num_kv_heads = keys_SCBEK.shape[1]
        for item in prange((len(parts_I) - 1) * num_kv_heads):
            part, head = item // num_kv_heads, item % num_kv_heads
            attend_rows(
                query_PHD, key_PCD, value_PCD, 0, 0, keys_SCBEK, values_SCFD, head,
                order_R[parts_I[part] : parts_I[part + 1]], slots_R, starts_R, pasts_R, widths_R, leaders_R, shared_R,
                scaling, head_dim, group, output_PHD,
            )  # fmt: skip

    return compile_loop(decode, parallel=True, fastmath=FASTMATH, error_model="numpy")


@cache
def _store_loop() -> Callable[..., None]:
    cut = np.uint32(WORD_SHIFTS[torch.bfloat16])

    def store(past, key_CND, value_CND, keys_CBEK, values_CFD):  # type: ignore[no-untyped-def]  # pragma: no cover
        num_heads, num_new = key_CND.shape[:2]
        step = keys_CBEK.shape[3]
        for head in prange(num_heads):
            for block in range(past // step, (past + num_new - 1) // step + 1):
                first = block * step
                begin, end = max(past, first), min(past + num_new, first + step)
                put_keys(keys_CBEK[head, block], begin - first, key_CND[head, begin - past : end - past], cut)
            for n in range(num_new):
                put_value(values_CFD[head, (past + n) // 2], (past + n) % 2, value_CND[head, n], cut)

    return compile_loop(store, parallel=True)


# Globals, as `compile_loop` wants them.
@njit(inline="always", fastmath=FASTMATH)
def attend_rows(  # type: ignore[no-untyped-def]
    query_PHD, key_PCD, value_PCD, key_head, value_head, keys_SCBEK, values_SCFD, head, rows, slots_R, starts_R,
    pasts_R, widths_R, leaders_R, shared_R, scaling, head_dim, group, output_PHD,
):  # fmt: skip # pragma: no cover - compiled
    """A key/value head of one row, or of several that read their first tokens from one leader and fill a tile at most.

    What they share is multiplied once for all. The order of a row's sums does not depend on who shares it. The first of
    its key's heads is `key_head` of `key_PCD`, the first of its value's `value_head`.
    """
    cut, below_half, last = np.uint32(_SHIFT), np.uint32(_BELOW_HALF), np.uint32(1)
    step = keys_SCBEK.shape[4]
    factor = scaling * LOG2_E
    leader, shared, longest, num_queries = leaders_R[rows[0]], shared_R[rows[0]], 0, 0
    for row in rows:
        past, width = pasts_R[row], widths_R[row]
        for w in range(width):
            token, p, h = past + w, starts_R[row] + w, key_head + head
            put_keys(keys_SCBEK[slots_R[row], head, token // step], token % step, key_PCD[p : p + 1, h], cut)
            put_value(values_SCFD[slots_R[row], head, token // 2], token % 2, value_PCD[p, value_head + head], cut)
        shared, longest = min(shared, shared_R[row]), max(longest, past + width)
        num_queries += width * group
    several, long = len(rows) > 1, (longest + step - 1) // step * step
    head_keys_BEK, head_values_FD = keys_SCBEK[leader, head], values_SCFD[leader, head]
    query, output = np.empty((TILE_ROWS, head_dim), np.uint16), np.empty((TILE_ROWS, head_dim), np.float32)
    scores, weights = np.empty((TILE_ROWS, long), np.float32), np.empty((TILE_ROWS, long), np.uint16)
    for first in range(0, num_queries, TILE_ROWS):
        used, each = min(TILE_ROWS, num_queries - first), 0
        for row in rows:
            for n in range(first, min(widths_R[row] * group, first + TILE_ROWS)):
                query_D = query_PHD[starts_R[row] + n // group, head * group + n % group]
                for d in range(head_dim):
                    query[each, d] = query_D[d]
                each += 1
        start_tiles(used)
        put_scores(query, 0, head_keys_BEK, 0, shared, scores)
        each = 0
        for row in rows:
            past, count = pasts_R[row], min(widths_R[row] * group - first, TILE_ROWS)
            padded = (past + widths_R[row] + step - 1) // step * step
            if several:
                start_tiles(count)
            put_scores(query, each, keys_SCBEK[slots_R[row], head], shared, padded, scores)
            for n in range(first, first + count):
                for k in range(past + 1 + n // group, padded):
                    scores[each, k] = LOW
                highest = row_maximum(scores, each * long, padded) * factor
                totals = row_powers(scores, each * long, weights, each * long, padded, factor, highest)
                scores[each, 0] = np.float32(1) / totals
                each += 1
        for d in range(0, head_dim, 2 * SIDE):
            if several:
                start_tiles(used)
            else:
                clear_sums()
            add_values(weights, 0, head_values_FD, 0, shared, d)
            if several:
                store_stripe(output, d, 4 * head_dim)
            each = 0
            for row in rows:
                count = min(widths_R[row] * group - first, TILE_ROWS)
                padded = (pasts_R[row] + widths_R[row] + step - 1) // step * step
                if several:
                    start_tiles(count)
                    load_stripe(output, each * head_dim + d, 4 * head_dim)
                add_values(weights, each, values_SCFD[slots_R[row], head], shared, padded, d)
                store_stripe(output, each * head_dim + d, 4 * head_dim)
                each += count
        stop_tiles()
        each = 0
        for row in rows:
            for n in range(first, min(widths_R[row] * group, first + TILE_ROWS)):
                output_D, share = output_PHD[starts_R[row] + n // group, head * group + n % group], scores[each, 0]
                for d in range(head_dim):
                    output_D[d] = rounded(output[each, d] * share, cut, below_half, last)
                each += 1


@njit(inline="always")
def put_scores(query_QD, each, keys_BEK, start, stop, scores_QK):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Inner products of queries, from one on, with the keys of whole blocks."""
    head_dim, step, long = query_QD.shape[1], keys_BEK.shape[2], scores_QK.shape[1]
    for token in range(start, stop, step):
        clear_sums()
        for d in range(0, head_dim, SIDE):
            here = (token * head_dim + d * step) // 2
            ahead = SIDE // 2 * step  # the next words that are read
            fetch(keys_BEK, here + ahead, ahead)
            add_stripe(query_QD, each * head_dim + d, 2 * head_dim, keys_BEK, here, SIDE, 4 * step)
        store_stripe(scores_QK, each * long + token, 4 * long)


@njit(inline="always")
def add_values(weights_QK, each, values_FD, start, stop, d):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to the sums the values of tokens, 64 dimensions from one on, by the weights of queries from one on."""
    head_dim, long = values_FD.shape[1], weights_QK.shape[1]
    for token in range(start, stop, SIDE):
        here = token // 2 * head_dim + d
        fetch(values_FD, here + SIDE // 2 * head_dim, SIDE // 2 * head_dim)  # the next ones
        add_stripe(weights_QK, each * long + token, 2 * long, values_FD, here, SIDE, 4 * head_dim)


@njit(inline="always")
def put_keys(words_EK, place, key_ND, cut):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Write tokens' keys into their block, from a place on."""
    for e in range(words_EK.shape[0]):
        for n in range(key_ND.shape[0]):
            words_EK[e, place + n] = np.uint32(key_ND[n, 2 * e]) | np.uint32(key_ND[n, 2 * e + 1]) << cut


@njit(inline="always")
def put_value(words_D, half, value_D, cut):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Write a token's value into the words that it shares with a neighbour."""
    place = np.uint32(half) * cut
    kept = ~(np.uint32(0xFFFF) << place)
    for d in range(words_D.shape[0]):
        words_D[d] = (words_D[d] & kept) | np.uint32(value_D[d]) << place


@njit(inline="always")
def put_products(rows_QD, words_BEK, begin, used, size, result_QK):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Inner products of the first `used` rows with `size` tokens from `begin` on."""
    width, row = rows_QD.shape[1], result_QK.shape[1]
    step = words_BEK.shape[2]
    for k in range(0, size, SIDE):
        first = (begin + k) // step * (width // 2) * step + (begin + k) % step
        for q in range(0, used, SIDE):
            clear_sums()
            for d in range(0, width, SIDE):
                add_product(rows_QD, q * width + d, 2 * width, words_BEK, first + d // 2 * step, 4 * step)
            store_sums(result_QK, q * row + k, 4 * row)


@njit(inline="always")
def add_outputs(weights_QK, words_FD, begin, used, size, total_QD):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add what `size` tokens from `begin` on hold to the first `used` rows, by their weights."""
    width, row = total_QD.shape[1], weights_QK.shape[1]
    for d in range(0, width, SIDE):
        for q in range(0, used, SIDE):
            load_sums(total_QD, q * width + d, 4 * width)
            for k in range(0, size, SIDE):
                add_product(
                    weights_QK, q * row + k, 2 * row, words_FD, (begin + k) // 2 * width + d, 4 * width
                )  # fmt: skip
            store_sums(total_QD, q * width + d, 4 * width)
