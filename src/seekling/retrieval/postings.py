"""A query's best passages from the postings of its terms, compiled where numba is there, by numpy elsewhere.

Both give the same scores to the last bit and the same order. The compiled way touches only the passages that hold a
term, in room that is kept between queries; it lets other threads run meanwhile.

Shape letters: N passages, Q distinct terms of a query, M postings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import numpy as np

from seekling.compiled import compile_loop
from seekling.retrieval.interface import Ranking, best_of

KEPT_ROOMS = 2
"""Queries at a time that find their room made; a further one makes a new one, of 4 bytes a passage."""


class Postings:
    """For each term the passages that hold it, and what it adds to their scores.

    Args:
        data_M: (M,) float32 addends, above zero.
        indices_M: (M,) int32 positions of passages, ascending within a term.
        indptr_V: (V + 1,) where each term's postings begin.
        num_passages: N.
    """

    def __init__(self, data_M: np.ndarray, indices_M: np.ndarray, indptr_V: np.ndarray, num_passages: int) -> None:
        self._data_M, self._indices_M, self._indptr_V = data_M, indices_M, indptr_V
        self.num_passages = num_passages
        self._rooms: list[np.ndarray] = []
        self._lock = threading.Lock()
        nothing_Q = np.empty(0, dtype=np.int64)
        self.best(nothing_Q, nothing_Q, 1)  # compiles it, or loads what was compiled, before anybody waits for it

    def best(self, terms_Q: np.ndarray, times_Q: np.ndarray, top_k: int) -> Ranking:
        """Rank the passages that hold at least one of some terms.

        Args:
            terms_Q: (Q,) int64 numbers of terms, distinct.
            times_Q: (Q,) int64 how often the query says each; equal numbers stand together, ones first.
            top_k: at least 1.
        """
        kernel = compiled()
        if kernel is None:
            return self._best_by_numpy(terms_Q, times_Q, top_k)
        room_N = self._take_room()
        # Only for words that a query repeats, which few do.
        group_N = np.zeros(self.num_passages if (times_Q > 1).any() else 0, dtype=np.float32)
        size = min(top_k, self.num_passages)
        positions_K, scores_K = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.float64)
        found = kernel(
            self._data_M, self._indices_M, self._indptr_V, terms_Q, times_Q, room_N, group_N, positions_K, scores_K
        )
        with self._lock:
            if len(self._rooms) < KEPT_ROOMS:
                self._rooms.append(room_N)
        order_K = np.lexsort((positions_K[:found], -scores_K[:found]))
        return Ranking(positions_K[order_K], scores_K[order_K])

    def _take_room(self) -> np.ndarray:
        """(N,) float32 zeros; whoever took them leaves zeros behind."""
        with self._lock:
            if self._rooms:
                return self._rooms.pop()
        return np.zeros(self.num_passages, dtype=np.float32)

    def _best_by_numpy(self, terms_Q: np.ndarray, times_Q: np.ndarray, top_k: int) -> Ranking:
        scores_N = np.zeros(self.num_passages, dtype=np.float32)
        for times in dict.fromkeys(times_Q.tolist()):
            group_N = scores_N if times == 1 else np.zeros_like(scores_N)
            for term in terms_Q[times_Q == times].tolist():
                stretch = slice(self._indptr_V[term], self._indptr_V[term + 1])
                group_N[self._indices_M[stretch]] += self._data_M[stretch]
            if times > 1:
                scores_N += group_N * np.float32(times)
        # Lucene's idf is above zero for every term, so a score of zero means that no term matched.
        positions_M = np.flatnonzero(scores_N)
        return best_of(positions_M, scores_N[positions_M], top_k)


@cache
def compiled() -> Callable[..., int] | None:
    """The compiled search; None where numba is not installed."""

    def search(  # type: ignore[no-untyped-def]
        data_M, indices_M, indptr_V, terms_Q, times_Q, sums_N, group_N, positions_K, scores_K
    ):  # pragma: no cover - compiled
        num_terms = len(terms_Q)
        first = 0
        while first < num_terms:
            last = first
            while last < num_terms and times_Q[last] == times_Q[first]:
                last += 1
            into_N = sums_N if times_Q[first] == 1 else group_N
            for place in range(first, last):
                for m in range(indptr_V[terms_Q[place]], indptr_V[terms_Q[place] + 1]):
                    into_N[indices_M[m]] += data_M[m]
            if times_Q[first] > 1:
                factor = np.float32(times_Q[first])
                for place in range(first, last):
                    for m in range(indptr_V[terms_Q[place]], indptr_V[terms_Q[place] + 1]):
                        position = indices_M[m]
                        sums_N[position] += group_N[position] * factor
                        group_N[position] = 0
            first = last

        # A heap whose root is the worst that is kept: the lowest score, of equal ones the highest position.
        size, room = 0, len(positions_K)
        for place in range(num_terms):
            for m in range(indptr_V[terms_Q[place]], indptr_V[terms_Q[place] + 1]):
                position = np.int64(indices_M[m])
                score = np.float64(sums_N[position])
                if score == 0:
                    continue  # seen already, by another term
                sums_N[position] = 0
                if size == room:
                    if score < scores_K[0] or (score == scores_K[0] and position > positions_K[0]):
                        continue
                    hole = 0
                    while True:
                        child = 2 * hole + 1
                        if child >= room:
                            break
                        other = child + 1
                        if other < room and (
                            scores_K[other] < scores_K[child]
                            or (scores_K[other] == scores_K[child] and positions_K[other] > positions_K[child])
                        ):
                            child = other
                        if score < scores_K[child] or (score == scores_K[child] and position > positions_K[child]):
                            break
                        scores_K[hole], positions_K[hole] = scores_K[child], positions_K[child]
                        hole = child
                else:
                    hole = size
                    size += 1
                    while hole > 0:
                        parent = (hole - 1) // 2
                        if scores_K[parent] < score or (scores_K[parent] == score and positions_K[parent] > position):
                            break
                        scores_K[hole], positions_K[hole] = scores_K[parent], positions_K[parent]
                        hole = parent
                scores_K[hole], positions_K[hole] = score, position
        return size

    try:
        return compile_loop(search, nogil=True)
    except ImportError:
        return None
