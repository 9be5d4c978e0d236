"""The compiled search of `postings.py`; numba must be installed to name this module.

It touches only the passages that hold a term, in room that is kept between queries, and keeps the best in a heap whose
root is the worst that is kept: the lowest score, of equal ones the highest position.

Shape letters: N passages, M postings, B queries, Q distinct terms of all queries in a row, K the best of a query.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(inline="always")
def is_worse(score, position, other_score, other_position):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Whether the first stands behind the other in a ranking."""
    return score < other_score or (score == other_score and position > other_position)


@njit
def sink(scores_K, positions_K, size, score, position):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Put an entry in the place of a heap's root, and let it sink."""
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        other = child + 1
        if other < size and is_worse(scores_K[other], positions_K[other], scores_K[child], positions_K[child]):
            child = other
        if is_worse(score, position, scores_K[child], positions_K[child]):
            break
        scores_K[hole], positions_K[hole] = scores_K[child], positions_K[child]
        hole = child
    scores_K[hole], positions_K[hole] = score, position


@njit
def rise(scores_K, positions_K, size, score, position):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Put an entry at the end of a heap of `size`, and let it rise."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // 2
        if not is_worse(score, position, scores_K[parent], positions_K[parent]):
            break
        scores_K[hole], positions_K[hole] = scores_K[parent], positions_K[parent]
        hole = parent
    scores_K[hole], positions_K[hole] = score, position


@njit
def sort(scores_K, positions_K, size):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Turn a heap into a ranking, best first."""
    for last in range(size - 1, 0, -1):
        score, position = scores_K[last], positions_K[last]
        scores_K[last], positions_K[last] = scores_K[0], positions_K[0]
        sink(scores_K, positions_K, last, score, position)


def search(  # type: ignore[no-untyped-def]
    data_M, indices_M, indptr_V, starts_B, terms_Q, times_Q, sums_N, group_N, found_B, positions_BK, scores_BK
):  # pragma: no cover - compiled
    """Find each query's best; `sums_N` and `group_N` are zeros before and after.

    Query b has the terms from `starts_B[b]` to before the next; its ranking is the first `found_B[b]` of its rows.
    """
    for query in range(len(found_B)):
        first, num_terms = starts_B[query], starts_B[query + 1]
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
        scores_K, positions_K = scores_BK[query], positions_BK[query]
        size, room = 0, len(positions_K)
        for place in range(starts_B[query], num_terms):
            for m in range(indptr_V[terms_Q[place]], indptr_V[terms_Q[place] + 1]):
                position = np.int64(indices_M[m])
                score = np.float64(sums_N[position])
                if score == 0:
                    continue  # seen already, by another term
                sums_N[position] = 0
                if size < room:
                    rise(scores_K, positions_K, size, score, position)
                    size += 1
                elif not is_worse(score, position, scores_K[0], positions_K[0]):
                    sink(scores_K, positions_K, size, score, position)
        sort(scores_K, positions_K, size)
        found_B[query] = size
