"""A decode pass through a layer in one compiled loop, over weights of eight bits; what `amx/layer.py` is for tiles.

Shape letters: P decode tokens of all rows, M width of the model, E heads of all kinds, D head dimension, F width of the
gate; of caches as in attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import prange

from seekling.compiled import compile_loop
from seekling.kernels.memory import STEP
from seekling.kernels.vector.attention import attend_row
from seekling.kernels.vector.eight_bits import ADD, COLUMNS, GATE, WRITE, multiply, to_levels
from seekling.kernels.vector.pointwise import FASTMATH, norm_row, rotate_head, rounding


@cache
def layer_loop(shift: int, head_dim: int, group: int, is_parallel: bool) -> Callable[..., None]:
    """The compiled loop for one type, head dimension and number of query heads per key/value head."""
    (cut, below_half, last), step = rounding(shift), STEP

    def layer(  # type: ignore[no-untyped-def]
        hidden_PM, num_tokens, order_R, parts_I, slots_R, starts_R, pasts_R, widths_R, leaders_R, shared_R, cos_PD,
        sin_PD, epsilon, scaling, keys_SCBDK, values_SCLD, norm_M, mlp_norm_M, query_norm_D, key_norm_D, qkv, qkv_scale,
        qkv_bias, o, o_scale, o_bias, gate_up, gate_up_scale, gate_up_bias, down, down_scale, down_bias,
    ):  # fmt: skip # pragma: no cover - compiled
        width, num_kv_heads, kind = hidden_PM.shape[1], keys_SCBDK.shape[1], hidden_PM.dtype
        num_heads = num_kv_heads * group
        num_columns, num_gates = (num_heads + 2 * num_kv_heads) * head_dim, down.size // o_scale.size
        normed_PM, step_P = np.empty((num_tokens, width), kind), np.empty(num_tokens, np.float32)
        level_PM = np.empty((num_tokens, width), np.int16)
        heads_PED = np.empty((num_tokens, num_heads + 2 * num_kv_heads, head_dim), kind)
        heads_PN = heads_PED.reshape(num_tokens, num_columns)
        attended_PHD = np.empty((num_tokens, num_heads, head_dim), kind)
        attended_PN = attended_PHD.reshape(num_tokens, num_heads * head_dim)
        attended_levels_PN = np.empty((num_tokens, num_heads * head_dim), np.int16)
        gated_PF, level_PF = np.empty((num_tokens, num_gates), kind), np.empty((num_tokens, num_gates), np.int16)
        for n in prange(num_tokens):
            norm_row(hidden_PM[n], norm_M, epsilon, normed_PM[n], cut, below_half, last)
            step_P[n] = to_levels(normed_PM[n], level_PM[n], cut)
        for block in prange((num_columns + COLUMNS - 1) // COLUMNS):
            multiply(level_PM, step_P, 0, num_tokens, qkv, qkv_scale, qkv_bias, block, heads_PN, WRITE, shift)
        for n in prange(num_tokens):
            for e in range(num_heads + num_kv_heads):
                norm_D = query_norm_D if e < num_heads else key_norm_D
                if norm_D.size > 0:
                    norm_row(heads_PED[n, e], norm_D, epsilon, heads_PED[n, e], cut, below_half, last)
                rotate_head(heads_PED[n, e], cos_PD[n], sin_PD[n], cut, below_half, last)
        for item in prange(len(order_R) * num_kv_heads):
            attend_row(
                heads_PED, heads_PED, heads_PED, num_heads, num_heads + num_kv_heads, keys_SCBDK, values_SCLD,
                order_R[item // num_kv_heads], item % num_kv_heads, slots_R, starts_R, pasts_R, widths_R, leaders_R,
                shared_R, scaling, head_dim, group, step, cut, below_half, last, attended_PHD,
            )  # fmt: skip
        for n in prange(num_tokens):
            step_P[n] = to_levels(attended_PN[n], attended_levels_PN[n], cut)
        for block in prange((width + COLUMNS - 1) // COLUMNS):
            multiply(attended_levels_PN, step_P, 0, num_tokens, o, o_scale, o_bias, block, hidden_PM, ADD, shift)
        for n in prange(num_tokens):
            norm_row(hidden_PM[n], mlp_norm_M, epsilon, normed_PM[n], cut, below_half, last)
            step_P[n] = to_levels(normed_PM[n], level_PM[n], cut)
        for block in prange(num_gates // COLUMNS):
            multiply(
                level_PM, step_P, 0, num_tokens, gate_up, gate_up_scale, gate_up_bias, block, gated_PF, GATE, shift
            )
        for n in prange(num_tokens):
            step_P[n] = to_levels(gated_PF[n], level_PF[n], cut)
        for block in prange((width + COLUMNS - 1) // COLUMNS):
            multiply(level_PF, step_P, 0, num_tokens, down, down_scale, down_bias, block, hidden_PM, ADD, shift)

    return compile_loop(layer, parallel=is_parallel, fastmath=FASTMATH, error_model="numpy")
