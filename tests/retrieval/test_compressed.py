"""The compressed dense index: near enough to exact search, built in pieces, and refused when it is damaged."""

import shutil
import sys

import numpy as np
import pytest

from seekling.config import RetrievalConfig
from seekling.errors import IndexMismatchError, MissingExtraError
from seekling.retrieval import compressed
from seekling.retrieval.compressed import CODES, CompressedVectors
from seekling.retrieval.dense import COMPRESS_FROM, build_dense
from seekling.retrieval.encoders import describe_encoder
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.vectors import HALF, ExactVectors, StoredVectors
from tests.retrieval.towns import QUERIES, TOWNS, config_for, write_corpus, write_tiny_encoder

faiss = pytest.importorskip("faiss", reason="the extra `big` is not installed")


def clustered(num, *, dimension=128, seed=0):
    rng = np.random.default_rng(seed)
    spread = (1 + np.arange(dimension)) ** -0.5
    centres = rng.normal(size=(60, dimension)) * spread
    vectors = centres[rng.integers(60, size=num)] + 0.6 * rng.normal(size=(num, dimension)) * spread
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def build(folder, vectors):
    folder.mkdir(exist_ok=True)
    np.save(folder / HALF, vectors.astype(np.float16))
    compressed.build_codes(folder)
    return folder


@pytest.fixture(scope="module")
def vectors():
    return clustered(6000)


@pytest.fixture(scope="module")
def built(tmp_path_factory, vectors):
    return build(tmp_path_factory.mktemp("compressed") / "index", vectors)


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / "copy")


def test_the_best_three_are_those_of_exact_search_in_98_of_100_places(built, vectors):
    queries = clustered(200, seed=1)
    exact = ExactVectors(vectors).nearest(queries, 3, decimals=5)
    near = CompressedVectors(built).nearest(queries, 3, decimals=5)
    found = sum(len(np.intersect1d(a.positions_K, b.positions_K)) for a, b in zip(exact, near, strict=True))
    assert found >= 588


def test_scores_are_those_of_the_vectors_and_a_longer_ranking_begins_with_the_shorter_one(built, vectors):
    index, query = CompressedVectors(built), clustered(1, seed=2)
    short, long, whole = (index.nearest(query, top_k, decimals=5)[0] for top_k in (3, 90, 7000))
    np.testing.assert_allclose(long.scores_K, vectors[long.positions_K] @ query[0], atol=1e-3)
    assert len(long.positions_K) == 90
    assert long.positions_K[:3].tolist() == short.positions_K.tolist()
    assert sorted(whole.positions_K.tolist()) == list(range(len(vectors)))  # so many are not looked up by their codes
    assert (np.diff(whole.scores_K) <= 0).all()


def test_vectors_can_be_read_back(built, vectors):
    blocks = list(StoredVectors(built).blocks(2500))
    assert [start for start, _ in blocks] == [0, 2500, 5000]
    np.testing.assert_allclose(np.concatenate([block for _, block in blocks]), vectors, atol=1e-3)


@pytest.mark.parametrize(("vectors", "name", "row_bytes"), [("exact", "vectors.npy", 128), ("compressed", HALF, 64)])
def test_texts_that_have_their_vectors_are_not_encoded_again_and_the_files_are_those_of_a_whole_build(
    tmp_path, vectors, name, row_bytes
):
    record = describe_encoder(str(write_tiny_encoder(tmp_path / "encoder")))
    texts = [f"{TOWNS[number % len(TOWNS)][2]} {number}" for number in range(600)]
    (tmp_path / "whole").mkdir()
    build_dense(texts, len(texts), tmp_path / "whole", record, vectors=vectors)
    whole = (tmp_path / "whole" / name).read_bytes()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / name).write_bytes(whole[: 128 + 300 * row_bytes + 5])  # 256 are encoded at once
    build_dense(["not read"] * 256 + texts[256:], len(texts), tmp_path / "cut", record, vectors=vectors)
    assert (tmp_path / "cut" / name).read_bytes() == whole


def test_small_indexes_are_exact_and_large_ones_compressed_unless_one_says(tmp_path):
    encoder = write_tiny_encoder(tmp_path / "encoder")
    corpus = write_corpus(tmp_path / "c.jsonl")
    assert build_index(corpus, tmp_path / "auto", config_for("dense", encoder)).settings.vectors == "exact"
    config = config_for("dense", encoder).model_copy(update={"vectors": "compressed"})
    assert build_index(corpus, tmp_path / "small", config).settings.vectors == "compressed"
    assert not (tmp_path / "small" / "vectors.npy").exists()
    exact, near = (open_index(tmp_path / name).search(QUERIES, 4) for name in ("auto", "small"))
    for exact_hits, near_hits in zip(exact, near, strict=True):
        assert [hit.score for hit in near_hits] == pytest.approx([hit.score for hit in exact_hits], abs=5e-3)
    assert COMPRESS_FROM == 250_000
    with pytest.raises(IndexMismatchError, match="vectors: the index has 'exact', asked for 'compressed'"):
        open_index(tmp_path / "auto", RetrievalConfig(index=config))


@pytest.mark.parametrize("name", [CODES, HALF])
@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_damaged_files_are_refused(copy, name, damage):
    path = copy / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(b"something else")
    with pytest.raises(IndexMismatchError, match="rebuild the index"):
        CompressedVectors(copy)


def test_files_of_two_builds_are_refused(copy, tmp_path):
    other = build(tmp_path / "other", clustered(500))
    shutil.copy(other / CODES, copy / CODES)
    with pytest.raises(IndexMismatchError, match="different builds"):
        CompressedVectors(copy)


def test_without_faiss_it_says_what_to_install_before_anything_is_encoded(tmp_path, monkeypatch):
    record = describe_encoder(str(write_tiny_encoder(tmp_path / "encoder")))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"seekling\[big\]"):
        build_dense(iter([]), 10, tmp_path, record, vectors="compressed")
    assert not (tmp_path / HALF).exists()
