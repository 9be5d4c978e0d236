"""Keys and values of the episodes in flight, preallocated per layer, and attention over them.

One pass serves decode rows (a new token and its draft each) and prefill segments (many new tokens of one slot), packed
into one sequence, so no token is padding in the matrix products. What runs is chosen in rollout/engine/local.py.

For loops the keys of `STEP` tokens form a block that holds one dimension after the other: read token by token, no score
needs a sum across a register. For tiles a block holds pairs of dimensions, and values are pairs of tokens.

Shape letters: S slots, H query heads, C key/value heads, L slot length, D head dimension, E = D / 2 pairs of
dimensions, F = L / 2 pairs of tokens, B blocks of a slot, K = STEP tokens of a block, N packed tokens, R decode rows, P
decode tokens of all rows, T tokens of a path.
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

from seekling.kernels.amx.attention import attend_tiled, decode_loop, store_pairs
from seekling.kernels.amx.tiles import TILE_ROWS
from seekling.kernels.backend import takes_loops, takes_tiles
from seekling.kernels.memory import STEP, up_to_step
from seekling.kernels.vector.attention import row_loop
from seekling.kernels.vector.paths import attend
from seekling.kernels.vector.pointwise import WORD_SHIFTS, bits_of, use_threads

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
        keys, values, num_new = self.keys[layer][slot], self.values[layer][slot], key_CND.shape[1]
        if self.layout == "pairs":
            store_pairs(past, key_CND, value_CND, keys, values)
            return
        values[:, past : past + num_new] = value_CND
        if self.layout == "blocks":
            place_N = torch.arange(past, past + num_new)
            keys[:, place_N // STEP, :, place_N % STEP] = key_CND.transpose(0, 1)
        else:
            keys[:, past : past + num_new] = key_CND

    def attend(self, layer: int, slot: int, past: int, query_HND: Tensor, scaling: float) -> Tensor:
        """(H, N, D) of the N tokens that were stored behind the first `past`."""
        keys, values, end = self.keys[layer][slot], self.values[layer][slot], past + query_HND.shape[1]
        if self.layout == "pairs":
            return attend_tiled(query_HND, keys, values, num_before=past, scaling=scaling)[0]
        if self.layout == "blocks":
            stop = up_to_step(end)
            key_CTD = keys[:, : stop // STEP].transpose(2, 3).flatten(1, 2).contiguous()
            return attend(query_HND, key_CTD, values[:, :stop], num_before=past, scaling=scaling)[0]
        is_seen_NT = torch.ones(end - past, end, dtype=torch.bool, device=query_HND.device).tril(past)
        group = query_HND.shape[0] // keys.shape[0]
        key_1HTD, value_1HTD = (each[None, :, :end].repeat_interleave(group, 1) for each in (keys, values))
        return F.scaled_dot_product_attention(
            query_HND[None], key_1HTD, value_1HTD, attn_mask=is_seen_NT, scale=scaling
        )[0]


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
    """

    def __init__(
        self, slots: list[int], pasts: list[int], widths: list[int], *, leaders: list[tuple[int, int]] | None = None
    ) -> None:
        self.slots_R, self.pasts_R, self.widths_R = np.asarray(slots), np.asarray(pasts), np.asarray(widths)
        self.leaders_R, self.shared_R = np.asarray(leaders or [(slot, 0) for slot in slots]).T.copy()
        self.starts_R = np.cumsum(self.widths_R) - self.widths_R
        self.num_tokens = int(self.widths_R.sum())
        self._parts: dict[int, np.ndarray] = {}

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The rows one by one."""
        columns = (each.tolist() for each in (self.slots_R, self.starts_R, self.pasts_R, self.widths_R))
        return tuple(map(Segment, *columns))

    @cached_property
    def order_R(self) -> np.ndarray:
        """(R,) rows, those that share a leader side by side, most in common first."""
        return np.lexsort((-self.shared_R, self.leaders_R))

    def places(self, num_tokens: int) -> tuple[np.ndarray, ...]:
        """What loops take of the rows: order, parts of up to `num_tokens`, and six arrays (R,) by row."""
        rows = self.slots_R, self.starts_R, self.pasts_R, self.widths_R, self.leaders_R, self.shared_R
        return (self.order_R, self.parts(num_tokens), *rows)

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

    Queries, keys and values are of N packed tokens, rotary embedding applied; `layer` says whose cache it is, `scaling`
    is a factor on the scores. Returns (N, H, D), 0 of padding.
    """
    cache, rows, segments = plan.cache, plan.rows, plan.segments
    output_NHD = query_HND.new_empty(query_HND.shape[1], query_HND.shape[0], query_HND.shape[2])
    num_tokens = 0
    if rows is not None and cache.layout == "rows":
        segments = (*rows.segments, *segments)
    elif rows is not None:
        num_tokens = rows.num_tokens
        query_PHD, key_PCD, value_PCD = (
            each[:, :num_tokens].transpose(0, 1) for each in (query_HND, key_CND, value_CND)
        )
        held = cache.keys[layer], cache.values[layer]
        decode_rows(query_PHD, key_PCD, value_PCD, *held, rows, scaling, output_NHD[:num_tokens])
    for segment in segments:
        num_tokens = segment.start + segment.length
        own = slice(segment.start, num_tokens)
        cache.store(layer, segment.slot, segment.past, key_CND[:, own], value_CND[:, own])
        attended_HND = cache.attend(layer, segment.slot, segment.past, query_HND[:, own], scaling)
        output_NHD[own] = attended_HND.transpose(0, 1)
    output_NHD[num_tokens:] = 0
    return output_NHD


def decode_rows(
    query_PHD: Tensor, key_PCD: Tensor, value_PCD: Tensor, keys: Tensor, values: Tensor, rows: DecodeRows,
    scaling: float, output_PHD: Tensor,
) -> None:  # fmt: skip
    """By a compiled loop: write new keys and values into slots of blocks or pairs, attend to all there, write that."""
    use_threads()
    group = query_PHD.shape[1] // key_PCD.shape[1]
    kind = query_PHD.shape[2], group
    loop = decode_loop(*kind) if keys.dtype == torch.uint32 else row_loop(WORD_SHIFTS[query_PHD.dtype], *kind)
    new = (bits_of(each.contiguous()) for each in (query_PHD, key_PCD, value_PCD))
    places = rows.places(TILE_ROWS // group)
    loop(*new, bits_of(keys), bits_of(values), *places, np.float32(scaling), bits_of(output_PHD))
