"""What every way of searching looks like: a `Retriever` for those who search, a `Ranker` for those who build one.

A ranker knows numbers only (which passage position, what score); a retriever turns these into hits with text. So the
hybrid can ask for long lists of both without reading a single passage from disk.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seekling.errors import DataError
from seekling.types import Document, Hit


class Retriever(typing.Protocol):
    """Finds passages. Safe to call from several threads at once."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query.

        Returns:
            One list per query, best hit first, at most `top_k` long. Lists are shorter when fewer passages match and
            are never padded; an empty query gives an empty list.

        Raises:
            DataError: `top_k` is below 1, or `queries` is one string instead of a sequence of them.
            ServerError: the index is behind a server, which failed. Never an empty list instead.
        """
        ...


class DocumentSource(typing.Protocol):
    """Gives whole documents. Safe to call from several threads at once."""

    def find(self, document_id: str) -> Document | None:
        """The document with exactly this id, or None; raises `ServerError` as `Retriever.search` does."""
        ...


@dataclass(frozen=True, slots=True)
class Ranking:
    """Passages of one query, best first."""

    positions_K: np.ndarray
    """(K,) int64: positions of passages in the index. Equal scores are in ascending position."""
    scores_K: np.ndarray
    """(K,) float64."""


EMPTY_RANKING = Ranking(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))


class Ranker(typing.Protocol):
    """Scores passages by position. Safe to call from several threads at once."""

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank positions for each query, `top_k` at most; an empty query gives an empty ranking."""
        ...


def check_request(queries: Sequence[str], top_k: int) -> None:
    """Raise a DataError when `queries` is one string, or `top_k` is below 1."""
    if isinstance(queries, str):
        raise DataError(f"search takes a list of queries, got one string: {queries!r:.80}")
    if top_k < 1:
        raise DataError(f"search needs top_k of at least 1, got {top_k}")


def best_of(positions_N: np.ndarray, scores_N: np.ndarray, top_k: int) -> Ranking:
    """Pick the best min(N, top_k) of distinct positions, deterministically: equal scores are ordered by position.

    A plain argpartition may keep any of several equal scores, and which ones changes with the length of the array; so
    everything that reaches the k-th best score is kept until the final sort.
    """
    if len(scores_N) > top_k:
        cut = len(scores_N) - top_k
        is_kept_N = scores_N >= np.partition(scores_N, cut)[cut]
        positions_N, scores_N = positions_N[is_kept_N], scores_N[is_kept_N]
    order_K = np.lexsort((positions_N, -scores_N))[:top_k]
    return Ranking(positions_N[order_K].astype(np.int64), scores_N[order_K].astype(np.float64))
