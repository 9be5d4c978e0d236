"""Passes that only decode, each layer in one compiled loop: over tiles, or over weights of eight bits.

Shape letters: P decode tokens of all rows, M width of the model.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from seekling.kernels.amx import layer as tiled
from seekling.kernels.amx.tiles import TILE_ROWS
from seekling.kernels.linear import EightBitLinear, PackedLinear
from seekling.kernels.vector import layer as rounded
from seekling.kernels.vector.eight_bits import COLUMNS
from seekling.kernels.vector.pointwise import WORD_SHIFTS, bits_of, rms_norm, use_threads

if TYPE_CHECKING:
    from seekling.kernels.slots import DecodeRows, SlotCache

MOST_TOKENS = 128
"""Of a decode pass by loops; with more, what the calls of single products cost is little."""


class DecodeLoops:
    """Decode passes of a few tokens through a model of known layers, each layer in one call of a `layer_loop`.

    All layers of the decoder are fused (rollout/engine/fused.py); it may take new weights between passes.
    """

    def __init__(self, decoder: Any, cache: SlotCache) -> None:
        self._decoder, self._cache = decoder, cache
        attention = decoder.layers[0].self_attn
        num_kv_heads = cache.keys[0].shape[1]
        self._kind = attention.head_dim, attention.o_proj.in_features // attention.head_dim // num_kv_heads
        self._packed = [each for each in decoder.modules() if isinstance(each, PackedLinear)]
        self._is_tiled = cache.layout == "pairs"
        self._words: list[np.ndarray | None] = []
        self._held: list[Tensor] = []
        self._operands: list[tuple[np.ndarray, ...]] = []

    @staticmethod
    def of(decoder: nn.Module, cache: SlotCache) -> DecodeLoops | None:
        """The loops of a decoder, if all of its layers are fused, their norms alike, and loops take them."""
        layers: list[Any] = list(decoder.get_submodule("layers").children())
        epsilons = {each.variance_epsilon for each in decoder.modules() if type(each).__name__.endswith("RMSNorm")}
        kind = {"pairs": PackedLinear, "blocks": EightBitLinear}.get(cache.layout)
        packed = [each for each in decoder.modules() if isinstance(each, PackedLinear)]
        is_taken = all(type(each) is kind and each.in_features % COLUMNS == 0 for each in packed)
        are_fused = all(isinstance(getattr(layer.self_attn, "qkv_proj", None), PackedLinear) for layer in layers)
        return DecodeLoops(decoder, cache) if is_taken and are_fused and len(epsilons) == 1 else None

    def takes(self, num_tokens: int) -> bool:
        """Whether passes of so many tokens can be run with the weights as they are."""
        return num_tokens <= MOST_TOKENS and all(each.words is not None for each in self._packed)

    def run(self, token_ids_P: Tensor, position_P: Tensor, rows: DecodeRows) -> Tensor:
        """(P, M) hidden states behind the last norm, of the tokens of decode rows."""
        decoder = self._decoder
        hidden_PM = decoder.embed_tokens(token_ids_P)
        cos_PD, sin_PD = (bits_of(each[0].contiguous()) for each in decoder.rotary_emb(hidden_PM, position_P[None]))
        norm, hidden, is_parallel = decoder.norm, bits_of(hidden_PM), use_threads() > 1
        if self._is_tiled:
            loop = tiled.layer_loop(*self._kind, is_parallel)
        else:
            loop = rounded.layer_loop(WORD_SHIFTS[hidden_PM.dtype], *self._kind, is_parallel)
        fixed = (
            hidden, rows.num_tokens, *rows.places(TILE_ROWS // self._kind[1]), cos_PD, sin_PD,
            np.float32(norm.variance_epsilon), np.float32(decoder.layers[0].self_attn.scaling),
        )  # fmt: skip
        words = [each.words for each in self._packed]
        is_same = self._held is self._cache.keys and len(self._words) == len(words)
        if not is_same or not all(map(operator.is_, words, self._words)):
            self._words, self._held = words, self._cache.keys
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
    none = np.empty(0, bits_of(norms[0].weight.detach()).dtype)
    return (
        keys, values, *(none if each is None else bits_of(each.weight.detach()) for each in norms),
        *(array for each in packed for array in each.operands),
    )  # fmt: skip
