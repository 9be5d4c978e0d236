"""Decoder layers of known kinds in nine calls instead of forty, for the sampler on a CPU.

With a few rows a decode step is spent reading weights; between them, every small operation's Python starts with cold
caches and takes several times what it would take alone. Here a layer's matrices that read the same input are one, its
residual sums happen inside of matrix products, and the rotation is one loop. The arithmetic is transformers', except
that a residual sum is rounded once instead of twice. Layers of other kinds stay as they are.

Shape letters: N packed tokens, E heads of all kinds, H query heads, C key/value heads, D head dimension.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from seekling.models.pointwise import bits_of, gated_silu_halves, rms_norm, rotate_, use_threads
from seekling.models.tiles import TILE_ROWS
from seekling.rollout.engine.attention import AttentionPlan, DecodeRows, slot_attention
from seekling.rollout.engine.cache import SlotCache
from seekling.rollout.engine.layer import layer_loop
from seekling.rollout.engine.packed import PackedLinear

MOST_TOKENS = 128
"""Of a decode pass by loops; with more, oneDNN's products save what its calls cost."""
KINDS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


def fuse_layers(model: PreTrainedModel, names: Mapping[int, str]) -> Iterator[PackedLinear]:
    """Replace the forward passes of the decoder layers that are known, in place, and pack what reads the same input.

    `pack_linear_layers` must pack the rest before the model is used.

    Args:
        model: one that `can_pack` accepts, its attention that of the slots.
        names: of its parameters by their ids.

    Yields:
        The packed layers, each of which holds several weights.
    """
    for layer in list(model.modules()):
        if type(layer).__name__ in KINDS and _is_plain(model, layer):
            yield from _fuse(layer, names)


def _is_plain(model: PreTrainedModel, layer: Any) -> bool:
    """Whether all of the head is rotated, the gate is a SiLU, and everything is of one type."""
    num_rotated = 2 * len(model.get_decoder().rotary_emb.inv_freq)
    activation = type(layer.mlp.act_fn).__name__
    is_one_type = {parameter.dtype for parameter in layer.parameters()} == {model.dtype}
    return num_rotated == layer.self_attn.head_dim and activation.startswith("SiLU") and is_one_type


def _fuse(layer: Any, names: Mapping[int, str]) -> Iterator[PackedLinear]:
    attention, mlp = layer.self_attn, layer.mlp
    num_kv_heads = attention.k_proj.out_features // attention.head_dim
    joined = (attention, "qkv_proj", ("q_proj", "k_proj", "v_proj")), (mlp, "gate_up_proj", ("gate_proj", "up_proj"))
    for module, name, parts in joined:
        setattr(module, name, PackedLinear.of(*(getattr(module, part) for part in parts), names=names))
        for part in parts:
            delattr(module, part)
        yield getattr(module, name)
    layer.forward = partial(_layer, layer, num_kv_heads)


def _layer(
    layer: Any,
    num_kv_heads: int,
    hidden_states: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    plan: AttentionPlan,
    **_: object,
) -> Tensor:
    attention, mlp, hidden_ND = layer.self_attn, layer.mlp, hidden_states[0]
    heads_NED = attention.qkv_proj(_norm(layer.input_layernorm, hidden_ND))
    heads_NED = heads_NED.view(len(hidden_ND), -1, attention.head_dim)
    num_heads = heads_NED.shape[1] - 2 * num_kv_heads
    num_rotated = num_heads + num_kv_heads
    query_NHD, key_NCD, value_NCD = heads_NED.split([num_heads, num_kv_heads, num_kv_heads], 1)
    if type(layer).__name__.startswith("Qwen3"):
        query_NHD.copy_(_norm(attention.q_norm, query_NHD))
        key_NCD.copy_(_norm(attention.k_norm, key_NCD))
    rotate_(heads_NED, num_rotated, *(each[0] for each in position_embeddings))
    query, key, value = (each.transpose(0, 1)[None] for each in (query_NHD, key_NCD, value_NCD))
    attended_1NHD = slot_attention(attention, query, key, value, None, plan=plan, scaling=attention.scaling)[0]
    hidden_ND = attention.o_proj.add_to(hidden_ND, attended_1NHD.flatten(2)[0])
    gated = gated_silu_halves(mlp.gate_up_proj(_norm(layer.post_attention_layernorm, hidden_ND)))
    output: Tensor = mlp.down_proj.add_to(hidden_ND, gated)
    return output[None]


def _norm(module: Any, hidden: Tensor) -> Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1])
    return rms_norm(rows, module.weight, module.variance_epsilon)[0].view(hidden.shape)


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
        """The loops of a decoder, if its layers, and what is around them, are of a kind that they compute."""
        layers = list(getattr(decoder, "layers", []))
        kinds = {type(layer).__name__ for layer in layers}
        if cache.layout != "pairs" or len(kinds) != 1 or not kinds.issubset(KINDS):
            return None
        epsilons = {each.variance_epsilon for each in decoder.modules() if type(each).__name__.endswith("RMSNorm")}
        are_fused = all(isinstance(getattr(layer.self_attn, "qkv_proj", None), PackedLinear) for layer in layers)
        is_known = type(decoder).__name__ == kinds.pop().replace("DecoderLayer", "Model")
        return DecodeLoops(decoder, cache) if is_known and are_fused and len(epsilons) == 1 else None

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
