"""A decode pass through a layer in one compiled loop, on CPUs with tiles.

Between the matrix products of a few rows, everything else costs more than it computes: each layer's weights push
Python's code and objects out of the processor's caches. So one call does a whole layer.

Shape letters: P decode tokens of all rows, M width of the model, E heads of all kinds, H query heads, C key/value
heads, D head dimension, F width of the gate, N columns of a product; of caches as in attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numba import prange

from seekling.compiled import compile_loop
from seekling.kernels.amx.attention import attend_rows
from seekling.kernels.amx.products import ADD, GATE, STRIPE, WRITE, multiply
from seekling.kernels.amx.tiles import SIDE
from seekling.kernels.vector.pointwise import FASTMATH, WORD_SHIFTS, norm_row, rotate_head, rounding


@cache
def layer_loop(head_dim: int, group: int, is_parallel: bool) -> Callable[..., None]:
    """The compiled loop for one head dimension and number of query heads per key/value head."""
    cut, below_half, last = rounding(WORD_SHIFTS[torch.bfloat16])

    def layer(  # type: ignore[no-untyped-def]
        hidden_PM, num_tokens, order_R, parts_I, slots_R, starts_R, pasts_R, widths_R, leaders_R, shared_R, cos_PD,
        sin_PD, epsilon, scaling, keys_SCBEK, values_SCFD, norm_M, mlp_norm_M, query_norm_D, key_norm_D, qkv_words,
        qkv_bias, o_words, o_bias, gate_up_words, gate_up_bias, down_words, down_bias,
    ):  # fmt: skip # pragma: no cover - compiled
        width, num_kv_heads = hidden_PM.shape[1], keys_SCBEK.shape[1]
        num_heads = num_kv_heads * group
        num_gates = down_words.size // (width // 2)
        padded = (num_tokens + SIDE - 1) // SIDE * SIDE
        normed_PM = np.empty((padded, width), np.uint16)
        heads_PED = np.empty((num_tokens, num_heads + 2 * num_kv_heads, head_dim), np.uint16)
        attended_PHD = np.empty((padded, num_heads, head_dim), np.uint16)
        gated_PF = np.empty((padded, num_gates), np.uint16)
        for n in prange(num_tokens):
            norm_row(hidden_PM[n], norm_M, epsilon, normed_PM[n], cut, below_half, last)
        num_columns = heads_PED.shape[1] * head_dim
        heads_PN = heads_PED.reshape(num_tokens, num_columns)
        for stripe in prange((num_columns + STRIPE - 1) // STRIPE):
            multiply(normed_PM, width, num_tokens, qkv_words, qkv_bias, stripe, num_columns, heads_PN, WRITE)
        for n in prange(num_tokens):
            for e in range(num_heads + num_kv_heads):
                norm_D = query_norm_D if e < num_heads else key_norm_D
                if norm_D.size > 0:
                    norm_row(heads_PED[n, e], norm_D, epsilon, heads_PED[n, e], cut, below_half, last)
                rotate_head(heads_PED[n, e], cos_PD[n], sin_PD[n], cut, below_half, last)
        for item in prange((len(parts_I) - 1) * num_kv_heads):
            part, head = item // num_kv_heads, item % num_kv_heads
            attend_rows(
                heads_PED, heads_PED, heads_PED, num_heads, num_heads + num_kv_heads, keys_SCBEK, values_SCFD, head,
                order_R[parts_I[part] : parts_I[part + 1]], slots_R, starts_R, pasts_R, widths_R, leaders_R, shared_R,
                scaling, head_dim, group, attended_PHD,
            )  # fmt: skip
        for stripe in prange((width + STRIPE - 1) // STRIPE):
            multiply(attended_PHD, num_heads * head_dim, num_tokens, o_words, o_bias, stripe, width, hidden_PM, ADD)
        for n in prange(num_tokens):
            norm_row(hidden_PM[n], mlp_norm_M, epsilon, normed_PM[n], cut, below_half, last)
        for stripe in prange(num_gates // SIDE):
            multiply(normed_PM, width, num_tokens, gate_up_words, gate_up_bias, stripe, num_gates, gated_PF, GATE)
        for stripe in prange((width + STRIPE - 1) // STRIPE):
            multiply(gated_PF, num_gates, num_tokens, down_words, down_bias, stripe, width, hidden_PM, ADD)

    return compile_loop(layer, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")
