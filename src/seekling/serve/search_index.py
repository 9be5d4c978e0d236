"""Indexes as the search server holds them: opened and batched. No HTTP here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from seekling.config import SearchServerConfig
from seekling.errors import ConfigError
from seekling.retrieval.index import open_index
from seekling.retrieval.index_record import IndexRecord, read_record
from seekling.retrieval.interface import DocumentSource, Retriever
from seekling.retrieval.remote import documents_to_json, hits_to_json
from seekling.retrieval.store import DocumentStore
from seekling.serve.batching import Batcher, Key
from seekling.serve.request_body import (
    DocumentsRequest,
    RefusedRequestError,
    RetrieveRequest,
    read_fields,
    read_object,
)
from seekling.serve.search_metrics import SearchMetrics
from seekling.types import Json

_MAX_DOCUMENTS = 100


class ServedIndex:
    """One index behind the server.

    Args:
        name: in the path of a request.
        retriever: searches it.
        documents: its whole documents.
        record: what it is made of.
        config: of the server.
        metrics: of the server.
    """

    def __init__(
        self,
        name: str,
        retriever: Retriever,
        documents: DocumentSource,
        record: IndexRecord,
        *,
        config: SearchServerConfig,
        metrics: SearchMetrics,
    ) -> None:
        self.name = name
        self._retriever, self._documents, self._record = retriever, documents, record
        self._config, self._metrics = config, metrics
        self.batcher = Batcher(
            self._search,
            batch_queries=config.batch_queries,
            waiting_queries=config.waiting_queries,
            on_batch=metrics.batch_of(name),
        )
        metrics.watch(name, waiting=lambda: self.batcher.num_waiting)

    def describe(self) -> dict[str, Json]:
        """What it is, for /health and /index."""
        record = self._record
        return {
            "name": self.name,
            "kind": record.settings.kind,
            "num_documents": record.counts.documents,
            "num_passages": record.counts.passages,
            "passage_words": record.settings.passage_words,
            "overlap_words": record.settings.overlap_words,
            "corpus_hash": record.corpus_hash,
            "encoder": record.encoder.spec if record.encoder else None,
        }

    async def retrieve(self, body: bytes) -> bytes:
        """Answer the body of a request to /retrieve with the body of the reply."""
        asked = read_fields(read_object(body, status=422), RetrieveRequest, status=422)
        queries = asked.texts()
        longest = max(map(len, queries), default=0)
        if longest > self._config.query_chars:
            raise RefusedRequestError(
                413, f"a query has {longest} characters; this server takes {self._config.query_chars}: shorten it"
            )
        top_k = min(asked.topk or self._config.top_k, self._record.counts.passages)
        num_hits = top_k * len(queries)
        if num_hits > self._config.hits_per_request:
            raise RefusedRequestError(
                422,
                f"{len(queries)} queries with topk {top_k} ask for {num_hits} passages; this server gives "
                f"{self._config.hits_per_request} per request: ask for fewer at once",
            )
        keys = [Key(query, top_k, bool(asked.return_scores)) for query in queries]
        self._metrics.count_queries(self.name, len(keys))
        return b'{"result": [' + b", ".join(await self.batcher.ask(keys) if keys else []) + b"]}"

    async def documents(self, body: bytes) -> bytes:
        """Answer the body of a request to /documents with the body of the reply."""
        ids = read_fields(read_object(body, status=422), DocumentsRequest, status=422).ids
        if len(ids) > _MAX_DOCUMENTS:
            raise RefusedRequestError(
                422, f"{len(ids)} documents asked for; this server gives {_MAX_DOCUMENTS} per request"
            )
        found = await asyncio.to_thread(lambda: [self._documents.find(id_) for id_ in ids])
        return documents_to_json(found)

    def _search(self, keys: Sequence[Key]) -> list[bytes]:
        answers: dict[Key, bytes] = {}
        for top_k in dict.fromkeys(key.top_k for key in keys):
            group = [key for key in keys if key.top_k == top_k]
            found = self._retriever.search([key.query for key in group], top_k)
            for key, hits in zip(group, found, strict=True):
                answers[key] = hits_to_json(hits, with_scores=key.with_scores)
        return [answers[key] for key in keys]


def open_indexes(specs: Sequence[str], config: SearchServerConfig, metrics: SearchMetrics) -> list[ServedIndex]:
    """Open indexes for serving.

    Args:
        specs: each a folder, or NAME=FOLDER; a folder alone goes by its own name.
        config: limits.
        metrics: of the server.

    Raises:
        ConfigError: two indexes have one name, or a name cannot be part of an address.
        IndexMismatchError: an index is missing or damaged.
    """
    return [_open(name, folder, config, metrics) for name, folder in _folders_of(specs).items()]


def _open(name: str, folder: Path, config: SearchServerConfig, metrics: SearchMetrics) -> ServedIndex:
    retriever = open_index(folder)
    # What is loaded at the first search (kernels, pages of the map) is loaded before anybody waits for it.
    retriever.search(["warm up"], 1)
    return ServedIndex(name, retriever, DocumentStore(folder), read_record(folder), config=config, metrics=metrics)


def _folders_of(specs: Sequence[str]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for spec in specs:
        given, equals, path = spec.partition("=")
        folder = Path(path if equals else spec)
        name = given if equals else folder.resolve().name
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f"{name!r} cannot be part of an address; name the index: NAME={folder}")
        if name in folders:
            raise ConfigError(f"{folders[name]} and {folder} would both be {name!r}; name one of them: NAME={folder}")
        folders[name] = folder
    return folders
