"""A decode pass through a layer in one compiled loop, on CPUs with tiles.

Between the matrix products of a few rows, everything else costs more than it computes: each layer's weights push
Python's code and objects out of the processor's caches. So one call does a whole layer.

Shape letters: P decode tokens of all rows, M width of the model, E heads of all kinds, H query heads, C key/value
heads, D head dimension, F width of the gate, N columns of a product; of caches as in attention.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import prange
from torch import Tensor, nn

from seekling.compiled import compile_loop
from seekling.kernels.amx.attention import attend_rows
from seekling.kernels.amx.products import ADD, GATE, STRIPE, WRITE, multiply
from seekling.kernels.amx.tiles import SIDE, TILE_ROWS
from seekling.kernels.linear import PackedLinear
from seekling.kernels.vector.pointwise import (
    FASTMATH,
    WORD_SHIFTS,
    bits_of,
    norm_row,
    rms_norm,
    rotate_head,
    rounding,
    use_threads,
)

if TYPE_CHECKING:
    from seekling.kernels.slots import DecodeRows, SlotCache

MOST_TOKENS = 128
"""Of a decode pass by loops; with more, oneDNN's products save what its calls cost."""


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


class DecodeLoops:
    """Decode passes of a few tokens through a model of known layers, each layer in one call of `layer_loop`.

    Args:
        decoder: takes token ids; all of its layers made by `fuse_layers`. It may take new weights between passes.
        cache: of pairs.
    """

    def __init__(self, decoder: Any, cache: SlotCache) -> None:
        self._decoder, self._cache = decoder, cache
        attention = decoder.layers[0].self_attn
        num_kv_heads = cache.keys[0].shape[1]
        self._kind = attention.head_dim, attention.o_proj.in_features // attention.head_dim // num_kv_heads
        self._packed = [each for each in decoder.modules() if isinstance(each, PackedLinear)]
        self._words: list[np.ndarray | None] = []
        self._operands: list[tuple[np.ndarray, ...]] = []

    @staticmethod
    def of(decoder: nn.Module, cache: SlotCache) -> DecodeLoops | None:
        """The loops of a decoder of known layers, if all are fused and their norms alike, and there are tiles."""
        layers: list[Any] = list(decoder.get_submodule("layers").children())
        epsilons = {each.variance_epsilon for each in decoder.modules() if type(each).__name__.endswith("RMSNorm")}
        are_fused = all(isinstance(getattr(layer.self_attn, "qkv_proj", None), PackedLinear) for layer in layers)
        return DecodeLoops(decoder, cache) if cache.layout == "pairs" and are_fused and len(epsilons) == 1 else None

    def takes(self, num_tokens: int) -> bool:
        """Whether passes of so many tokens can be run with the weights as they are."""
        return num_tokens <= MOST_TOKENS and all(each.words is not None for each in self._packed)

    def run(self, token_ids_P: Tensor, position_P: Tensor, rows: DecodeRows) -> Tensor:
        """(P, M) hidden states behind the last norm, of the tokens of decode rows."""
        decoder = self._decoder
        hidden_PM = decoder.embed_tokens(token_ids_P)
        cos_PD, sin_PD = (bits_of(each[0].contiguous()) for each in decoder.rotary_emb(hidden_PM, position_P[None]))
        norm, loop, hidden = decoder.norm, layer_loop(*self._kind, use_threads() > 1), bits_of(hidden_PM)
        fixed = (
            hidden, rows.num_tokens, rows.order_R, rows.parts(TILE_ROWS // self._kind[1]), rows.slots_R, rows.starts_R,
            rows.pasts_R, rows.widths_R, rows.leaders_R, rows.shared_R, cos_PD, sin_PD,
            np.float32(norm.variance_epsilon), np.float32(decoder.layers[0].self_attn.scaling),
        )  # fmt: skip
        words = [each.words for each in self._packed]
        if len(self._words) != len(words) or not all(map(operator.is_, words, self._words)):
            self._words = words
            self._operands = [
                _operands(layer, bits_of(keys), bits_of(values))
                for layer, keys, values in zip(decoder.layers, self._cache.keys, self._cache.values, strict=True)
            ]
        for operands in self._operands:
            loop(*fixed, *operands)
        return rms_norm(hidden_PM, norm.weight, norm.variance_epsilon)[0]


def _operands(layer: Any, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of `layer_loop`, what stays from pass to pass, until there are new weights."""
    attention, mlp = layer.self_attn, layer.mlp
    packed = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
    norms = (
        layer.input_layernorm,
        layer.post_attention_layernorm,
        *(getattr(attention, name, None) for name in ("q_norm", "k_norm")),
    )
    none = np.empty(0, np.uint16)
    return (
        keys, values, *(none if each is None else bits_of(each.weight.detach()) for each in norms),
        *(array for each in packed for array in (each.words, each.bias_words)),
    )  # fmt: skip
