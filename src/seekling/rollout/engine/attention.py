"""Attention over per-episode cache slots, for any transformers decoder that takes its attention from the registry.

One forward pass serves decode rows (a new token and its draft each) and prefill segments (many new tokens of one slot)
packed into a single sequence, so no token is padding in the matrix products. Keys and values are written into
preallocated slots; nothing is re-prefilled between turns. It does not choose what runs (local.py) and knows no tokens.

Shape letters: S slots, H query heads, C key/value heads, L cache length, D head dimension, N packed tokens, R decode
rows, W tokens of the widest decode row, P decode tokens of all rows.
"""

from __future__ import annotations

import math
import mmap
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
        shape = (2, num_layers, num_slots, num_kv_heads, slot_tokens, head_dim)
        self._memory: mmap.mmap | None = None
        if device.type == "cpu":
            # Pages that no episode reaches cost no memory, and all can be given back at once.
            self._memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            both = torch.frombuffer(self._memory, dtype=dtype).view(shape)
        else:
            both = torch.zeros(shape, dtype=dtype, device=device)
        # Zeros, not just any memory: a masked score is garbage plus -inf, which is NaN where the garbage holds one.
        self.keys, self.values = list(both[0]), list(both[1])

    def release(self) -> None:
        """Forget everything, and on a CPU give the memory back to the system until it is written again."""
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)

    def copy_prefix(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions [start, end) of one slot to another; both then hold the same tokens there."""
        for tensor_SCLD in (*self.keys, *self.values):
            tensor_SCLD[target, :, start:end].copy_(tensor_SCLD[source, :, start:end])


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The decode rows of a pass: first in the packed sequence, row by row."""

    slots_R: Tensor
    """(R,) rising."""
    widths: tuple[int, ...]
    """R numbers of new tokens."""
    bias_RWL: Tensor
    """(R, W, L') additive mask: token w of a row sees what is cached and the row's tokens up to itself."""
    row_P: Tensor
    """(P,) row of each token."""
    offset_P: Tensor
    """(P,) its place in the row."""
    position_P: Tensor
    """(P,) its place in the slot."""


def decode_rows(
    slots: list[int], pasts: list[int], widths: list[int], *, dtype: torch.dtype, device: torch.device
) -> DecodeRows:
    """Lay out decode rows.

    Args:
        slots: of R rows, rising.
        pasts: tokens cached before this pass.
        widths: new tokens, at least one each.
        dtype: of the mask.
        device: of everything.
    """
    past_R, width_R = np.asarray(pasts), np.asarray(widths)
    row_P = np.repeat(np.arange(len(slots)), width_R)
    offset_P = np.concatenate([np.arange(width) for width in widths])
    last_RW = np.minimum(past_R[:, None] + np.arange(width_R.max()), (past_R + width_R - 1)[:, None])
    is_hidden_RWL = torch.from_numpy(np.arange(last_RW.max() + 1) > last_RW[:, :, None])
    bias_RWL = torch.zeros(is_hidden_RWL.shape, dtype=dtype).masked_fill_(is_hidden_RWL, float("-inf"))
    return DecodeRows(
        torch.tensor(slots, device=device),
        tuple(widths),
        bias_RWL.to(device),
        torch.from_numpy(row_P).to(device),
        torch.from_numpy(offset_P).to(device),
        torch.from_numpy(past_R[row_P] + offset_P).to(device),
    )


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which packed tokens belong to which slots: decode rows first, then prefill segments."""

    cache: SlotCache
    rows: DecodeRows | None
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
    outputs = []
    if plan.rows is not None:
        rows = plan.rows
        num_tokens = rows.row_P.shape[0]
        slot_P = rows.slots_R[rows.row_P]
        keys_SCLD[slot_P, :, rows.position_P] = key[0, :, :num_tokens].transpose(0, 1)
        values_SCLD[slot_P, :, rows.position_P] = value[0, :, :num_tokens].transpose(0, 1)
        outputs.append(_decode(query[0, :, :num_tokens], keys_SCLD, values_SCLD, rows, scaling))
    for segment in plan.segments:
        new = slice(segment.start, segment.start + segment.length)
        end = segment.past + segment.length
        keys_SCLD[segment.slot, :, segment.past : end] = key[0, :, new]
        values_SCLD[segment.slot, :, segment.past : end] = value[0, :, new]
        keys_CLD, values_CLD = keys_SCLD[segment.slot, :, :end], values_SCLD[segment.slot, :, :end]
        outputs.append(_prefill(query[0, :, new], keys_CLD, values_CLD, segment.past, scaling))
    return torch.cat(outputs).unsqueeze(0), None


def _decode(query_HPD: Tensor, keys_SCLD: Tensor, values_SCLD: Tensor, rows: DecodeRows, scaling: float) -> Tensor:
    num_heads, num_tokens, head_dim = query_HPD.shape
    num_kv_heads = keys_SCLD.shape[1]
    _, width, length = rows.bias_RWL.shape
    first, last = int(rows.slots_R[0]), int(rows.slots_R[-1])
    span = last - first + 1
    if 2 * len(rows.widths) < span:
        keys, values = keys_SCLD[:, :, :length][rows.slots_R], values_SCLD[:, :, :length][rows.slots_R]
        place_R, span = torch.arange(len(rows.widths), device=keys.device), len(rows.widths)
    else:
        # Reading a range of slots in place, and a few for nothing, is cheaper than gathering copies of the wanted ones.
        keys, values = keys_SCLD[first : last + 1, :, :length], values_SCLD[first : last + 1, :, :length]
        place_R = rows.slots_R - first
    # Query heads that share a key/value head become query positions: no repeat of the cache.
    group = num_heads // num_kv_heads
    query_PCGD = query_HPD.transpose(0, 1).reshape(num_tokens, num_kv_heads, group, head_dim)
    query_SCWGD = query_PCGD.new_zeros((span, num_kv_heads, width, group, head_dim))
    place_P = place_R[rows.row_P]
    query_SCWGD[place_P, :, rows.offset_P] = query_PCGD
    bias_SWL = rows.bias_RWL.new_zeros((span, width, length))
    bias_SWL[place_R] = rows.bias_RWL
    output_SCQD = F.scaled_dot_product_attention(
        query_SCWGD.flatten(2, 3),
        keys,
        values,
        attn_mask=bias_SWL.repeat_interleave(group, 1)[:, None],
        scale=scaling,
    )
    output_SCWGD = output_SCQD.view(span, num_kv_heads, width, group, head_dim)
    return output_SCWGD[place_P, :, rows.offset_P].reshape(num_tokens, num_heads, head_dim)


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
