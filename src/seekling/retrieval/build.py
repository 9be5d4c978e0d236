"""From a corpus to the files of an index. Memory does not grow with the corpus, but for a few bytes a passage."""

from __future__ import annotations

import importlib.metadata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from seekling.config import IndexConfig
from seekling.corpus.hashing import MetadataHash, corpus_hash
from seekling.corpus.passages import cut_passages
from seekling.corpus.readers import describe_readers, read_sources
from seekling.errors import DataError
from seekling.retrieval.bm25 import build_bm25
from seekling.retrieval.dense import build_dense
from seekling.retrieval.index_record import (
    Changes,
    Counts,
    EncoderRecord,
    IndexRecord,
    describe_files,
    rules_of,
    write_record,
)
from seekling.retrieval.known_pages import KnownPages, known_pages, move_vectors, remove_note, write_note
from seekling.retrieval.store import PASSAGE_DOCUMENTS, DocumentStore, DocumentWriter, PassageStore, TableWriter
from seekling.retrieval.stored_vectors import KnownVectors
from seekling.retrieval.terms import TITLE_WEIGHT, describe_terms
from seekling.types import Document, Passage

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total); total is None while it is unknown."""

_REPORT_EVERY = 500


def build_into(
    folder: Path,
    corpus_path: Path,
    config: IndexConfig,
    encoder: EncoderRecord | None,
    *,
    index: tuple[Path, IndexRecord] | None = None,
    partial: Path | None = None,
    report: Progress,
) -> IndexRecord:
    """Write all files of an index.

    Args:
        folder: empty; complete when its record, the last file, is there.
        corpus_path: anything that `read_sources` understands.
        config: how to read, cut and index.
        encoder: None for BM25 alone.
        index: an index of an earlier state of the corpus, whose pages are not parsed again where they are the same.
        partial: what an interrupted build left; its vectors are taken over.
        report: told how far the build is.

    Raises:
        DataError: the corpus is empty or a row of it is bad.
    """
    readers = describe_readers(config.html)
    # Vectors of an interrupted build are taken over only by one that writes the same files.
    encoder_note = f"{config.vectors} {encoder.model_dump_json()}" if encoder is not None else ""
    write_note(folder, readers, encoder_note)
    known = known_pages(readers, index, partial)
    record = _write_texts(corpus_path, folder, config, known, index[0] if index else None, report)
    if partial is not None:
        move_vectors(partial, folder, encoder_note)
    passages, counts, settings = PassageStore(folder), record.counts, config
    if not counts.passages:
        raise DataError(f"{corpus_path} has {counts.documents} documents and no text in them: nothing to index")
    if config.kind != "dense":
        rules = rules_of(config)
        lines = (f"{passage.title}\n" * TITLE_WEIGHT + passage.text for passage in passages)
        num_terms = build_bm25(
            lines, folder, rules=rules, report=lambda done: report("index words", done, counts.passages)
        )
        counts = counts.model_copy(update={"terms": num_terms})
        record = record.model_copy(update={"terms": describe_terms(rules)})
    if encoder is not None:
        vectors = build_dense(
            _encoded_texts(passages),
            counts.passages,
            folder,
            encoder,
            vectors=config.vectors,
            known=_known_vectors(index, encoder),
            report=lambda stage, done: report(stage, done, record.counts.passages),
        )
        settings = config.model_copy(update={"vectors": vectors})
    remove_note(folder)
    made = {"settings": settings, "counts": counts, "encoder": encoder, "files": describe_files(folder)}
    record = record.model_copy(update=made)
    write_record(folder, record)
    return record


def _encoded_texts(passages: PassageStore) -> Iterator[str]:
    return (f"{passage.title}\n{passage.text}" if passage.text else passage.title for passage in passages)


def _entries_of(document: Document, config: IndexConfig) -> list[Passage]:
    if config.entries == "passages":
        return cut_passages(document, words=config.passage_words, overlap_words=config.overlap_words)
    if not document.title.strip():
        raise DataError(f'page {document.id!r} has no title to be found by; give it one, or index entries = "passages"')
    return [Passage(document.id, document.id, document.title, "")]


def _known_vectors(index: tuple[Path, IndexRecord] | None, encoder: EncoderRecord) -> KnownVectors | None:
    if index is None or index[1].encoder != encoder:
        return None
    passages = PassageStore(index[0])
    return KnownVectors(index[0], _encoded_texts(passages), len(passages))


def hash_corpus(corpus_path: Path, config: IndexConfig, known: KnownPages, report: Progress) -> tuple[str, str]:
    """The content hash and the metadata hash of a corpus, without writing anything."""
    metadata = MetadataHash()

    def documents() -> Iterator[Document]:
        pages = known.documents(read_sources(corpus_path, html=config.html))
        for document, _ in _counted(pages, "compare corpus", report):
            metadata.add(document.metadata)
            yield document

    return corpus_hash(documents()), metadata.value()


def _write_texts(
    corpus_path: Path, folder: Path, config: IndexConfig, known: KnownPages, index: Path | None, report: Progress
) -> IndexRecord:
    """Write documents and passages in one pass over the corpus; the record says what that knows."""
    changes = _ChangeCounter(index) if index is not None else None
    metadata, columns, rows = MetadataHash(), Counter[str](), array("i")
    with DocumentWriter(folder) as documents, TableWriter(folder, "passages") as passages:

        def write_each() -> Iterator[Document]:
            pages = known.documents(read_sources(corpus_path, html=config.html))
            for document, digest in _counted(pages, "cut passages", report):
                metadata.add(document.metadata)
                yield document
                if changes is not None:
                    changes.count(document)
                columns.update(list(document.metadata))
                for passage in _entries_of(document, config):
                    passages.add(passage.id, passage.document_id, passage.title, passage.text)
                    rows.append(len(documents))
                documents.add(document, digest)

        # The hash reads every document anyway, so it pulls them through the writers.
        digest = corpus_hash(write_each())
        counts = Counts(documents=len(documents), passages=len(passages))
    np.save(folder / PASSAGE_DOCUMENTS, np.frombuffer(rows, dtype=np.int32))
    return IndexRecord(
        settings=config,
        counts=counts,
        corpus_hash=digest,
        metadata_hash=metadata.value(),
        columns=dict(sorted(columns.items())),
        readers=describe_readers(config.html),
        versions={name: importlib.metadata.version(name) for name in ("seekling", "bm25s", "PyStemmer", "numpy")},
        changes=changes.changes() if changes else None,
    )


class _ChangeCounter:
    """Compares the pages of a corpus with those of an index."""

    def __init__(self, index: Path) -> None:
        self._store = DocumentStore(index)
        self._counts = Counter[str]()

    def count(self, document: Document) -> None:
        row = self._store.row_of(document.id)
        if row is None:
            self._counts["added"] += 1
            return
        old, _ = self._store.at(row)
        is_same = old == document and dict(old.metadata) == dict(document.metadata)
        self._counts["kept" if is_same else "changed"] += 1

    def changes(self) -> Changes:
        kept, changed = self._counts["kept"], self._counts["changed"]
        return Changes(
            kept=kept, changed=changed, added=self._counts["added"], removed=len(self._store) - kept - changed
        )


def _counted(pages: Iterable[tuple[Document, str]], stage: str, report: Progress) -> Iterator[tuple[Document, str]]:
    count = 0
    for count, page in enumerate(pages, start=1):
        yield page
        if count % _REPORT_EVERY == 0:
            report(stage, count, None)
    report(stage, count, None)
