"""Builds an index folder from a corpus, and opens one.

An index is built beside its place and renamed into it, so that a folder with an index.json is always complete. It holds
the documents and passages themselves too: whoever has the folder can search and read without the corpus.
"""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from seekling.config import RetrievalConfig
from seekling.corpus.hashing import corpus_hash
from seekling.corpus.passages import cut_passages
from seekling.corpus.readers import read_documents
from seekling.errors import DataError, IndexMismatchError
from seekling.retrieval.bm25 import Bm25Ranker, build_bm25
from seekling.retrieval.hybrid import HybridRanker
from seekling.retrieval.interface import Ranker, Retriever
from seekling.retrieval.record import (
    RECORD_NAME,
    EncoderRecord,
    IndexRecord,
    check_files,
    describe_files,
    differences,
    read_record,
    rebuild_command,
    write_record,
)
from seekling.retrieval.store import PassageStore, TableWriter, id_key, write_document_keys
from seekling.retrieval.terms import TITLE_WEIGHT, describe_terms
from seekling.types import Document, Hit

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total); total is None while it is unknown."""


class IndexRetriever:
    """Hits of an index on disk; passages are read when they are returned."""

    def __init__(self, ranker: Ranker, passages: PassageStore) -> None:
        self._ranker = ranker
        self._passages = passages

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`."""
        if isinstance(queries, str):
            raise DataError(f"search takes a list of queries, got one string: {queries!r:.80}")
        if top_k < 1:
            raise DataError(f"search needs top_k of at least 1, got {top_k}")
        return [
            [
                Hit(self._passages[int(position)], float(score), rank)
                for rank, (position, score) in enumerate(zip(ranking.positions_K, ranking.scores_K, strict=True))
            ]
            for ranking in self._ranker.rank(queries, top_k)
        ]


def build_index(
    corpus_path: Path | str,
    out_dir: Path | str,
    config: RetrievalConfig,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> IndexRecord:
    """Index a corpus; an index that the same inputs made is kept as it is.

    Args:
        corpus_path: anything that `read_documents` understands.
        out_dir: the index folder; made, or left untouched if anything fails.
        config: its `top_k` plays no part.
        force: replace an index that is damaged or was made from other inputs. Never replaces anything but an index.
        progress: told how far the build is.

    Returns:
        The record of the index; `is_reused` says whether it was already there.

    Raises:
        DataError: the corpus is empty or a row of it is bad.
        IndexMismatchError: `out_dir` holds another index and `force` is not set.
        ModelError: the encoder cannot be resolved.
    """
    out = Path(out_dir).resolve()  # what a link points to is replaced, not the link
    report = progress or (lambda stage, done, total: None)
    encoder = _encoder_record(config.encoder) if config.kind != "bm25" else None
    if out.exists() and not force:
        reused = _reusable(out, Path(corpus_path), config, encoder, report)
        if reused is not None:
            return reused
    _refuse_foreign_folder(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = _folder_beside(out, "building")
    try:
        record = _build(Path(corpus_path), building, config, encoder, report)
        _move_into_place(building, out)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return record


def open_index(index_dir: Path | str, expect: RetrievalConfig | None = None) -> Retriever:
    """Open an index for searching.

    Args:
        index_dir: what `build_index` made.
        expect: refuse an index that was made with other settings; `top_k` is not compared.

    Returns:
        A retriever whose arrays and texts stay on disk, mapped.

    Raises:
        IndexMismatchError: the index is missing, damaged, not as expected, or its encoder's files have changed.
    """
    folder = Path(index_dir)
    record = read_record(folder)
    check_files(folder, record)
    spec = record.encoder.spec if record.encoder else ""
    if expect is not None:
        _refuse_difference(folder, record, expect)
        spec = expect.encoder
    if record.terms and record.terms != describe_terms():
        raise IndexMismatchError(
            f"index {folder} was made with other rules for terms ({record.terms}) than this seekling uses "
            f"({describe_terms()}); rebuild it with: {rebuild_command(folder, record.config)}"
        )
    return IndexRetriever(_open_ranker(folder, record, spec), PassageStore(folder))


def _open_ranker(folder: Path, record: IndexRecord, spec: str) -> Ranker:
    if record.encoder is None:
        return Bm25Ranker(folder)
    from seekling.retrieval.dense import open_dense

    dense = open_dense(folder, record.encoder, spec, rebuild=rebuild_command(folder, record.config))
    return dense if record.kind == "dense" else HybridRanker([Bm25Ranker(folder), dense])


def _encoder_record(spec: str) -> EncoderRecord:
    from seekling.retrieval.encoders import describe_encoder

    return describe_encoder(spec)


def _refuse_difference(folder: Path, record: IndexRecord, expect: RetrievalConfig) -> None:
    fingerprint = ""
    if record.encoder is not None and expect.kind != "bm25" and expect.encoder != record.encoder.spec:
        fingerprint = _encoder_record(expect.encoder).fingerprint
    found = differences(record, expect, encoder_fingerprint=fingerprint)
    if found:
        raise IndexMismatchError(
            f"index {folder} was made with other settings:\n  " + "\n  ".join(found) + "\n"
            f"Change the settings, or rebuild it with: {rebuild_command(folder, expect)}"
        )


def _reusable(
    out: Path, corpus_path: Path, config: RetrievalConfig, encoder: EncoderRecord | None, report: Progress
) -> IndexRecord | None:
    """The record of an index that is already there and was made from these inputs; None where there is no index."""
    if not (out / RECORD_NAME).exists():
        return None
    record = read_record(out)
    check_files(out, record)
    found = differences(record, config, encoder_fingerprint=encoder.fingerprint if encoder else "")
    if record.terms not in ({}, describe_terms()):
        found.append("terms: made with other rules for words, stop words or stems")
    if not found:
        has = corpus_hash(_counted(read_documents(corpus_path), "compare corpus", report))
        if has != record.corpus_hash:
            found.append(f"corpus: the index was made from {record.corpus_hash}, {corpus_path} is {has}")
    if found:
        raise IndexMismatchError(
            f"{out} already holds an index made from other inputs:\n  " + "\n  ".join(found) + "\n"
            "Choose another --out, or replace it with --force"
        )
    return record.model_copy(update={"is_reused": True})


def _refuse_foreign_folder(out: Path) -> None:
    """Nothing but an index is ever replaced: --out might be somebody's home."""
    if not out.exists() or (out / RECORD_NAME).exists():
        return
    if not out.is_dir() or any(out.iterdir()):
        raise IndexMismatchError(
            f"{out} exists and is not an index; choose another --out or an empty folder (nothing was changed)"
        )


def _build(
    corpus_path: Path, folder: Path, config: RetrievalConfig, encoder: EncoderRecord | None, report: Progress
) -> IndexRecord:
    corpus, num_documents = _write_texts(corpus_path, folder, config, report)
    passages = PassageStore(folder)
    num_passages, num_terms = len(passages), 0
    if not num_passages:
        raise DataError(f"{corpus_path} has {num_documents} documents and no text in them: nothing to index")
    if config.kind != "dense":
        texts = (f"{passage.title}\n" * TITLE_WEIGHT + passage.text for passage in passages)
        num_terms = build_bm25(texts, folder, report=lambda done: report("index words", done, num_passages))
    if encoder is not None:
        from seekling.retrieval.dense import build_dense

        texts = (f"{passage.title}\n{passage.text}" for passage in passages)
        build_dense(texts, num_passages, folder, encoder, report=lambda done: report("encode", done, num_passages))
    record = IndexRecord(
        kind=config.kind,
        passage_words=config.passage_words,
        overlap_words=config.overlap_words,
        corpus_hash=corpus,
        num_documents=num_documents,
        num_passages=num_passages,
        num_terms=num_terms,
        terms=describe_terms() if num_terms else {},
        encoder=encoder,
        versions={name: importlib.metadata.version(name) for name in ("seekling", "bm25s", "PyStemmer", "numpy")},
        files=describe_files(folder),
    )
    write_record(folder, record)
    return record


def _write_texts(corpus_path: Path, folder: Path, config: RetrievalConfig, report: Progress) -> tuple[str, int]:
    """Write documents and passages in one pass over the corpus; returns the corpus hash and the number of documents."""
    keys = array("Q")
    with TableWriter(folder, "documents") as documents, TableWriter(folder, "passages") as passages:

        def write_each() -> Iterator[Document]:
            for document in _counted(read_documents(corpus_path), "cut passages", report):
                documents.add(document.id, document.title, document.content)
                keys.append(int(id_key(document.id)))
                for passage in cut_passages(document, words=config.passage_words, overlap_words=config.overlap_words):
                    passages.add(passage.id, passage.document_id, passage.title, passage.text)
                yield document

        # The hash reads every document anyway, so it pulls them through the writers.
        digest = corpus_hash(write_each())
        num_documents = len(documents)
    write_document_keys(folder, keys)
    return digest, num_documents


def _counted(documents: Iterator[Document], stage: str, report: Progress) -> Iterator[Document]:
    count = 0
    for count, document in enumerate(documents, start=1):
        yield document
        if count % 500 == 0:
            report(stage, count, None)
    report(stage, count, None)


def _move_into_place(building: Path, out: Path) -> None:
    """Rename a finished index to its place; the old one, if any, goes away only after that."""
    if not out.exists() or not (out / RECORD_NAME).exists():
        os.rename(building, out)
        return
    old = _folder_beside(out, "old")
    os.rename(out, old)
    try:
        os.rename(building, out)
    except OSError:
        os.rename(old, out)
        raise
    shutil.rmtree(old)


def _folder_beside(out: Path, purpose: str) -> Path:
    """A new hidden folder that a rename can turn into `out`; unlike mkdtemp's, readable by whom the umask allows."""
    folder = out.parent / f".{out.name}.{purpose}-{secrets.token_hex(4)}"
    folder.mkdir()
    return folder
