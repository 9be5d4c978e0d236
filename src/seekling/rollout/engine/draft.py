"""Drafts for lossless speculative decoding: what a row will probably say next, guessed without a model.

Search episodes repeat themselves: names are copied from the question and the passages (prompt lookup), and the words
between them are those of earlier episodes (n-grams of everything sampled so far). The engine puts a draft through the
model together with the row's newest token and keeps what sampling would have drawn anyway, so a bad guess costs time
and changes nothing. Which guesses are made depends on tokens alone, never on the clock.

Source: speculative decoding (arXiv:2211.17192) with the context as its own draft model (prompt lookup, as in LLMA,
arXiv:2304.04487) and a datastore of past outputs (REST, arXiv:2311.08252).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from seekling.types import Trajectory

Ngrams = Mapping[tuple[int, ...], int]
"""What followed a few tokens."""

HISTORY_N = 3
"""Tokens that are looked up in what was sampled before."""
LOOKUP_N = 2
"""Tokens that are looked up in the row's own context."""
MAX_ENTRIES = 200_000
"""Of the history; when it is full it starts afresh."""
MIN_ACCEPTANCE = 0.3
"""Below this share of accepted tokens a source pauses: a drafted token costs about a third of a step's share."""
_PROBE_EVERY = 16
"""A pausing source still guesses once in so many times, to notice when it would pay again."""
_MEMORY = 0.98
"""Weight of the past in the running share of accepted tokens."""


@dataclass(slots=True)
class _Source:
    """How well one way of guessing has done lately."""

    acceptance: float = 1.0
    asked: int = 0

    def is_used(self) -> bool:
        self.asked += 1
        return self.acceptance >= MIN_ACCEPTANCE or self.asked % _PROBE_EVERY == 0

    def learn(self, is_accepted: bool) -> None:
        self.acceptance = _MEMORY * self.acceptance + (1 - _MEMORY) * is_accepted


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens; the first `num_history` come from the history, the others from the context."""

    token_ids: tuple[int, ...] = ()
    num_history: int = 0


class Drafter:
    """Guesses for all rows of a sampler, at most `max_tokens` at once; 0 never guesses.

    `taught` is known from the start, such as `ngrams_of` the expert episodes that a policy was tuned on.
    """

    def __init__(self, max_tokens: int, taught: Ngrams = MappingProxyType({})) -> None:
        self.max_tokens, self._taught = max_tokens, taught
        self._next: dict[tuple[int, ...], int] = {}
        self._history, self._lookup = _Source(), _Source()

    def draft(self, context_T: np.ndarray, *, limit: int) -> Draft:
        """Guess at most `limit` tokens that follow all (T,) tokens of the row so far, its newest last."""
        limit = min(limit, self.max_tokens)
        if limit < 1:
            return Draft()
        token_ids = self._from_history(context_T, limit) if self._history.is_used() else []
        num_history = len(token_ids)
        if num_history < limit and self._lookup.is_used():
            token_ids += _look_up(context_T, token_ids, limit - num_history)
        return Draft(tuple(token_ids), num_history)

    def judge(self, draft: Draft, num_accepted: int) -> None:
        """Learn how far a draft was right. What follows the first wrong token says nothing about its source."""
        for index in range(min(num_accepted + 1, len(draft.token_ids))):
            source = self._history if index < draft.num_history else self._lookup
            source.learn(index < num_accepted)

    def remember(self, token_ids: Sequence[int], num_new: int) -> None:
        """Take the last `num_new` tokens of a text into the history."""
        if not self.max_tokens:
            return
        if len(self._next) > MAX_ENTRIES:
            self._next.clear()
        for index in range(max(HISTORY_N, len(token_ids) - num_new), len(token_ids)):
            self._next[tuple(token_ids[index - HISTORY_N : index])] = token_ids[index]

    def _from_history(self, context_T: np.ndarray, limit: int) -> list[int]:
        last = tuple(context_T[-HISTORY_N:].tolist())
        guessed: list[int] = []
        while len(guessed) < limit:
            token_id = self._next.get(last, self._taught.get(last))
            if token_id is None:
                break
            guessed.append(token_id)
            last = (*last[1:], token_id)
        return guessed


def ngrams_of(trajectories: Iterable[Trajectory]) -> Ngrams:
    """What the policy's own tokens followed in these trajectories, the last occurrence counting."""
    found: dict[tuple[int, ...], int] = {}
    for each in trajectories:
        token_ids = each.token_ids_T.tolist()
        for index in np.flatnonzero(each.train_mask_T[HISTORY_N:]) + HISTORY_N:
            found[tuple(token_ids[index - HISTORY_N : index])] = token_ids[index]
    return found


def _look_up(context_T: np.ndarray, guessed: Sequence[int], limit: int) -> list[int]:
    """What followed the last tokens where they stood before in the same context, the latest place first."""
    text_T = np.concatenate([context_T, np.asarray(guessed, context_T.dtype)]) if guessed else context_T
    if len(text_T) <= LOOKUP_N:
        return []
    is_match = np.ones(len(text_T) - LOOKUP_N, np.bool_)
    for offset in range(LOOKUP_N):
        is_match &= text_T[offset : offset + len(is_match)] == text_T[len(text_T) - LOOKUP_N + offset]
    places = np.flatnonzero(is_match)
    if not places.size:
        return []
    first = int(places[-1]) + LOOKUP_N
    found: list[int] = text_T[first : first + limit].tolist()
    return found
