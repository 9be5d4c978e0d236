"""Keys and values of the episodes in flight, preallocated per layer.

On a CPU the keys of `STEP` tokens form a block that holds one dimension after the other: a loop over tokens then reads
them side by side, and no score needs a sum across a register. What attends to many tokens at once gets them as a path.
On a CPU with tiles a block holds pairs of dimensions, and values are pairs of tokens, as products by tiles read them.

Shape letters: S slots, C key/value heads, L slot length, D head dimension, E = D / 2 pairs of dimensions, F = L / 2
pairs of tokens, B blocks of a slot, K = STEP tokens of a block, N new tokens, T tokens of a path.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from numba import prange
from torch import Tensor

from seekling.compiled import compile_loop
from seekling.models.pointwise import WORD_SHIFTS, bits_of, use_threads
from seekling.rollout.engine.causal import STEP, fill_to_step, up_to_step
from seekling.rollout.engine.tiled import can_attend, store_pairs


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
        if can_attend(self._dtype, self._device, head_dim):
            self.layout, (keys, values) = "pairs", both.view(torch.uint32)
            keys, values = keys.view(*slots, -1, head_dim // 2, STEP), values.view(*slots, -1, head_dim)
        elif self._dtype in WORD_SHIFTS:
            self.layout, keys = "blocks", keys.view(*slots, -1, head_dim, STEP)
        self.keys, self.values = list(keys), list(values)

    def release(self) -> None:
        """Forget everything; on a CPU the memory goes back to the system until it is written again."""
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)
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
            use_threads()
            _store_loop()(bits_of(key_CND.contiguous()), past, bits_of(keys))
        else:
            keys[:, new] = key_CND

    def path(self, layer: int, slot: int, end: int) -> tuple[Tensor, Tensor]:
        """(C, T, D) keys and values of a slot's first `end` tokens, not in pairs; T is the next whole `STEP`."""
        keys, values_CLD = self.keys[layer][slot], self.values[layer][slot]
        if self.layout == "rows":
            return fill_to_step(keys, end), fill_to_step(values_CLD, end)
        path_CTD = keys.new_empty((keys.shape[0], up_to_step(end), keys.shape[2]))
        use_threads()
        _path_loop()(bits_of(keys), bits_of(path_CTD))
        return path_CTD, values_CLD[:, : up_to_step(end)]


@cache
def _store_loop() -> Callable[..., None]:
    step = STEP  # in the closure, and so in the name under which the loop is kept compiled

    def store(key_CND, past, keys_CBDK):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_heads, num_new, head_dim = key_CND.shape
        for head in prange(num_heads):
            for block in range(past // step, (past + num_new - 1) // step + 1):
                first = block * step
                start, stop = max(past, first), min(past + num_new, first + step)
                for d in range(head_dim):
                    for token in range(start, stop):
                        keys_CBDK[head, block, d, token - first] = key_CND[head, token - past, d]

    return compile_loop(store, parallel=True)


@cache
def _path_loop() -> Callable[..., None]:
    step = STEP

    def path(keys_CBDK, path_CTD):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
        num_heads, num_tokens, head_dim = path_CTD.shape
        for head in prange(num_heads):
            for token in range(num_tokens):
                block, place = token // step, token % step
                for d in range(head_dim):
                    path_CTD[head, token, d] = keys_CBDK[head, block, d, place]

    return compile_loop(path, parallel=True)
