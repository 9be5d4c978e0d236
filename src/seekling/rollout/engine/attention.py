"""Attention over per-episode cache slots, for any transformers decoder that takes its attention from the registry.

One forward pass serves decode rows (a new token and its draft each) and prefill segments (many new tokens of one slot)
packed into a single sequence, so no token is padding in the matrix products. Keys and values are written into
preallocated slots; nothing is re-prefilled between turns. It does not choose what runs (local.py) and knows no tokens.

Shape letters: S slots, H query heads, C key/value heads, L slot length, L' longest row, D head dimension, N packed
tokens, R decode rows, W tokens of the widest decode row, P decode tokens of all rows.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from seekling.models.pointwise import WORD_SHIFTS
from seekling.rollout.engine.causal import attend, fill_to_step
from seekling.rollout.engine.kernel import decode_attention

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


class DecodeRows:
    """The decode rows of a pass: first in the packed sequence, row by row.

    Args:
        slots: of R rows.
        pasts: tokens cached before this pass.
        widths: new tokens, at least one each.
        device: of the caches.
    """

    def __init__(self, slots: list[int], pasts: list[int], widths: list[int], *, device: torch.device) -> None:
        self.slots_R, self.pasts_R, self.widths_R = np.asarray(slots), np.asarray(pasts), np.asarray(widths)
        self.starts_R = np.cumsum(self.widths_R) - self.widths_R
        self.num_tokens = int(self.widths_R.sum())
        row_P = np.repeat(np.arange(len(slots)), self.widths_R)
        offset_P = np.arange(self.num_tokens) - self.starts_R[row_P]
        self.row_P = torch.from_numpy(row_P).to(device)
        self.offset_P = torch.from_numpy(offset_P).to(device)
        """Place of each token in its row."""
        self.slot_P = torch.from_numpy(self.slots_R[row_P]).to(device)
        self.position_P = torch.from_numpy(self.pasts_R[row_P] + offset_P).to(device)
        """Its place in the slot."""

    @cached_property
    def is_seen_RWL(self) -> Tensor:
        """(R, W, L') token w of a row sees what is cached and the row's tokens up to itself."""
        last_R = self.pasts_R + self.widths_R - 1
        last_RW = np.minimum(self.pasts_R[:, None] + np.arange(self.widths_R.max()), last_R[:, None])
        return torch.from_numpy(np.arange(last_R.max() + 1) <= last_RW[:, :, None]).to(self.row_P.device)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which packed tokens belong to which slots: decode rows first, then prefill segments. Any left are padding."""

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
        rows, new = plan.rows, slice(plan.rows.num_tokens)
        keys_SCLD[rows.slot_P, :, rows.position_P] = key[0, :, new].transpose(0, 1)
        values_SCLD[rows.slot_P, :, rows.position_P] = value[0, :, new].transpose(0, 1)
        decode = _decode_compiled if query.device.type == "cpu" and query.dtype in WORD_SHIFTS else _decode
        outputs.append(decode(query[0, :, new].transpose(0, 1), keys_SCLD, values_SCLD, rows, scaling))
    for segment in plan.segments:
        new = slice(segment.start, segment.start + segment.length)
        end = segment.past + segment.length
        keys_SCLD[segment.slot, :, segment.past : end] = key[0, :, new]
        values_SCLD[segment.slot, :, segment.past : end] = value[0, :, new]
        keys_CLD, values_CLD = keys_SCLD[segment.slot], values_SCLD[segment.slot]
        outputs.append(_prefill(query[0, :, new], keys_CLD, values_CLD, segment.past, scaling))
    num_tokens = sum(map(len, outputs))
    if num_tokens < query.shape[2]:
        outputs.append(outputs[0].new_zeros((query.shape[2] - num_tokens, *outputs[0].shape[1:])))
    return torch.cat(outputs).unsqueeze(0), None


def _decode_compiled(
    query_PHD: Tensor, keys_SCLD: Tensor, values_SCLD: Tensor, rows: DecodeRows, scaling: float
) -> Tensor:
    return decode_attention(
        query_PHD,
        keys_SCLD,
        values_SCLD,
        slots_R=rows.slots_R,
        starts_R=rows.starts_R,
        pasts_R=rows.pasts_R,
        widths_R=rows.widths_R,
        scaling=scaling,
    )


def _decode(query_PHD: Tensor, keys_SCLD: Tensor, values_SCLD: Tensor, rows: DecodeRows, scaling: float) -> Tensor:
    """The same in batched calls, padded to the longest row and the widest."""
    num_tokens, num_heads, head_dim = query_PHD.shape
    num_kv_heads = keys_SCLD.shape[1]
    num_rows, width, length = rows.is_seen_RWL.shape
    # Query heads that share a key/value head become query positions: no repeat of the cache.
    group = num_heads // num_kv_heads
    query_RCWGD = query_PHD.new_zeros((num_rows, num_kv_heads, width, group, head_dim))
    query_RCWGD[rows.row_P, :, rows.offset_P] = query_PHD.reshape(num_tokens, num_kv_heads, group, head_dim)
    slots_R = torch.from_numpy(rows.slots_R).to(query_PHD.device)
    output_RCQD = F.scaled_dot_product_attention(
        query_RCWGD.flatten(2, 3),
        keys_SCLD[slots_R, :, :length],
        values_SCLD[slots_R, :, :length],
        attn_mask=rows.is_seen_RWL.repeat_interleave(group, 1)[:, None],
        scale=scaling,
    )
    output_RCWGD = output_RCQD.view(num_rows, num_kv_heads, width, group, head_dim)
    return output_RCWGD[rows.row_P, :, rows.offset_P].reshape(num_tokens, num_heads, head_dim)


def _prefill(query_HND: Tensor, keys_CLD: Tensor, values_CLD: Tensor, past: int, scaling: float) -> Tensor:
    """(N, H, D) of a segment whose own keys are in its slot already."""
    num_new = query_HND.shape[1]
    if query_HND.device.type == "cpu":
        keys, values = (fill_to_step(each, past + num_new) for each in (keys_CLD, values_CLD))
        return attend(query_HND, keys, values, num_before=past, scaling=scaling)[0].transpose(0, 1)
    keys_1CKD, values_1CKD = keys_CLD[None, :, : past + num_new], values_CLD[None, :, : past + num_new]
    mask = torch.ones(num_new, past + num_new, dtype=torch.bool, device=query_HND.device).tril(past) if past else None
    output = F.scaled_dot_product_attention(
        query_HND[None],
        keys_1CKD,
        values_1CKD,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1)


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
