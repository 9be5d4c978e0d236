"""Several rankings made one by their ranks, which needs no common scale of scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seekling.retrieval.interface import EMPTY_RANKING, Ranker, Ranking, best_of

RRF_K = 60
MIN_DEPTH = 100
"""Passages taken from each ranking, at least: a passage that both rank 50th can beat one that only one ranks 1st."""


class HybridRanker:
    """Ranks passages by reciprocal rank fusion of several rankers, each with its weight."""

    def __init__(self, rankers: Sequence[Ranker], weights: Sequence[float]) -> None:
        self._rankers, self._weights = tuple(rankers), weights

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank positions for each query; see `Ranker`."""
        rankings = [ranker.rank(queries, max(top_k, MIN_DEPTH)) for ranker in self._rankers]
        return [fuse(of_one_query, top_k, self._weights) for of_one_query in zip(*rankings, strict=True)]


def fuse(rankings: Sequence[Ranking], top_k: int, weights: Sequence[float]) -> Ranking:
    """Merge rankings of one query: a passage scores the weighted sum of 1 / (60 + its rank), ranks counted from 1.

    A passage missing from a ranking gets nothing from it. Weights are scaled to a mean of 1; a ranking of weight 0
    finds nothing.

    Source: Cormack, Clarke, Büttcher: "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
    Methods" (SIGIR 2009), k = 60. They fuse whole rankings, we fuse their tops; the weights are ours.

    Example:
        >>> both = fuse([Ranking(np.array([7, 3]), np.zeros(2)), Ranking(np.array([3, 9]), np.zeros(2))], 2, [1, 1])
        >>> both.positions_K.tolist(), [round(float(score), 6) for score in both.scores_K]
        ([3, 7], [0.032522, 0.016393])
    """
    scale = len(weights) / sum(weights)
    filled = [(each, scale * w) for each, w in zip(rankings, weights, strict=True) if w and len(each.positions_K)]
    if not filled:
        return EMPTY_RANKING
    positions, place = np.unique(np.concatenate([each.positions_K for each, _ in filled]), return_inverse=True)
    gains = np.concatenate([weight / (RRF_K + np.arange(1, len(each.positions_K) + 1)) for each, weight in filled])
    # Summed over sorted gains, so that a tie does not hang on which ranking came first.
    order = np.argsort(gains, kind="stable")
    return best_of(positions, np.bincount(place[order], weights=gains[order]), top_k)
