"""Exact search over vectors: every row is scored, block by block, so that a missing passage is never the index's fault.

Shape letters: B queries, N rows, M of them, D dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from seekling.retrieval.interface import EMPTY_RANKING, Ranking, best_of

_BLOCK_ROWS = 4_096


class ExactVectors:
    """Ranks every row of an array."""

    def __init__(self, vectors_ND: np.ndarray) -> None:
        self._vectors_ND = vectors_ND

    def nearest(self, queries_BD: np.ndarray, top_k: int, *, decimals: int) -> list[Ranking]:
        """Rank rows by inner product with each query; scores are rounded to `decimals`."""
        starts = range(0, len(self._vectors_ND), _BLOCK_ROWS)
        blocks = (self._vectors_ND[start : start + _BLOCK_ROWS] for start in starts)
        return nearest_in_blocks(blocks, queries_BD, top_k, decimals=decimals)


def nearest_in_blocks(
    blocks: Iterable[np.ndarray], queries_BD: np.ndarray, top_k: int, *, decimals: int
) -> list[Ranking]:
    """Rank all rows by inner product with each query, a block at a time.

    Args:
        blocks: (N, D) each; rows are numbered through.
        queries_BD: (B, D).
        top_k: at least 1.
        decimals: that scores are rounded to.

    Returns:
        Per query `top_k`, or all rows where there are fewer.
    """
    best: list[Ranking] = [EMPTY_RANKING] * len(queries_BD)
    floor_B = np.full(len(queries_BD), -np.inf, np.float32)
    start = 0
    for block_ND in blocks:
        scores_NB = products(block_ND, queries_BD)
        # Rounding lifts a score by half a unit at most: whatever is a whole one below the k-th best stays out.
        rows, columns = np.nonzero(scores_NB >= floor_B - 10.0**-decimals)
        for query in np.unique(columns).tolist():
            rows_M = rows[columns == query]
            best[query] = best_of(
                np.concatenate([best[query].positions_K, rows_M + start]),
                np.concatenate([best[query].scores_K, np.round(scores_NB[rows_M, query], decimals)]),
                top_k,
            )
            if len(best[query].scores_K) >= top_k:
                floor_B[query] = best[query].scores_K[top_k - 1]
        start += len(block_ND)
    return best


def products(rows_ND: np.ndarray, queries_BD: np.ndarray) -> np.ndarray:
    """(N, B) float32 inner products of float32 rows and queries, by the library whose threads are at work already.

    That is torch where something has loaded it, such as the encoder of the queries: numpy's threads wait for more work
    by spinning on the cores that the encoder wants next, and a query took 105 ms instead of 7. torch takes no array
    that may not be written to.
    """
    torch = sys.modules.get("torch")
    if torch is None or not rows_ND.flags.writeable:
        return np.asarray(rows_ND @ queries_BD.T)
    found: np.ndarray = torch.mm(torch.from_numpy(rows_ND), torch.from_numpy(queries_BD).T).numpy()
    return found
