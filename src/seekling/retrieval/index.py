"""Builds an index folder from a corpus, and opens one.

An index is built beside its place and renamed into it, so that a folder with an index.json is always complete. It holds
the documents and passages themselves too: whoever has the folder can search and read without the corpus. A build that
was interrupted goes on with what it had encoded; an index of a corpus that has changed since is brought up to date by
reading what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seekling.config import IndexConfig, RetrievalConfig
from seekling.errors import IndexMismatchError
from seekling.retrieval.bm25 import Bm25Ranker
from seekling.retrieval.build import Progress, build_into, hash_corpus
from seekling.retrieval.dense import open_dense
from seekling.retrieval.encoders import describe_encoder
from seekling.retrieval.hybrid import HybridRanker
from seekling.retrieval.index_record import (
    RECORD_NAME,
    EncoderRecord,
    IndexRecord,
    check_files,
    differences,
    read_record,
    rebuild_command,
    rules_of,
)
from seekling.retrieval.interface import Ranker, Retriever, check_request
from seekling.retrieval.local_models import reranked
from seekling.retrieval.store import PassageStore
from seekling.retrieval.workspace import building_folder, move_into_place, restore_abandoned, restore_moved
from seekling.types import Hit


class IndexRetriever:
    """Hits of an index on disk; passages are read when they are returned."""

    def __init__(self, ranker: Ranker, passages: PassageStore) -> None:
        self._ranker = ranker
        self._passages = passages

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`."""
        check_request(queries, top_k)
        found = self._ranker.rank(queries, top_k)
        pairs = [zip(each.positions_K.tolist(), each.scores_K.tolist(), strict=True) for each in found]
        return [
            [Hit(self._passages[position], score, rank) for rank, (position, score) in enumerate(of_one_query)]
            for of_one_query in pairs
        ]


def build_index(
    corpus_path: Path | str,
    out_dir: Path | str,
    config: IndexConfig,
    *,
    force: bool = False,
    update: bool = False,
    progress: Progress | None = None,
) -> IndexRecord:
    """Index a corpus; an index that the same inputs made is kept as it is.

    A build that Ctrl-C, the death of the process or a failing server ended is resumed: passages that were encoded are
    not encoded again.

    Args:
        corpus_path: anything that `read_documents` understands.
        out_dir: the index folder; made, or left untouched if anything fails.
        config: how to read, cut and index.
        force: replace an index that is damaged or was made from other inputs. Never replaces anything but an index.
        update: bring an index that the same settings made up to date with its corpus: only pages that changed are
            parsed. The result is that of a new build.
        progress: told how far the build is.

    Returns:
        The record of the index; `is_reused` says whether it was already there.

    Raises:
        DataError: the corpus is empty or a row of it is bad.
        IndexMismatchError: `out_dir` holds another index and `force` is not set.
        ModelError: the encoder cannot be resolved.
    """
    out, corpus = Path(out_dir).resolve(), Path(corpus_path)  # what a link points to is replaced, not the link
    report = progress or (lambda stage, done, total: None)
    encoder = describe_encoder(config.encoder) if config.kind != "bm25" else None
    rules_of(config)
    restore_moved(out)
    found = None if force else _existing(out, config, encoder)
    former = (out, found) if found is not None else None
    if former is not None and _is_of_corpus(former, corpus, config, report, may_differ=update):
        return former[1].model_copy(update={"is_reused": True})
    # Nothing but an index is ever replaced: --out might be somebody's home.
    if out.exists() and not (out / RECORD_NAME).exists() and (not out.is_dir() or any(out.iterdir())):
        raise IndexMismatchError(
            f"{out} exists and is not an index; choose another --out or an empty folder (nothing was changed)"
        )
    with building_folder(out) as (building, partial):
        record = build_into(building, corpus, config, encoder, former=former, partial=partial, report=report)
        move_into_place(building, out)
    return record


def open_index(index_dir: Path | str, expect: RetrievalConfig | None = None) -> Retriever:
    """Open an index for searching; its arrays and texts stay on disk, mapped.

    Args:
        index_dir: what `build_index` made.
        expect: refuse an index that was made with other settings; those of searching (`top_k`, `dense_weight`,
            `reranker`) are not compared, but followed.

    Raises:
        IndexMismatchError: the index is missing, damaged, not as expected, or its encoder's files have changed.
    """
    folder = Path(index_dir)
    restore_abandoned(folder.resolve())
    record = read_record(folder)
    check_files(folder, record)
    spec = record.encoder.spec if record.encoder else ""
    if expect is not None:
        _refuse_difference(folder, record, expect.index)
        spec = expect.index.encoder
    terms = rules_of(record.settings).describe()
    if record.terms and record.terms != terms:
        raise IndexMismatchError(
            f"index {folder} was made with other rules for terms ({record.terms}) than this seekling uses "
            f"({terms}); rebuild it with: {rebuild_command(folder, record.settings)}"
        )
    search = expect or RetrievalConfig()
    ranker = _open_ranker(folder, record, spec, search.dense_weight)
    return reranked(IndexRetriever(ranker, PassageStore(folder)), search.reranker)


def _open_ranker(folder: Path, record: IndexRecord, spec: str, dense_weight: float) -> Ranker:
    rules = rules_of(record.settings)
    if record.encoder is None:
        return Bm25Ranker(folder, rules)
    dense = open_dense(folder, record.encoder, spec, rebuild=rebuild_command(folder, record.settings))
    if record.settings.kind == "dense":
        return dense
    return HybridRanker([Bm25Ranker(folder, rules), dense], weights=[1 - dense_weight, dense_weight])


def _refuse_difference(folder: Path, record: IndexRecord, expect: IndexConfig) -> None:
    fingerprint = ""
    if record.encoder is not None and expect.kind != "bm25" and expect.encoder != record.encoder.spec:
        fingerprint = describe_encoder(expect.encoder).fingerprint
    found = differences(record, expect, encoder_fingerprint=fingerprint)
    if found:
        raise IndexMismatchError(
            f"index {folder} was made with other settings:\n  " + "\n  ".join(found) + "\n"
            f"Change the settings, or rebuild it with: {rebuild_command(folder, expect)}"
        )


def _existing(out: Path, config: IndexConfig, encoder: EncoderRecord | None) -> IndexRecord | None:
    """The record of an index that is already there and was made by these settings; None where there is no index."""
    if not (out / RECORD_NAME).exists():
        return None
    record = read_record(out)
    check_files(out, record)
    found = differences(record, config, encoder_fingerprint=encoder.fingerprint if encoder else "")
    if not found and record.terms not in ({}, rules_of(config).describe()):
        found.append("terms: made with other rules for words, stop words or stems")
    if found:
        raise IndexMismatchError(
            f"{out} already holds an index made from other inputs:\n  " + "\n  ".join(found) + "\n"
            "Choose another --out, or replace it with --force"
        )
    return record


def _is_of_corpus(
    former: tuple[Path, IndexRecord], corpus_path: Path, config: IndexConfig, report: Progress, *, may_differ: bool
) -> bool:
    out, record = former
    corpus, metadata = hash_corpus(corpus_path, config, former, report)
    is_same = (corpus, metadata) == (record.corpus_hash, record.metadata_hash)
    if not is_same and not may_differ:
        what = f"corpus: the index was made from {record.corpus_hash}, {corpus_path} is {corpus}"
        what += " (only columns besides title and content differ)" if corpus == record.corpus_hash else ""
        raise IndexMismatchError(
            f"{out} already holds an index made from other inputs:\n  {what}\n"
            "Bring it up to date with --update, choose another --out, or replace it with --force"
        )
    return is_same
