"""The slots of the cache: which episode has which, what each holds, and which prefixes they share; and its requests."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

import numpy as np

from seekling.kernels.memory import STEP
from seekling.kernels.slots import SlotCache
from seekling.rollout.sampler import Finish, Sample, SampleRequest, TurnEnd


@dataclass(slots=True)
class Slot:
    """A place in the cache that holds one episode at a time."""

    token_ids: np.ndarray
    """(L,) ids whose keys and values are, or were last, in the slot."""
    length: int = 0
    """How many of them are valid under the current weights."""
    session: int | None = None
    root: int = -1
    """Slots of the same root hold the very same keys and values at the beginning, by copies of copies."""
    root_length: int = 0
    """How many tokens of the root's are certainly here."""


@dataclass(slots=True)
class Row:
    """A request that has a slot, and what was sampled for it so far."""

    request: SampleRequest
    future: asyncio.Future[Sample]
    slot: int
    budget_tokens: int
    end: TurnEnd
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def is_prefilled(self) -> bool:
        """Whether its prompt is in the cache."""
        return bool(self.new_ids)

    def sample(self, finish: Finish, policy_version: int) -> Sample:
        """What the request gets."""
        ids, logprobs = tuple(self.new_ids), tuple(self.logprobs)
        return Sample(ids, logprobs, finish, policy_version, self.num_drafted, self.num_accepted)


@dataclass(slots=True)
class EngineStats:
    """What the engine did since it was made; tokens and seconds."""

    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that were copied from, or already lay in, a slot."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that sampling would have drawn anyway."""
    steps: int = 0
    busy_s: float = 0.0


class SlotTable:
    """Gives episodes of at most `slot_tokens` their slots in a cache, and fills them with prefixes that are at hand."""

    def __init__(self, cache: SlotCache, num_slots: int, slot_tokens: int) -> None:
        self._cache, self._slot_tokens = cache, slot_tokens
        self._slots = [Slot(np.zeros(slot_tokens, np.int64)) for _ in range(num_slots)]
        self._index_of: dict[int, int] = {}
        self._roots = itertools.count()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def longest_prefix(self, prompt: np.ndarray) -> tuple[int, int]:
        """Slot with the longest cached prefix of the prompt, and its length; the last token is always recomputed."""
        lengths = [common_length(prompt, slot.token_ids[: slot.length]) for slot in self._slots]
        best = int(np.argmax(lengths))
        return best, min(lengths[best], len(prompt) - 1)

    def take(self, session: int, *, avoid: int) -> int | None:
        """The session's slot, or a free one, which is its from now on; None while there is none."""
        if session in self._index_of:
            return self._index_of[session]
        free = [index for index, slot in enumerate(self._slots) if slot.session is None]
        if not free:
            return None
        # Prefer not to overwrite the slot that is about to be copied from: it may serve the next sibling too.
        index = next((index for index in free if index != avoid), free[0])
        self._slots[index].session = session
        self._index_of[session] = index
        return index

    def fill(self, index: int, prompt: np.ndarray, source: int, shared: int) -> Slot:
        """Put a prompt into a slot; its first `shared` tokens are cached in the slot `source`, unless more are here."""
        slot = self._slots[index]
        own = min(common_length(prompt, slot.token_ids[: slot.length]), len(prompt) - 1)
        if shared > own:
            self._cache.copy_prefix(source, index, shared)
            slot.root = self._slots[source].root
            slot.root_length = min(self._slots[source].root_length, shared)
        elif own == 0:
            slot.root, slot.root_length = next(self._roots), self._slot_tokens
        else:
            slot.root_length = min(slot.root_length, own)  # what it holds behind that is overwritten now
        slot.length = max(own, shared)
        slot.token_ids[: len(prompt)] = prompt
        return slot

    def leaders(self, slots: list[int]) -> list[tuple[int, int]]:
        """For each slot another of the same root, the first of all, and how many tokens of whole blocks they share."""
        first: dict[int, int] = {}
        found = []
        for index in slots:
            slot, leader = self._slots[index], first.setdefault(self._slots[index].root, index)
            lengths = (each for side in (slot, self._slots[leader]) for each in (side.root_length, side.length))
            found.append((leader, min(lengths) // STEP * STEP))
        return found

    def close(self, session: int) -> None:
        """Free the session's slot. Its content stays readable as a shared prefix until the slot is taken again."""
        index = self._index_of.pop(session, None)
        if index is not None:
            self._slots[index].session = None

    def forget(self) -> None:
        """Nothing that any slot holds is valid any more."""
        for slot in self._slots:
            slot.length = 0


def common_length(left: np.ndarray, right: np.ndarray) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
