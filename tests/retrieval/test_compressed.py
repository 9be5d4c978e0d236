"""The compressed dense index: near enough to exact search, built in pieces, and refused when it is damaged."""

import contextlib
import shutil
import sys

import numpy as np
import pytest

from seekling.config import RetrievalConfig
from seekling.errors import IndexMismatchError, MissingExtraError
from seekling.retrieval import compressed, packed_rows
from seekling.retrieval.compressed import CODES, CompressedVectors
from seekling.retrieval.dense import COMPRESS_FROM, build_dense
from seekling.retrieval.encoders import describe_encoder
from seekling.retrieval.exact import ExactVectors
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.packed_rows import ROTATION, ROWS, PackedRows, row_dtype, row_packer
from seekling.retrieval.row_writer import RowWriter
from seekling.retrieval.stored_vectors import StoredVectors
from tests.retrieval.towns import QUERIES, TOWNS, config_for, write_corpus, write_tiny_encoder

faiss = pytest.importorskip("faiss", reason="the extra `big` is not installed")
BLOCK_ROWS = 1000


def clustered(num, *, dimension=128, seed=0):
    rng = np.random.default_rng(seed)
    spread = (1 + np.arange(dimension)) ** -0.5
    centres = rng.normal(size=(60, dimension)) * spread
    vectors = centres[rng.integers(60, size=num)] + 0.6 * rng.normal(size=(num, dimension)) * spread
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def build(folder, vectors):
    folder.mkdir(exist_ok=True)
    pack = row_packer(folder, vectors.shape[1])
    with writer(folder, vectors) as rows:
        append(rows, pack, vectors)
    compressed.build_codes(folder)
    return folder


def writer(folder, vectors):
    return RowWriter(folder / ROWS, (len(vectors),), row_dtype(vectors.shape[1]), BLOCK_ROWS)


def append(rows, pack, vectors):
    for start in range(rows.done, len(vectors), BLOCK_ROWS):
        rows.append(pack(vectors[start : start + BLOCK_ROWS]))


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


def test_scores_are_those_of_the_vectors_up_to_rounding_to_int8(built, vectors):
    query = clustered(1, seed=2)
    ranking = CompressedVectors(built).nearest(query, 10, decimals=5)[0]
    np.testing.assert_allclose(ranking.scores_K, vectors[ranking.positions_K] @ query[0], atol=5e-3)


def test_a_ranking_of_a_large_part_of_the_passages_reads_them_all(built, vectors):
    ranking = CompressedVectors(built).nearest(clustered(1, seed=3), 7000, decimals=5)[0]
    assert sorted(ranking.positions_K.tolist()) == list(range(len(vectors)))
    assert (np.diff(ranking.scores_K) <= 0).all()


def test_a_longer_ranking_looks_at_more_lists_and_begins_with_the_shorter_one(built):
    index, query = CompressedVectors(built), clustered(1, seed=4)
    long, short = index.nearest(query, 90, decimals=5)[0], index.nearest(query, 3, decimals=5)[0]
    assert len(long.positions_K) == 90
    assert long.positions_K[:3].tolist() == short.positions_K.tolist()


def test_few_passages_and_equal_ones_can_be_compressed(tmp_path):
    vectors = np.repeat(clustered(3), 2, axis=0)
    ranking = CompressedVectors(build(tmp_path / "index", vectors)).nearest(vectors[2:3], 6, decimals=5)[0]
    assert ranking.positions_K[:2].tolist() == [2, 3]
    assert len(ranking.positions_K) == 6


def test_vectors_can_be_read_back(built, vectors):
    blocks = list(StoredVectors(built).blocks(2500))
    assert [start for start, _ in blocks] == [0, 2500, 5000]
    np.testing.assert_allclose(np.concatenate([block for _, block in blocks]), vectors, atol=5e-3)


@pytest.mark.parametrize("left", [b"", b"half a row", b"rows that a whole build has with others around them" * 100])
def test_an_interrupted_build_goes_on_after_the_last_whole_block(tmp_path, built, vectors, left):
    """On processors whose kernels take rows four and twelve at once, rows at a batch's end have other last bits."""
    pack = row_packer(tmp_path, vectors.shape[1])
    with contextlib.suppress(KeyboardInterrupt), writer(tmp_path, vectors) as rows:
        append(rows, pack, vectors[:2000])
        raise KeyboardInterrupt
    with (tmp_path / ROWS).open("ab") as file:
        file.write(left)
    with writer(tmp_path, vectors) as rows:
        assert rows.done == 2000
        append(rows, pack, vectors)
    assert (tmp_path / ROWS).read_bytes() == (built / ROWS).read_bytes()


def test_rows_begun_for_another_array_are_refused(tmp_path):
    with RowWriter(tmp_path / "x.npy", (5, 3), np.dtype("<f4"), 5) as rows:
        rows.append(np.zeros((5, 3)))
    with pytest.raises(IndexMismatchError, match="begun for another array"):
        RowWriter(tmp_path / "x.npy", (6, 3), np.dtype("<f4"), 5)


@pytest.mark.parametrize(("vectors", "name", "row_bytes"), [("exact", "vectors.npy", 128), ("compressed", ROWS, 36)])
def test_texts_that_have_their_vectors_are_not_encoded_again_and_the_files_are_those_of_a_whole_build(
    tmp_path, vectors, name, row_bytes
):
    record = describe_encoder(str(write_tiny_encoder(tmp_path / "encoder")))
    texts = [f"{TOWNS[number % len(TOWNS)][2]} {number}" for number in range(600)]
    (tmp_path / "whole").mkdir()
    build_dense(texts, len(texts), tmp_path / "whole", record, vectors=vectors)
    whole = (tmp_path / "whole" / name).read_bytes()
    (tmp_path / "cut").mkdir()
    if vectors == "compressed":
        shutil.copy(tmp_path / "whole" / ROTATION, tmp_path / "cut")
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


@pytest.mark.parametrize("name", [CODES, ROWS, ROTATION])
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


@pytest.mark.parametrize("is_compiled", [True, False])
def test_rows_are_scored_the_same_compiled_or_not_and_a_file_cut_meanwhile_is_no_wrong_score(
    copy, vectors, is_compiled, monkeypatch
):
    if not is_compiled:
        monkeypatch.setattr(packed_rows, "compiled_scores", lambda: None)
    assert (packed_rows.compiled_scores() is not None) is is_compiled
    rows, query = PackedRows(copy / ROWS), clustered(1, seed=6)[0] @ np.load(copy / ROTATION)
    positions = np.array([0, 3, 3, len(vectors) - 1])
    expected = rows.block(0, len(rows))[positions] @ query
    np.testing.assert_allclose(rows.scores(positions, query), expected, atol=1e-6)
    assert rows.scores(positions[:0], query).shape == (0,)
    with (copy / ROWS).open("r+b") as file:
        file.truncate((copy / ROWS).stat().st_size - 1)
    for ask in (lambda: rows.scores(positions, query), lambda: rows.some(positions), lambda: rows.block(0, len(rows))):
        with pytest.raises(IndexMismatchError, match="cut while it was in use; rebuild the index"):
            ask()


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
    assert not (tmp_path / ROWS).exists()
