"""Attention over per-episode cache slots, for any transformers decoder that takes its attention from the registry.

One forward pass serves decode rows (a new token and its draft each) and prefill segments (many new tokens of one slot)
packed into a single sequence, so no token is padding in the matrix products. Keys and values are written into
preallocated slots; nothing is re-prefilled between turns. It does not choose what runs (local.py) and knows no tokens.

Shape letters: S slots, H query heads, C key/value heads, L slot length, L' longest row, D head dimension, N packed
tokens, R decode rows, W tokens of the widest decode row, P decode tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from seekling.models.tiles import TILE_ROWS
from seekling.rollout.engine.cache import SlotCache
from seekling.rollout.engine.causal import attend
from seekling.rollout.engine.kernel import decode_attention
from seekling.rollout.engine.tiled import attend_tiled

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


class DecodeRows:
    """The decode rows of a pass: first in the packed sequence, row by row.

    Args:
        slots: of R rows.
        pasts: tokens cached before this pass.
        widths: new tokens, at least one each.
        leaders: slots that hold a row's first tokens too, and how many, in whole blocks; None: the row's own.
        device: of the caches.
    """

    def __init__(
        self,
        slots: list[int],
        pasts: list[int],
        widths: list[int],
        *,
        device: torch.device,
        leaders: list[tuple[int, int]] | None = None,
    ) -> None:
        self.slots_R, self.pasts_R, self.widths_R = np.asarray(slots), np.asarray(pasts), np.asarray(widths)
        self.leaders_R, self.shared_R = np.asarray(leaders or [(slot, 0) for slot in slots]).T.copy()
        self.starts_R = np.cumsum(self.widths_R) - self.widths_R
        self.num_tokens = int(self.widths_R.sum())
        self._device = device
        self._parts: dict[int, np.ndarray] = {}

    @cached_property
    def row_P(self) -> Tensor:
        """(P,) row of each token."""
        return torch.from_numpy(self._rows_P).to(self._device)

    @cached_property
    def offset_P(self) -> Tensor:
        """(P,) place of each token in its row."""
        return torch.from_numpy(np.arange(self.num_tokens) - self.starts_R[self._rows_P]).to(self._device)

    @cached_property
    def slot_P(self) -> Tensor:
        """(P,) slot of each token."""
        return torch.from_numpy(self.slots_R[self._rows_P]).to(self._device)

    @cached_property
    def position_P(self) -> Tensor:
        """(P,) place of each token in its slot."""
        return torch.from_numpy(self.pasts_R[self._rows_P]).to(self._device) + self.offset_P

    @cached_property
    def _rows_P(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.slots_R)), self.widths_R)

    @cached_property
    def order_R(self) -> np.ndarray:
        """(R,) rows, those that share a leader side by side, most in common first."""
        return np.lexsort((-self.shared_R, self.leaders_R))

    def parts(self, num_tokens: int) -> np.ndarray:
        """(I + 1,) where in `order_R` each stretch begins of rows that share a leader, and the end of the last.

        A stretch has one row or up to so many tokens, and its rows have about as much in common.
        """
        if num_tokens not in self._parts:
            begins: list[int] = []
            leader, room, common = -1, 0, 0
            for place, row in enumerate(self.order_R.tolist()):
                shared, width = int(self.shared_R[row]), int(self.widths_R[row])
                if not begins or self.leaders_R[row] != leader or width > room or not 0 < common <= 2 * shared:
                    begins.append(place)
                    leader, room, common = self.leaders_R[row], num_tokens, shared
                room, common = room - width, min(common, shared)
            self._parts[num_tokens] = np.asarray([*begins, len(self.slots_R)])
        return self._parts[num_tokens]

    @cached_property
    def is_seen_RWL(self) -> Tensor:
        """(R, W, L') token w of a row sees what is cached and the row's tokens up to itself."""
        last_R = self.pasts_R + self.widths_R - 1
        last_RW = np.minimum(self.pasts_R[:, None] + np.arange(self.widths_R.max()), last_R[:, None])
        return torch.from_numpy(np.arange(last_R.max() + 1) <= last_RW[:, :, None]).to(self._device)


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
    cache, query_NHD = plan.cache, query[0].transpose(0, 1)
    output_NHD = query.new_empty(query_NHD.shape)
    num_tokens = 0
    if plan.rows is not None:
        num_tokens = plan.rows.num_tokens
        decode = _decode if cache.layout == "rows" else _decode_compiled
        decode(
            query_NHD[:num_tokens],
            key[0, :, :num_tokens].transpose(0, 1),
            value[0, :, :num_tokens].transpose(0, 1),
            cache.keys[layer],
            cache.values[layer],
            plan.rows,
            scaling,
            output_NHD[:num_tokens],
        )
    for segment in plan.segments:
        num_tokens, end = segment.start + segment.length, segment.past + segment.length
        new = slice(segment.start, num_tokens)
        cache.store(layer, segment.slot, segment.past, key[0, :, new], value[0, :, new])
        if cache.layout == "pairs":
            held = cache.keys[layer][segment.slot], cache.values[layer][segment.slot]
            attended = attend_tiled(query[0, :, new], *held, num_before=segment.past, scaling=scaling)
        else:
            path = cache.path(layer, segment.slot, end)
            attended = attend(query[0, :, new], *path, num_before=segment.past, scaling=scaling)
        output_NHD[new] = attended[0].transpose(0, 1)
    output_NHD[num_tokens:] = 0
    return output_NHD.unsqueeze(0), None


def _decode_compiled(
    query_PHD: Tensor, key_PCD: Tensor, value_PCD: Tensor, keys: Tensor, values: Tensor, rows: DecodeRows,
    scaling: float, output_PHD: Tensor,
) -> None:  # fmt: skip
    decode_attention(
        query_PHD.contiguous(),
        key_PCD.contiguous(),
        value_PCD.contiguous(),
        keys,
        values,
        order_R=rows.order_R,
        parts_I=rows.parts(TILE_ROWS * key_PCD.shape[1] // query_PHD.shape[1]),
        slots_R=rows.slots_R,
        starts_R=rows.starts_R,
        pasts_R=rows.pasts_R,
        widths_R=rows.widths_R,
        leaders_R=rows.leaders_R,
        shared_R=rows.shared_R,
        scaling=scaling,
        output_PHD=output_PHD,
    )


def _decode(
    query_PHD: Tensor, key_PCD: Tensor, value_PCD: Tensor, keys_SCLD: Tensor, values_SCLD: Tensor, rows: DecodeRows,
    scaling: float, output_PHD: Tensor,
) -> None:  # fmt: skip
    """The same in batched calls, padded to the longest row and the widest."""
    keys_SCLD[rows.slot_P, :, rows.position_P] = key_PCD
    values_SCLD[rows.slot_P, :, rows.position_P] = value_PCD
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
    output_PHD.copy_(output_RCWGD[rows.row_P, :, rows.offset_P].reshape(num_tokens, num_heads, head_dim))


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
