"""From a corpus to the files of an index. Memory does not grow with the corpus, but for a few bytes a passage."""

from __future__ import annotations

import filecmp
import importlib.metadata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from seekling.config import IndexConfig
from seekling.corpus.hashing import MetadataHash, corpus_hash
from seekling.corpus.passages import cut_passages
from seekling.corpus.readers import LeftOut, Source, describe_readers, read_sources
from seekling.errors import DataError
from seekling.retrieval.bm25 import build_bm25
from seekling.retrieval.dense import build_dense
from seekling.retrieval.index_record import (
    RECORD_NAME,
    Changes,
    Counts,
    EncoderRecord,
    IndexRecord,
    describe_files,
    rules_of,
)
from seekling.retrieval.store import PASSAGE_DOCUMENTS, DocumentStore, DocumentWriter, PassageStore, TableWriter
from seekling.retrieval.terms import TITLE_WEIGHT
from seekling.retrieval.vectors import KnownVectors
from seekling.types import Document, Passage

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total); total is None while it is unknown."""
Former = tuple[Path, IndexRecord] | None
"""An index of an earlier state of the corpus, which is known to be whole."""

_REPORT_EVERY = 500
_NOTE = "encoder.txt"
"""What encodes a build, for one that goes on from it."""


def build_into(
    folder: Path,
    corpus_path: Path,
    config: IndexConfig,
    encoder: EncoderRecord | None,
    *,
    former: Former = None,
    partial: Path | None = None,
    report: Progress,
) -> IndexRecord:
    """Write all files of an index.

    Args:
        folder: empty; complete when its record, the last file, is there.
        corpus_path: anything that `read_sources` understands.
        config: how to read, cut and index.
        encoder: None for BM25 alone.
        former: its pages are not parsed again where they are the same, nor its passages encoded.
        partial: what an interrupted build left; its vectors are taken over.
        report: told how far the build is.

    Raises:
        DataError: the corpus is empty or a row of it is bad.
    """
    record = _write_texts(corpus_path, folder, config, former, report)
    passages, counts, settings, terms = PassageStore(folder), record.counts, config, {}
    if not counts.passages:
        raise DataError(f"{corpus_path} has {counts.documents} documents and no text in them: nothing to index")
    if config.kind != "dense":
        rules = rules_of(config)
        lines = (f"{passage.title}\n" * TITLE_WEIGHT + passage.text for passage in passages)
        num_terms = build_bm25(
            lines, folder, rules=rules, report=lambda done: report("index words", done, counts.passages)
        )
        counts, terms = counts.model_copy(update={"terms": num_terms}), rules.describe()
    if encoder is not None:
        _take_over_vectors(partial, folder, f"{config.vectors} {encoder.model_dump_json()}")
        vectors = build_dense(
            _encoded_texts(passages),
            counts.passages,
            folder,
            encoder,
            vectors=config.vectors,
            known=_known_vectors(former, encoder),
            report=lambda stage, done: report(stage, done, record.counts.passages),
        )
        (folder / _NOTE).unlink()
        settings = config.model_copy(update={"vectors": vectors})
    made = {"settings": settings, "counts": counts, "terms": terms, "encoder": encoder}
    record = record.model_copy(update={**made, "files": describe_files(folder)})
    (folder / RECORD_NAME).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return record


def hash_corpus(corpus_path: Path, config: IndexConfig, former: Former, report: Progress) -> tuple[str, str]:
    """The content hash and the metadata hash of a corpus, without writing anything."""
    metadata = MetadataHash()

    def documents() -> Iterator[Document]:
        for document, _ in _pages(corpus_path, config, former, "compare corpus", report):
            metadata.add(document.metadata)
            yield document

    return corpus_hash(documents()), metadata.value()


def _take_over_vectors(partial: Path | None, folder: Path, note: str) -> None:
    """Move the vectors of an interrupted build, if it had the same passages and encoder, for `build_dense` to go on."""
    (folder / _NOTE).write_text(note, encoding="utf-8")
    if partial is None or not (partial / _NOTE).exists() or not (partial / "passages.jsonl").exists():
        return
    is_same = filecmp.cmp(partial / "passages.jsonl", folder / "passages.jsonl", shallow=False)
    if is_same and (partial / _NOTE).read_text(encoding="utf-8") == note:
        for path in partial.glob("vectors*"):
            path.replace(folder / path.name)


def _encoded_texts(passages: PassageStore) -> Iterator[str]:
    return (f"{passage.title}\n{passage.text}" if passage.text else passage.title for passage in passages)


def _known_vectors(former: Former, encoder: EncoderRecord) -> KnownVectors | None:
    if former is None or former[1].encoder != encoder:
        return None
    passages = PassageStore(former[0])
    return KnownVectors(former[0], _encoded_texts(passages), len(passages))


def _entries_of(document: Document, config: IndexConfig) -> list[Passage]:
    if config.entries == "passages":
        return cut_passages(document, words=config.passage_words, overlap_words=config.overlap_words)
    if not document.title.strip():
        raise DataError(f'page {document.id!r} has no title to be found by; give it one, or index entries = "passages"')
    return [Passage(document.id, document.id, document.title, "")]


def _pages(
    corpus_path: Path,
    config: IndexConfig,
    former: Former,
    stage: str,
    report: Progress,
    left_out: LeftOut | None = None,
) -> Iterator[tuple[Document, str]]:
    """Each page with the digest of its raw form; one that the former index holds by the same readers is not parsed.

    What cannot be read is put down in `left_out`, if the settings say so.
    """
    left_out = (left_out or LeftOut()) if config.skip_unreadable else None
    is_readable = former is not None and former[1].readers == describe_readers(config.html)
    store = DocumentStore(former[0]) if former is not None and is_readable else None
    count = 0
    for count, source in enumerate(read_sources(corpus_path, html=config.html, left_out=left_out), start=1):
        try:
            page = _known_page(store, source) or source.parse()
        except DataError as error:
            if left_out is None:
                raise
            left_out.add(source.where, error)
            continue
        yield page, source.digest
        if count % _REPORT_EVERY == 0:
            report(stage, count, None)
    report(stage, count, None)


def _known_page(store: DocumentStore | None, source: Source) -> Document | None:
    row = store.row_of(source.id) if store is not None and source.digest else None
    if store is None or row is None:
        return None
    document, digest = store.at(row)
    return document if digest == source.digest else None


def _write_texts(corpus_path: Path, folder: Path, config: IndexConfig, former: Former, report: Progress) -> IndexRecord:
    """Write documents and passages in one pass over the corpus; the record says what that knows."""
    old, left_out = DocumentStore(former[0]) if former is not None else None, LeftOut()
    changes, metadata, columns, rows = Counter[str](), MetadataHash(), Counter[str](), array("i")
    with DocumentWriter(folder) as documents, TableWriter(folder, "passages") as passages:

        def write_each() -> Iterator[Document]:
            for document, digest in _pages(corpus_path, config, former, "cut passages", report, left_out):
                metadata.add(document.metadata)
                yield document
                if old is not None:
                    changes[_change_of(document, old)] += 1
                columns.update(list(document.metadata))
                for passage in _entries_of(document, config):
                    passages.add(passage.id, passage.document_id, passage.title, passage.text)
                    rows.append(len(documents))
                documents.add(document, digest)

        # The hash reads every document anyway, so it pulls them through the writers.
        digest = corpus_hash(write_each())
        counts = Counts(documents=len(documents), passages=len(passages))
    np.save(folder / PASSAGE_DOCUMENTS, np.frombuffer(rows, dtype=np.int32))
    counted = {name: changes[name] for name in ("kept", "changed", "added")}
    removed = len(old) - counted["kept"] - counted["changed"] if old is not None else 0
    return IndexRecord(
        settings=config,
        counts=counts,
        corpus_hash=digest,
        metadata_hash=metadata.value(),
        columns=dict(sorted(columns.items())),
        readers=describe_readers(config.html),
        versions={name: importlib.metadata.version(name) for name in ("seekling", "bm25s", "PyStemmer", "numpy")},
        left_out=tuple(left_out.lines()),
        changes=Changes(**counted, removed=removed) if old is not None else None,
    )


def _change_of(document: Document, old: DocumentStore) -> str:
    before = old.find(document.id)
    if before is None:
        return "added"
    return "kept" if before == document and dict(before.metadata) == dict(document.metadata) else "changed"
