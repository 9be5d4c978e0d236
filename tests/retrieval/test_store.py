"""Tables on disk: any text comes back as it went in, and ids are found through their hashes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.errors import IndexMismatchError
from seekling.retrieval import store
from seekling.retrieval.interface import best_of
from seekling.retrieval.store import (
    DocumentStore,
    DocumentWriter,
    Table,
    TableWriter,
    id_key,
    new_array,
)
from seekling.types import Document


def write_documents(folder, documents):
    with DocumentWriter(folder) as writer:
        for document in documents:
            writer.add(document, f"digest of {document.id}")


def test_ids_that_share_a_hash_are_told_apart(tmp_path, monkeypatch):
    documents = [Document(name, name, "") for name in ("a", "b", "c")]
    monkeypatch.setattr(store, "id_key", lambda document_id: np.uint64(42))
    write_documents(tmp_path, documents)
    found = DocumentStore(tmp_path)
    assert [found.find(name) for name in ("c", "a", "b", "d")] == [documents[2], documents[0], documents[1], None]


def test_columns_and_digests_come_back_with_their_documents(tmp_path):
    documents = [Document("a", "A", "x", {"year": "1990", "kind": "pdf"}), Document("b", "B", "y")]
    write_documents(tmp_path, documents)
    found = DocumentStore(tmp_path)
    document, digest = found.at(0)
    assert (dict(document.metadata), digest) == ({"year": "1990", "kind": "pdf"}, "digest of a")


def test_a_new_array_takes_its_room_on_the_disk_at_once(tmp_path):
    new_array(tmp_path / "a.npy", np.float32, (100_000,))
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= 400_000


def test_the_hash_of_an_id_never_changes():
    assert int(id_key("bergen")) == 408496897598956159


def test_a_damaged_row_is_an_error_when_it_is_read(tmp_path):
    with TableWriter(tmp_path, "t") as writer:
        writer.add("one")
        writer.add("two")
    content = (tmp_path / "t.jsonl").read_bytes()
    (tmp_path / "t.jsonl").write_bytes(content.replace(b'"two"', b'"two]'))
    table = Table(tmp_path, "t")
    assert table.row(0) == ["one"]
    with pytest.raises(IndexMismatchError, match="row 1 is damaged"):
        table.row(1)


@given(scores=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=40), top_k=st.integers(1, 50))
def test_the_best_are_those_of_a_full_sort_by_score_then_position(scores, top_k):
    positions = np.arange(len(scores))[::-1].copy()
    expected = sorted(zip(scores, positions.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))[:top_k]
    ranking = best_of(positions, np.array(scores), top_k)
    assert list(zip(ranking.scores_K.tolist(), ranking.positions_K.tolist(), strict=True)) == expected
