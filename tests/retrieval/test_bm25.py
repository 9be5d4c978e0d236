"""BM25 against bm25s: its matrix, its scores, its order."""

import itertools
import random
import tracemalloc
from collections import Counter

import bm25s
import numpy as np
import pytest

from seekling.errors import DataError
from seekling.retrieval import bm25
from seekling.retrieval.bm25 import Bm25Ranker, build_bm25
from seekling.retrieval.terms import TermMaker
from tests.search_server import in_threads

WORDS = ["harbour", "tower", "castle", "duke", "river", "tile", "wine", "temple", "pirate", "ship", "7", "c"]


def random_texts(count, *, seed=0, longest=30):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, longest))) for _ in range(count)]


def ranker_of(texts, folder):
    build_bm25(texts, folder)
    return Bm25Ranker(folder)


def scored_by_bm25s(model, numbers):
    scores_N = np.float32(0)
    for number, times in Counter(numbers).items():
        scores_N = scores_N + model.get_scores_from_ids([number]) * np.float32(times)
    return scores_N


def test_scores_and_order_are_bm25s_to_the_last_bit_also_from_many_threads_at_once(tmp_path):
    texts = random_texts(400, seed=3)
    texts += texts[:50]  # ties
    ranker = ranker_of(texts, tmp_path)
    model = bm25s.BM25.load(tmp_path, show_progress=False)
    queries = [text for text in random_texts(80, seed=4, longest=9) if text]

    def check(query):
        numbers = ranker.numbers(query)
        scores_N = scored_by_bm25s(model, numbers)
        order_N = np.lexsort((np.arange(len(scores_N)), -scores_N))[: np.count_nonzero(scores_N)]
        for top_k in (1, 2, 3, 10, 100, 449, 10_000):
            ranking = ranker.rank([query], top_k)[0]
            np.testing.assert_array_equal(ranking.positions_K, order_N[:top_k])
            np.testing.assert_array_equal(ranking.scores_K, scores_N[order_N[:top_k]].astype(np.float64))
        return True

    assert in_threads(8, queries, check) == [True] * len(queries)


def test_the_matrix_is_the_one_that_bm25s_builds(tmp_path):
    texts = random_texts(200, seed=1)
    ranker_of(texts, tmp_path)
    ours = bm25s.BM25.load(tmp_path, show_progress=False)
    theirs = bm25s.BM25(k1=bm25.K1, b=bm25.B, method="lucene")
    maker = TermMaker()
    theirs.index([maker.terms(text) for text in texts], show_progress=False)
    for word in WORDS:
        np.testing.assert_allclose(ours.get_scores(maker.terms(word)), theirs.get_scores(maker.terms(word)), rtol=1e-5)


def test_building_in_many_chunks_gives_the_same_files(tmp_path, monkeypatch):
    texts = random_texts(300, seed=2)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir()
    pieces.mkdir()
    build_bm25(texts, whole)
    monkeypatch.setattr(bm25, "_CHUNK_TOKENS", 100)
    build_bm25(texts, pieces)
    assert sorted(path.name for path in pieces.iterdir()) == sorted(bm25.FILES)
    for name in bm25.FILES:
        assert (pieces / name).read_bytes() == (whole / name).read_bytes()


def test_a_corpus_of_stop_words_is_refused_and_a_query_of_them_finds_nothing(tmp_path):
    with pytest.raises(DataError, match="no word besides stop words"):
        build_bm25(["the", "of and"], tmp_path)
    assert list(tmp_path.iterdir()) == []
    ranker = ranker_of(["the harbour", "a castle"], tmp_path)
    assert all(len(ranking.positions_K) == 0 for ranking in ranker.rank(["the of and", "zebra", "?"], 3))


def test_inflected_capital_and_accented_forms_meet(tmp_path):
    ranker = ranker_of(["The painters of Évora", "E\u0301vora's dukes", "a painting"], tmp_path)
    assert sorted(ranker.rank(["EVORA"], 3)[0].positions_K.tolist()) == [0, 1]
    assert ranker.rank(["duke"], 3)[0].positions_K.tolist() == [1]
    assert ranker.rank(["painted"], 3)[0].positions_K.tolist() == [2]


def test_the_memory_of_a_build_does_not_hold_the_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(bm25, "_CHUNK_TOKENS", 20_000)
    line = " ".join(WORDS * 10)
    texts = (line for _ in itertools.repeat(None, 4000))  # 480,000 tokens
    tracemalloc.start()
    try:
        build_bm25(texts, tmp_path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6_000_000  # bm25s.BM25.index needs 480,000 * 8 bytes for the list alone, and 20 MB in all
