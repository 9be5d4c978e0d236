"""Chroma as a store: embedded in this process, or a server of its own.

Only one process at a time may open an embedded Chroma folder: a second one hangs (chroma issue 7040). Run
`chroma run --path FOLDER` and use the server's address where several are to search.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from seekling.client import key_from
from seekling.errors import MissingExtraError
from seekling.retrieval.vector_stores import (
    NOTE,
    StoreAddress,
    note_from_text,
    passage_from_payload,
    passage_to_payload,
    store_failing,
)
from seekling.types import Passage

if TYPE_CHECKING:
    import chromadb


class ChromaStore:
    """One collection of Chroma; see `Store`.

    Raises:
        MissingExtraError: chromadb is not installed.
        ServerError: the server does not answer, or the folder cannot be opened.
    """

    def __init__(self, address: StoreAddress) -> None:
        try:
            import chromadb
            import chromadb.api.client
            import chromadb.config
            import chromadb.errors
            import httpx
        except ImportError:
            raise MissingExtraError("Chroma needs its client: pip install 'seekling[chroma]'") from None
        self._address = address
        self._failures = (chromadb.errors.ChromaError, httpx.HTTPError, OSError, ValueError)
        self._not_found = chromadb.errors.NotFoundError
        settings = chromadb.config.Settings(anonymized_telemetry=False)
        with self._failing():
            if address.is_server:
                parts = urlsplit(address.place)
                is_secure = parts.scheme == "https"
                self._client = chromadb.HttpClient(
                    host=parts.hostname or "",
                    port=parts.port or (443 if is_secure else 8000),
                    ssl=is_secure,
                    headers={"x-chroma-token": key_from(address.key_env)} if address.key_env else None,
                    settings=settings,
                )
            else:
                self._client = chromadb.PersistentClient(address.place, settings=settings)
            if isinstance(self._client, chromadb.api.client.Client):
                weakref.finalize(self, self._client.close)
            self._collection = self._get()

    def note(self) -> Mapping[str, str] | None:
        """See `Store`."""
        if self._collection is None:
            return None
        return note_from_text((self._collection.metadata or {}).get(NOTE))

    def create(self, dimension: int, note: Mapping[str, str]) -> None:
        """See `Store`; Chroma takes the dimension from the first vector."""
        with self._failing():
            self._collection = self._client.create_collection(
                self._address.collection,
                metadata={NOTE: json.dumps(dict(note))},
                configuration={"hnsw": {"space": "cosine"}},
                embedding_function=None,
            )

    def add(self, first: int, passages: Sequence[Passage], vectors_BD: np.ndarray) -> None:
        """See `Store`."""
        assert self._collection is not None
        with self._failing():
            self._collection.upsert(
                ids=[passage.id for passage in passages],
                embeddings=vectors_BD,
                documents=[passage.text for passage in passages],
                metadatas=[passage_to_payload(passage) for passage in passages],
            )

    def find(self, vectors_BD: np.ndarray, top_k: int) -> list[list[tuple[Passage, float]]]:
        """See `Store`."""
        assert self._collection is not None
        with self._failing():
            found = self._collection.query(
                query_embeddings=vectors_BD, n_results=top_k, include=["documents", "metadatas", "distances"]
            )
            space = (self._collection.configuration_json.get("hnsw") or {}).get("space", "l2")
        texts, payloads, distances = found["documents"], found["metadatas"], found["distances"]
        assert texts is not None
        assert payloads is not None
        assert distances is not None
        # Of unit vectors the squared distance is twice what is missing to a cosine of 1.
        share = 0.5 if space == "l2" else 1.0
        return [
            [
                (passage_from_payload(id_, text, payload), 1.0 - share * distance)
                for id_, text, payload, distance in zip(*of_one_query, strict=True)
            ]
            for of_one_query in zip(found["ids"], texts, payloads, distances, strict=True)
        ]

    def dimension(self) -> int:
        """See `Store`."""
        assert self._collection is not None
        with self._failing():
            vectors = self._collection.get(limit=1, include=["embeddings"])["embeddings"]
        return len(vectors[0]) if vectors is not None and len(vectors) else 0

    def _get(self) -> chromadb.Collection | None:
        try:
            return self._client.get_collection(self._address.collection, embedding_function=None)
        except self._not_found:
            return None

    def _failing(self) -> contextlib.AbstractContextManager[None]:
        return store_failing("Chroma", self._address.place, self._failures)
