"""Qdrant as a store: a server or cluster for corpora that outgrow a machine, or embedded for trying it."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

_TIMEOUT_S = 60


class QdrantStore:
    """One collection of Qdrant; see `Store`.

    Raises:
        MissingExtraError: qdrant-client is not installed.
        ServerError: the server does not answer, or the folder cannot be opened.
    """

    def __init__(self, address: StoreAddress) -> None:
        try:
            import qdrant_client
            import qdrant_client.http.exceptions
        except ImportError:
            raise MissingExtraError("Qdrant needs its client: pip install 'seekling[qdrant]'") from None
        self._address = address
        self._models = qdrant_client.models
        # Embedded it raises what Python raises, and is not made for several threads.
        self._failures = (qdrant_client.http.exceptions.ApiException, OSError, ValueError, RuntimeError)
        self._lock = contextlib.nullcontext() if address.is_server else threading.Lock()
        with self._failing():
            if address.is_server:
                key = key_from(address.key_env) if address.key_env else None
                self._client = qdrant_client.QdrantClient(
                    url=address.place, api_key=key, timeout=_TIMEOUT_S, check_compatibility=False
                )
            else:
                self._client = qdrant_client.QdrantClient(path=address.place)
        weakref.finalize(self, self._client.close)

    def note(self) -> Mapping[str, str] | None:
        """See `Store`."""
        with self._failing():
            if not self._client.collection_exists(self._address.collection):
                return None
            metadata = self._client.get_collection(self._address.collection).config.metadata
        return note_from_text((metadata or {}).get(NOTE))

    def create(self, dimension: int, note: Mapping[str, str]) -> None:
        """See `Store`; vectors stay on disk and int8 codes in memory, as for a large corpus."""
        models = self._models
        codes = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
        with self._failing():
            self._client.create_collection(
                self._address.collection,
                vectors_config=models.VectorParams(size=dimension, distance=models.Distance.COSINE, on_disk=True),
                quantization_config=models.ScalarQuantization(scalar=codes),
                metadata={NOTE: json.dumps(dict(note))},
            )

    def add(self, first: int, passages: Sequence[Passage], vectors_BD: np.ndarray) -> None:
        """See `Store`; Qdrant's ids are numbers, so the passage's is part of its payload."""
        points = [
            self._models.PointStruct(
                id=first + place,
                vector=vector_D.tolist(),
                payload={"id": passage.id, "text": passage.text, **passage_to_payload(passage)},
            )
            for place, (passage, vector_D) in enumerate(zip(passages, vectors_BD, strict=True))
        ]
        with self._failing():
            self._client.upsert(self._address.collection, points)

    def find(self, vectors_BD: np.ndarray, top_k: int) -> list[list[tuple[Passage, float]]]:
        """See `Store`."""
        asked = [
            self._models.QueryRequest(query=vector_D.tolist(), limit=top_k, with_payload=True)
            for vector_D in vectors_BD
        ]
        with self._failing():
            found = self._client.query_batch_points(self._address.collection, asked)
        return [[(_passage_of(point), point.score) for point in of_one_query.points] for of_one_query in found]

    def dimension(self) -> int:
        """See `Store`; 0 for a collection of several named vectors, which we do not search."""
        with self._failing():
            vectors = self._client.get_collection(self._address.collection).config.params.vectors
        return vectors.size if isinstance(vectors, self._models.VectorParams) else 0

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        with store_failing("Qdrant", self._address.place, self._failures), self._lock:
            yield


def _passage_of(point: Any) -> Passage:
    kept = point.payload or {}
    return passage_from_payload(str(kept.get("id", point.id)), str(kept.get("text", "")), kept)
