"""Reciprocal rank fusion, by hand."""

import numpy as np
import pytest

from seekling.retrieval.hybrid import MIN_DEPTH, HybridRanker, fuse
from seekling.retrieval.interface import EMPTY_RANKING, Ranking


def ranking(*positions):
    return Ranking(np.array(positions, dtype=np.int64), -np.arange(len(positions), dtype=np.float64))


class FixedRanker:
    def __init__(self, *positions):
        self.positions, self.depths = positions, []

    def rank(self, queries, top_k):
        self.depths.append(top_k)
        return [ranking(*self.positions[:top_k]) for _ in queries]


def test_scores_are_sums_of_reciprocal_ranks_plus_sixty():
    fused = fuse([ranking(7, 3, 5), ranking(3, 9)], 10, [1, 1])
    assert fused.positions_K.tolist() == [3, 7, 9, 5]
    assert fused.scores_K.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63], rel=1e-12)


def test_equal_scores_are_ordered_by_position():
    fused = fuse([ranking(9, 2), ranking(2, 9)], 2, [1, 1])
    assert fused.positions_K.tolist() == [2, 9]
    assert fused.scores_K[0] == fused.scores_K[1]


def test_a_ranking_without_hits_gives_the_other_one():
    assert fuse([EMPTY_RANKING, ranking(5, 2)], 3, [1, 1]).positions_K.tolist() == [5, 2]
    assert fuse([EMPTY_RANKING, EMPTY_RANKING], 3, [1, 1]).positions_K.tolist() == []


def test_both_rankers_are_asked_for_more_than_is_returned():
    first, second = FixedRanker(*range(0, 60)), FixedRanker(99, *range(40, 100))
    best = HybridRanker([first, second], [1, 1]).rank(["harbour"], 1)[0]
    assert first.depths == second.depths == [MIN_DEPTH]
    assert best.positions_K.tolist() == [40]  # 41st of the first and 2nd of the second beat any 1st of only one


def test_weights_scale_what_each_ranking_gives():
    fused = fuse([ranking(7, 3), ranking(3, 9)], top_k=10, weights=[0.2, 0.8])
    assert fused.positions_K.tolist() == [3, 9, 7]
    assert fused.scores_K.tolist() == pytest.approx([0.4 / 62 + 1.6 / 61, 1.6 / 62, 0.4 / 61], rel=1e-12)
