"""Attention over cache slots in transformers' registry, and decoder layers of known kinds in nine calls, not forty.

Fused layers are for the sampler on a CPU: matrices that read the same input are one, residual sums happen inside of
matrix products, and the rotation is one loop. The arithmetic is transformers', except that a residual sum is rounded
once instead of twice. Layers of other kinds stay as they are.

Shape letters: N packed tokens, E heads of all kinds, H query heads, C key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from seekling.kernels.layer import DecodeLoops
from seekling.kernels.linear import PackedLinear
from seekling.kernels.norms import rms_norm, rotate_, silu_gate_halves
from seekling.kernels.slots import AttentionPlan, SlotCache, attend_slots

SLOT_ATTENTION = "seekling_slots"
KINDS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: AttentionPlan,
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Write new keys and values (1, C, N, D) into their slots, attend, return (1, N, H, D) and None for transformers.

    `layer_idx` of the module names its cache; query (1, H, N, D) and keys are rotated; the plan knows the lengths.
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    return attend_slots(query[0], key[0], value[0], layer, plan, scaling).unsqueeze(0), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)


def fuse_layers(
    model: PreTrainedModel, names: Mapping[int, str], kind: type[PackedLinear] = PackedLinear
) -> Iterator[PackedLinear]:
    """Replace the forward passes of the decoder layers that are known, in place, and pack what reads the same input.

    Yields the packed layers, each of which holds several weights; `pack_linear_layers` must pack the rest before the
    model is used. `names` are those of its parameters by their ids, `kind` is that of the packed layers.
    """
    for layer in list(model.modules()):
        if type(layer).__name__ in KINDS and _is_plain(model, layer):
            yield from _fuse(layer, names, kind)


def _is_plain(model: PreTrainedModel, layer: Any) -> bool:
    """Whether all of the head is rotated, the gate is a SiLU, and everything is of one type."""
    num_rotated = 2 * len(model.get_decoder().rotary_emb.inv_freq)
    activation = type(layer.mlp.act_fn).__name__
    is_one_type = {parameter.dtype for parameter in layer.parameters()} == {model.dtype}
    return num_rotated == layer.self_attn.head_dim and activation.startswith("SiLU") and is_one_type


def _fuse(layer: Any, names: Mapping[int, str], kind: type[PackedLinear]) -> Iterator[PackedLinear]:
    attention, mlp = layer.self_attn, layer.mlp
    num_kv_heads = attention.k_proj.out_features // attention.head_dim
    joined = (attention, "qkv_proj", ("q_proj", "k_proj", "v_proj")), (mlp, "gate_up_proj", ("gate_proj", "up_proj"))
    for module, name, parts in joined:
        setattr(module, name, kind.of(*(getattr(module, part) for part in parts), names=names))
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
    gated = silu_gate_halves(mlp.gate_up_proj(_norm(layer.post_attention_layernorm, hidden_ND)))
    output: Tensor = mlp.down_proj.add_to(hidden_ND, gated)
    return output[None]


def _norm(module: Any, hidden: Tensor) -> Tensor:
    return rms_norm(hidden, module.weight, module.variance_epsilon)


def decode_loops(decoder: nn.Module, cache: SlotCache) -> DecodeLoops | None:
    """What runs passes that only decode through fused layers, one call a layer, where that is possible."""
    kinds = {type(layer).__name__ for layer in getattr(decoder, "layers", [])}
    is_known = type(decoder).__name__ in {kind.replace("DecoderLayer", "Model") for kind in kinds & set(KINDS)}
    return DecodeLoops.of(decoder, cache) if is_known and len(kinds) == 1 else None
