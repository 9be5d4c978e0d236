"""A query's best passages from the postings of its terms, compiled where numba is there and passages are many.

Elsewhere by numpy. Both give the same scores to the last bit and the same order. The compiled way lets other threads
run meanwhile.

bm25s's own loop scores every passage and orders equal scores by chance. Over 164,000 passages of 40 words drawn by
Zipf's law, one thread, 200 queries of 8 words at once, top 3, microseconds a query, ours and bm25s's compiled one: 7
and 82 for rare words, 15 and 81 for middling ones, 178 and 171 for frequent ones; by numpy 1,300 for the last. On an
index of one's own: `python benchmarks/retrieval.py bm25 INDEX QUESTIONS`.

Shape letters: N passages, M postings, B queries, Q distinct terms of all queries in a row, K the best of a query.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from seekling.compiled import compile_loop
from seekling.retrieval.interface import Ranking, best_of

KEPT_ROOMS = 2
"""Queries at a time that find their room made; a further one makes a new one, of 4 bytes a passage."""

_MOST_HITS = 1 << 20
"""Places in the rankings of the queries that are searched at once: 16 MB."""
_FEW_PASSAGES = 10_000
"""Below it numpy answers: importing numba takes a quarter of a second."""
_POSTINGS_TO_SCAN = 1 / 8
"""From this share of postings to passages on, looking at every sum in order is faster than at those that changed."""


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
        self.best([[]], 1)  # compiles it, or loads what was compiled, before anybody waits for it

    def best(self, queries: Sequence[Sequence[int]], top_k: int) -> list[Ranking]:
        """Rank for each query the passages that hold at least one of its terms.

        Args:
            queries: numbers of terms; a term that stands there several times counts as often.
            top_k: at least 1.
        """
        num_places = min(top_k, self.num_passages)
        part = max(1, _MOST_HITS // num_places)
        if len(queries) > part:
            starts = range(0, len(queries), part)
            return [ranking for start in starts for ranking in self.best(queries[start : start + part], top_k)]
        # A word that is repeated is looked up once: a query of a million "castle" would hold up all others for minutes.
        wanted = [Counter(query) for query in queries]
        kernel = compiled() if self.num_passages >= _FEW_PASSAGES else None
        if kernel is None:
            return [self._best_by_numpy(times_of, top_k) for times_of in wanted]
        starts_B = np.cumsum([0, *map(len, wanted)])
        terms_Q = np.array([term for times_of in wanted for term in times_of], np.int64)
        times_Q = np.array([times for times_of in wanted for times in times_of.values()], np.float32)
        found_B = np.empty(len(wanted), np.int64)
        positions_BK, scores_BK = np.empty((len(wanted), num_places), np.int64), np.empty((len(wanted), num_places))
        with self._lock:
            sums_N = self._rooms.pop() if self._rooms else None
        if sums_N is None:
            sums_N = np.zeros(self.num_passages, dtype=np.float32)
        postings = self._data_M, self._indices_M, self._indptr_V
        kernel(*postings, starts_B, terms_Q, times_Q, sums_N, found_B, positions_BK, scores_BK)
        with self._lock:
            if len(self._rooms) < KEPT_ROOMS:
                self._rooms.append(sums_N)
        return [
            # Copies: a short ranking must not keep the room of a long one.
            Ranking(positions_K[:found].copy(), scores_K[:found].copy())
            for positions_K, scores_K, found in zip(positions_BK, scores_BK, found_B.tolist(), strict=True)
        ]

    def _best_by_numpy(self, times_of: Counter[int], top_k: int) -> Ranking:
        sums_N = np.zeros(self.num_passages, dtype=np.float32)
        for term, times in times_of.items():
            stretch = slice(self._indptr_V[term], self._indptr_V[term + 1])
            sums_N[self._indices_M[stretch]] += self._data_M[stretch] * np.float32(times)
        # Lucene's idf is above zero for every term, so a score of zero means that no term matched.
        positions_M = np.flatnonzero(sums_N)
        return best_of(positions_M, sums_N[positions_M], top_k)


@cache
def compiled() -> Callable[..., None] | None:
    """The compiled search; None where numba is not installed."""
    try:
        return compile_loop(_search, nogil=True)
    except ImportError:
        return None


def _search(  # type: ignore[no-untyped-def]
    data_M, indices_M, indptr_V, starts_B, terms_Q, times_Q, sums_N, found_B, positions_BK, scores_BK
):  # pragma: no cover - compiled
    """Find each query's best; `sums_N` is zeros before and after.

    Query b has the terms from `starts_B[b]` to before the next; its ranking is the first `found_B[b]` of its rows. The
    best so far are a heap of (score, -position), whose root is the worst: the lowest score, of equal ones the last.
    """
    room = positions_BK.shape[1]
    for query in range(len(found_B)):
        terms, num_postings = range(starts_B[query], starts_B[query + 1]), 0
        for q in terms:
            for m in range(indptr_V[terms_Q[q]], indptr_V[terms_Q[q] + 1]):
                sums_N[indices_M[m]] += data_M[m] * times_Q[q]
            num_postings += indptr_V[terms_Q[q] + 1] - indptr_V[terms_Q[q]]
        best = [(np.float64(0), np.int64(0)) for _ in range(0)]  # tells numba the type
        if num_postings < len(sums_N) * _POSTINGS_TO_SCAN:
            for q in terms:
                for m in range(indptr_V[terms_Q[q]], indptr_V[terms_Q[q] + 1]):
                    position = np.int64(indices_M[m])
                    entry = (np.float64(sums_N[position]), -position)
                    sums_N[position] = 0  # another term will not see it again
                    if entry[0] > 0 and len(best) < room:
                        heapq.heappush(best, entry)
                    elif entry[0] > 0 and entry > best[0]:
                        heapq.heapreplace(best, entry)
        else:
            floor = np.float32(0)
            for each in range(len(sums_N)):
                if sums_N[each] > floor:
                    entry = (np.float64(sums_N[each]), np.int64(-each))
                    if len(best) < room:
                        heapq.heappush(best, entry)
                    else:
                        heapq.heapreplace(best, entry)
                    if len(best) == room:
                        floor = np.float32(best[0][0])
            sums_N[:] = 0
        found_B[query] = len(best)
        for place in range(len(best) - 1, -1, -1):
            score, negated = heapq.heappop(best)
            scores_BK[query, place], positions_BK[query, place] = score, -negated
