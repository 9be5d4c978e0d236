"""Decode passes of a fixed shape, recorded once on a GPU and replayed: between layers no Python and no launches.

A pass takes one token of every slot, so its shape depends on the longest row alone, whichever episodes are decoding. An
idle slot's token is computed for nothing; its keys and values go behind all that the slot holds, where the next ones
overwrite them before they are read. Caches are read where they lie, not gathered.

Shape letters: S slots, L' tokens of a cache that a pass reads, D width of the model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from seekling.rollout.engine.attention import AttentionPlan, SlotRows
from seekling.rollout.engine.cache import SlotCache
from seekling.rollout.engine.memory import GPU_LOCK

LENGTH_STEP = 256
"""A recording is made for every multiple that the longest row reaches."""


def can_record(model: PreTrainedModel) -> bool:
    """Whether a model's passes can be recorded: on CUDA, and with rotary frequencies that no row's length changes."""
    return model.device.type == "cuda" and not has_changing_frequencies(model.config)


def has_changing_frequencies(config: PretrainedConfig) -> bool:
    """Whether rotary frequencies depend on how long a row is; transformers looks at the lengths in every pass then."""
    raw = config.to_dict()
    kinds = str((raw.get("rope_parameters"), raw.get("rope_scaling")))  # its newer and its older name
    return any(kind in kinds for kind in ("dynamic", "longrope"))


class DecodeGraphs:
    """Recordings of decode passes over a cache.

    Args:
        decoder: takes token ids, positions and a plan; its weights stay where they are, also when they change.
        cache: an episode's last token never gets there, so even a full slot has a place for an idle slot's.
        num_slots: S.
        device: of the cache. What is not CUDA runs the same passes unrecorded.
    """

    def __init__(self, decoder: nn.Module, cache: SlotCache, *, num_slots: int, device: torch.device) -> None:
        self._decoder, self._cache, self._device = decoder, cache, device
        self._slot_S = torch.arange(num_slots, device=device)
        self._token_S = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._position_S = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        # One, and its own: torch keeps working memory for every stream, and drops it with the first recording of it.
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None

    def run(self, token_ids_S: np.ndarray, lengths_S: np.ndarray, *, longest: int) -> Tensor:
        """Run one token of every slot.

        Args:
            token_ids_S: (S,) the newest token of each; anything where a slot is idle.
            lengths_S: (S,) tokens that each slot holds, the newest not included.
            longest: of the lengths of slots that are decoding.

        Returns:
            (S, D) hidden states, valid until the next call.
        """
        self._token_S.copy_(torch.from_numpy(token_ids_S))
        self._position_S.copy_(torch.from_numpy(lengths_S))
        length = min(-(-(longest + 1) // LENGTH_STEP) * LENGTH_STEP, self._cache.num_tokens)
        if self._device.type != "cuda":
            return self._pass(length)
        if length not in self._recorded:
            self._recorded[length] = self._record(length)
        graph, hidden_SD = self._recorded[length]
        graph.replay()
        return hidden_SD

    def forget(self) -> None:
        """Drop the recordings: they read the cache where it lay when they were made."""
        with GPU_LOCK:
            self._recorded.clear()

    def _pass(self, length: int) -> Tensor:
        rows = SlotRows(self._slot_S, self._position_S, length)
        hidden: Tensor = self._decoder(
            input_ids=self._token_S[None],
            position_ids=self._position_S[None],
            use_cache=False,
            plan=AttentionPlan(self._cache, rows, ()),
        ).last_hidden_state
        return hidden[0]

    def _record(self, length: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # What is set up at first use must not be recorded; a pass may be repeated, it writes the same.
        aside = self._stream
        assert aside is not None
        pool = next(iter(self._recorded.values()))[0].pool() if self._recorded else None
        graph = torch.cuda.CUDAGraph()
        with GPU_LOCK:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self._pass(length)
            torch.cuda.current_stream().wait_stream(aside)
            # Tools of other episodes may use the GPU from their threads meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
                hidden_SD = self._pass(length)
        return graph, hidden_SD
