"""Keys and values of the episodes in flight, preallocated per layer, and attention over them.

One pass serves decode rows (a new token and its draft each) and prefill segments (many new tokens of one slot), packed
into a single sequence, so no token is padding in the matrix products. Keys and values are written into their slots;
nothing is prefilled again between turns. It does not choose what runs (rollout/engine/local.py) and knows no tokens.

For loops the keys of `STEP` tokens form a block that holds one dimension after the other: a loop over tokens then reads
them side by side, and no score needs a sum across a register. For tiles a block holds pairs of dimensions, and values
are pairs of tokens.

Shape letters: S slots, H query heads, C key/value heads, L slot length, L' longest row, D head dimension, E = D / 2
pairs of dimensions, F = L / 2 pairs of tokens, B blocks of a slot, K = STEP tokens of a block, N packed tokens, R
decode rows, W tokens of the widest decode row, P decode tokens of all rows, T tokens of a path.
"""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.kernels.amx.attention import attend_tiled, store_pairs
from seekling.kernels.amx.tiles import TILE_ROWS
from seekling.kernels.backend import takes_loops, takes_tiles
from seekling.kernels.memory import STEP, up_to_step
from seekling.kernels.vector.attention import decode_attention, path_of, store_keys
from seekling.kernels.vector.paths import attend

_ADVICE_CLEARS = sys.platform == "linux"
"""Elsewhere MADV_DONTNEED is a hint, and pages keep what they held, which may be NaN after damaged weights."""


class SlotCache:
    """Keys and values of S episodes.

    Args:
        num_layers, num_kv_heads, head_dim: of the model.
        num_slots: S.
        slot_tokens: the longest episode; L is the next whole `STEP`.
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
        self.num_tokens = up_to_step(slot_tokens)
        """L."""
        self._shape = num_layers, num_slots, num_kv_heads, self.num_tokens, head_dim
        self._dtype, self._device = dtype, device
        self._memory: mmap.mmap | None = None
        self.layout: Literal["pairs", "blocks", "rows"] = "rows"
        """How keys and values lie, and so what reads them."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        """For each layer: pairs (S, C, B, E, K) and (S, C, F, D); blocks (S, C, B, D, K) and (S, C, L, D); or rows
        (S, C, L, D) both."""
        if device.type == "cpu":
            self._map()
            return
        # Zeros, not just any memory: a masked score is garbage plus -inf, which is NaN where the garbage holds one.
        made = [torch.zeros(self._shape[1:], dtype=dtype, device=device) for _ in range(2 * num_layers)]
        self.keys, self.values = made[:num_layers], made[num_layers:]

    def _map(self) -> None:
        """Pages that no episode reaches cost no memory, and all can be given back at once."""
        num_layers, num_slots, num_kv_heads, _, head_dim = self._shape
        num_bytes = 2 * math.prod(self._shape) * self._dtype.itemsize
        self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        both = torch.frombuffer(self._memory, dtype=self._dtype).view(2, *self._shape)
        (keys, values), slots = both, (num_layers, num_slots, num_kv_heads)
        if takes_tiles(self._dtype, self._device, head_dim):
            self.layout, (keys, values) = "pairs", both.view(torch.uint32)
            keys, values = keys.view(*slots, -1, head_dim // 2, STEP), values.view(*slots, -1, head_dim)
        elif takes_loops(keys):
            self.layout, keys = "blocks", keys.view(*slots, -1, head_dim, STEP)
        self.keys, self.values = list(keys), list(values)

    def release(self) -> None:
        """Forget everything; on a CPU the memory goes back to the system until it is written again."""
        if self._memory is not None and _ADVICE_CLEARS:
            self._memory.madvise(mmap.MADV_DONTNEED)
            return
        if self._memory is not None:
            self._map()
            return
        for each in (*self.keys, *self.values):
            each.zero_()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first positions of one slot to another; both then hold the very same there."""
        for values in self.values:
            stop = -(-length // 2) if self.layout == "pairs" else length
            values[target, :, :stop].copy_(values[source, :, :stop])
        for keys in self.keys:
            stop = length if self.layout == "rows" else up_to_step(length) // STEP
            keys[target, :, :stop].copy_(keys[source, :, :stop])

    def store(self, layer: int, slot: int, past: int, key_CND: Tensor, value_CND: Tensor) -> None:
        """Write keys and values of N tokens behind the first `past`."""
        keys, values, new = self.keys[layer][slot], self.values[layer][slot], slice(past, past + key_CND.shape[1])
        if self.layout == "pairs":
            store_pairs(past, key_CND, value_CND, keys, values)
            return
        values[:, new] = value_CND
        if self.layout == "blocks":
            store_keys(key_CND, past, keys)
        else:
            keys[:, new] = key_CND

    def path(self, layer: int, slot: int, end: int) -> tuple[Tensor, Tensor]:
        """(C, T, D) keys and values of a slot's first `end` tokens, not in pairs; T is the next whole `STEP`."""
        keys, values_CLD, stop = self.keys[layer][slot], self.values[layer][slot], up_to_step(end)
        return keys[:, :stop] if self.layout == "rows" else path_of(keys, stop), values_CLD[:, :stop]


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


def attend_slots(
    query_HND: Tensor, key_CND: Tensor, value_CND: Tensor, layer: int, plan: AttentionPlan, scaling: float
) -> Tensor:
    """Write the new keys and values into their slots and attend over them.

    Args:
        query_HND: of N packed tokens, rotary embedding applied.
        key_CND: likewise.
        value_CND: likewise.
        layer: whose cache it is.
        plan: what the packed tokens are.
        scaling: factor on the scores.

    Returns:
        (N, H, D); 0 of padding.
    """
    cache, query_NHD = plan.cache, query_HND.transpose(0, 1)
    output_NHD = query_HND.new_empty(query_NHD.shape)
    num_tokens = 0
    if plan.rows is not None:
        num_tokens = plan.rows.num_tokens
        decode = _decode if cache.layout == "rows" else _decode_compiled
        decode(
            query_NHD[:num_tokens],
            key_CND[:, :num_tokens].transpose(0, 1),
            value_CND[:, :num_tokens].transpose(0, 1),
            cache.keys[layer],
            cache.values[layer],
            plan.rows,
            scaling,
            output_NHD[:num_tokens],
        )
    for segment in plan.segments:
        num_tokens, end = segment.start + segment.length, segment.past + segment.length
        new = slice(segment.start, num_tokens)
        cache.store(layer, segment.slot, segment.past, key_CND[:, new], value_CND[:, new])
        if cache.layout == "pairs":
            held = cache.keys[layer][segment.slot], cache.values[layer][segment.slot]
            attended = attend_tiled(query_HND[:, new], *held, num_before=segment.past, scaling=scaling)[0]
        elif cache.layout == "blocks":
            path = cache.path(layer, segment.slot, end)
            attended = attend(query_HND[:, new], *path, num_before=segment.past, scaling=scaling)[0]
        else:
            held = cache.keys[layer][segment.slot, :, :end], cache.values[layer][segment.slot, :, :end]
            attended = _prefill(query_HND[:, new], *held, scaling)
        output_NHD[new] = attended.transpose(0, 1)
    output_NHD[num_tokens:] = 0
    return output_NHD


def _prefill(query_HND: Tensor, key_CTD: Tensor, value_CTD: Tensor, scaling: float) -> Tensor:
    """(H, N, D) of the last N tokens of a path."""
    num_new, length = query_HND.shape[1], key_CTD.shape[1]
    is_seen_NT = torch.ones(num_new, length, dtype=torch.bool, device=query_HND.device).tril(length - num_new)
    group = query_HND.shape[0] // key_CTD.shape[0]
    key_HTD, value_HTD = (each.repeat_interleave(group, 0) for each in (key_CTD, value_CTD))
    return F.scaled_dot_product_attention(
        query_HND[None], key_HTD[None], value_HTD[None], attn_mask=is_seen_NT, scale=scaling
    )[0]


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
