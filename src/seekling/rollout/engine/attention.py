"""Attention over per-episode cache slots, for any transformers decoder that takes its attention from the registry.

One forward pass serves decode rows (one new token each) and prefill segments (several new tokens of one slot) packed
into a single sequence, so no token is padding in the matrix products. Keys and values are written into preallocated
slots; nothing is re-prefilled between turns. It does not choose what runs (local.py) and knows no tokens.

Shape letters: S slots, H query heads, C key/value heads, L cache length, D head dimension, N packed tokens, R decode
rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

SLOT_ATTENTION = "seekling_slots"


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one slot inside the packed sequence."""

    slot: int
    start: int
    """Offset of the first new token in the packed sequence."""
    past: int
    """Tokens of the slot that are cached already."""
    length: int


class SlotCache:
    """Keys and values of S episodes, preallocated per layer.

    Args:
        num_layers, num_kv_heads, head_dim: of the model.
        num_slots: S.
        slot_tokens: L, the longest episode.
        dtype, device: of keys and values.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_slots: int,
        slot_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_slots, num_kv_heads, slot_tokens, head_dim)
        self.keys = [_zeros(shape, dtype, device) for _ in range(num_layers)]
        self.values = [_zeros(shape, dtype, device) for _ in range(num_layers)]

    def copy_prefix(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions [start, end) of one slot to another; both then hold the same tokens there."""
        for tensor_SCLD in (*self.keys, *self.values):
            tensor_SCLD[target, :, start:end].copy_(tensor_SCLD[source, :, start:end])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not empty: a masked score is garbage plus -inf, which is NaN where recycled memory happens to hold one."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for pages that are zero already, so those that no episode reaches cost no memory.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which packed tokens belong to which slots: decode rows first, then prefill segments."""

    cache: SlotCache
    rows_R: Tensor
    """(R,) slot of each decode row."""
    past_R: Tensor
    """(R,) tokens cached before this step."""
    bias_R11L: Tensor | None
    """(R, 1, 1, L') additive mask over the longest decode row; None without decode rows."""
    segments: tuple[Segment, ...]


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
    """Write the new keys and values into their slots and attend over them.

    Args:
        module: the attention layer; `layer_idx` names its cache.
        query: (1, H, N, D), rotary embedding applied.
        key: (1, C, N, D), rotary embedding applied.
        value: (1, C, N, D).
        attention_mask: ignored, the plan knows the lengths.
        plan: what the packed tokens are.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D) and None, as transformers expects.
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    keys_SCLD, values_SCLD = plan.cache.keys[layer], plan.cache.values[layer]
    num_rows = plan.rows_R.shape[0]
    outputs = []
    if plan.bias_R11L is not None:
        keys_SCLD[plan.rows_R, :, plan.past_R] = key[0, :, :num_rows].transpose(0, 1)
        values_SCLD[plan.rows_R, :, plan.past_R] = value[0, :, :num_rows].transpose(0, 1)
        outputs.append(_decode(query[0, :, :num_rows], keys_SCLD, values_SCLD, plan, scaling))
    for segment in plan.segments:
        new = slice(segment.start, segment.start + segment.length)
        end = segment.past + segment.length
        keys_SCLD[segment.slot, :, segment.past : end] = key[0, :, new]
        values_SCLD[segment.slot, :, segment.past : end] = value[0, :, new]
        keys_CLD, values_CLD = keys_SCLD[segment.slot, :, :end], values_SCLD[segment.slot, :, :end]
        outputs.append(_prefill(query[0, :, new], keys_CLD, values_CLD, segment.past, scaling))
    return torch.cat(outputs).unsqueeze(0), None


def _decode(query_HRD: Tensor, keys_SCLD: Tensor, values_SCLD: Tensor, plan: AttentionPlan, scaling: float) -> Tensor:
    num_heads, num_rows, head_dim = query_HRD.shape
    num_kv_heads = keys_SCLD.shape[1]
    assert plan.bias_R11L is not None
    length = plan.bias_R11L.shape[-1]
    # Query heads that share a key/value head become query positions: no repeat of the cache.
    query_RCGD = query_HRD.transpose(0, 1).reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    first, last = int(plan.rows_R[0]), int(plan.rows_R[-1])  # rows are sorted
    if 2 * num_rows < last - first + 1:
        keys, values = keys_SCLD[:, :, :length][plan.rows_R], values_SCLD[:, :, :length][plan.rows_R]
        output = F.scaled_dot_product_attention(query_RCGD, keys, values, attn_mask=plan.bias_R11L, scale=scaling)
        return output.reshape(num_rows, num_heads, head_dim)
    # Reading a range of slots in place, and a few for nothing, is cheaper than gathering copies of the wanted ones.
    span, inside_R = slice(first, last + 1), plan.rows_R - first
    query_SCGD = query_RCGD.new_zeros((last - first + 1, *query_RCGD.shape[1:]))
    query_SCGD[inside_R] = query_RCGD
    bias_S11L = plan.bias_R11L.new_zeros((last - first + 1, 1, 1, length))
    bias_S11L[inside_R] = plan.bias_R11L
    output = F.scaled_dot_product_attention(
        query_SCGD, keys_SCLD[span, :, :length], values_SCLD[span, :, :length], attn_mask=bias_S11L, scale=scaling
    )[inside_R]
    return output.reshape(num_rows, num_heads, head_dim)


def _prefill(query_HND: Tensor, keys_CLD: Tensor, values_CLD: Tensor, past: int, scaling: float) -> Tensor:
    num_heads, num_new, _ = query_HND.shape
    repeat = num_heads // keys_CLD.shape[0]
    keys_HLD, values_HLD = keys_CLD.repeat_interleave(repeat, 0), values_CLD.repeat_interleave(repeat, 0)
    mask = None
    if past:
        mask = torch.ones(num_new, past + num_new, dtype=torch.bool, device=query_HND.device).tril(past)
    output = F.scaled_dot_product_attention(
        query_HND[None], keys_HLD[None], values_HLD[None], attn_mask=mask, is_causal=mask is None, scale=scaling
    )
    return output[0].transpose(0, 1)


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
