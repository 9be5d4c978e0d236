"""Chroma as a retriever: passages and vectors lie in a collection, embedded in this process or behind a server.

A collection is written `chroma:FOLDER#COLLECTION` or `chroma:http://host:8000?key_env=NAME#COLLECTION`. `fill_store`
copies an index into one; collections that others have filled work too, when the encoder that made them is named. Chroma
finds approximately, and holds passages only: pages are read from an index.

Only one process at a time may open an embedded Chroma folder: a second one hangs (chroma issue 7040).
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from seekling.client import key_from
from seekling.errors import ConfigError, IndexMismatchError, MissingExtraError, ServerError
from seekling.retrieval.encoders import Encoder, describe_encoder, encoder_changes, load_encoder
from seekling.retrieval.index_record import EncoderRecord, check_files, read_record
from seekling.retrieval.interface import check_request
from seekling.retrieval.store import PassageStore
from seekling.retrieval.vectors import StoredVectors
from seekling.types import Document, Hit, Passage

if TYPE_CHECKING:
    import chromadb

_KIND = "chroma:"
_NOTE = "seekling"
"""Name under which a collection carries what `fill_store` knows about it, as JSON."""
_BATCH = 256
_SCORE_DECIMALS = 5


class StoreAddress(NamedTuple):
    """Where a collection is: in a folder or on a server, whose key an environment variable may hold."""

    place: str
    collection: str
    key_env: str = ""

    @property
    def is_server(self) -> bool:
        """Not embedded in this process."""
        return self.place.startswith(("http://", "https://"))


class Collection:
    """One collection of Chroma, which may not exist yet. Safe to share between threads.

    Raises:
        MissingExtraError: chromadb is not installed.
        ServerError: the server does not answer, or the folder cannot be opened; from the methods too.
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
        settings = chromadb.config.Settings(anonymized_telemetry=False)
        self._collection: chromadb.Collection | None = None
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
            with contextlib.suppress(chromadb.errors.NotFoundError):
                self._collection = self._client.get_collection(address.collection, embedding_function=None)

    def note(self) -> Mapping[str, str] | None:
        """What `create` was given; empty for a collection of somebody else's, None where there is no collection."""
        if self._collection is None:
            return None
        try:
            note = json.loads(str((self._collection.metadata or {}).get(_NOTE)))
        except ValueError:
            return {}
        return {str(name): str(value) for name, value in note.items()} if isinstance(note, dict) else {}

    def create(self, note: Mapping[str, str]) -> None:
        """Make the collection, searched by cosine; it takes the dimension from the first vector."""
        with self._failing():
            self._collection = self._client.create_collection(
                self._address.collection,
                metadata={_NOTE: json.dumps(dict(note))},
                configuration={"hnsw": {"space": "cosine"}},
                embedding_function=None,
            )

    def add(self, passages: Sequence[Passage], vectors_BD: np.ndarray) -> None:
        """Add passages, or write them again."""
        assert self._collection is not None
        with self._failing():
            self._collection.upsert(
                ids=[passage.id for passage in passages],
                embeddings=vectors_BD,
                documents=[passage.text for passage in passages],
                metadatas=[{"document_id": passage.document_id, "title": passage.title} for passage in passages],
            )

    def find(self, vectors_BD: np.ndarray, top_k: int) -> list[list[Hit]]:
        """The nearest passages of each vector and their cosines, at most `top_k`."""
        assert self._collection is not None
        with self._failing():
            found = self._collection.query(
                query_embeddings=vectors_BD, n_results=top_k, include=["documents", "metadatas", "distances"]
            )
            space = (self._collection.configuration_json.get("hnsw") or {}).get("space", "l2")
        texts, payloads, distances = found["documents"], found["metadatas"], found["distances"]
        assert texts is not None and payloads is not None and distances is not None  # noqa: PT018 - as asked for
        # Of unit vectors the squared distance is twice what is missing to a cosine of 1.
        share = 0.5 if space == "l2" else 1.0
        ranked = []
        for of_one_query in zip(found["ids"], texts, payloads, distances, strict=True):
            pairs = [
                (_passage_of(id_, text, payload), round(1.0 - share * distance, _SCORE_DECIMALS))
                for id_, text, payload, distance in zip(*of_one_query, strict=True)
            ]
            pairs.sort(key=lambda pair: -pair[1])
            ranked.append([Hit(passage, score, rank) for rank, (passage, score) in enumerate(pairs)])
        return ranked

    def dimension(self) -> int:
        """Of the vectors; 0 while there are none."""
        assert self._collection is not None
        with self._failing():
            vectors = self._collection.get(limit=1, include=["embeddings"])["embeddings"]
        return len(vectors[0]) if vectors is not None and len(vectors) else 0

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn what the client raises into the failure that ends an episode."""
        try:
            yield
        except self._failures as error:
            words = f"{type(error).__name__}: {str(error)[:300]}"
            raise ServerError(f"Chroma at {self._address.place} failed: {words}") from error


class StoreIndex:
    """A `Retriever` over a collection."""

    def __init__(self, store: Collection, encoder: Encoder, name: str) -> None:
        self._store, self._encoder, self._name = store, encoder, name

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`."""
        check_request(queries, top_k)
        asked = [place for place, query in enumerate(queries) if query.strip()]
        hits: list[list[Hit]] = [[] for _ in queries]
        if asked:
            found = self._store.find(self._encoder.queries([queries[place] for place in asked]), top_k)
            for place, each in zip(asked, found, strict=True):
                hits[place] = each
        return hits

    def find(self, document_id: str) -> Document | None:
        """Never a document but a ServerError: a collection holds passages."""
        raise ServerError(
            f"{self._name} holds passages and no pages, so {document_id!r} cannot be read; the code protocol needs an "
            "index folder or `seekling serve --search-only`"
        )

    def corpus_hash(self) -> str:
        """Of the corpus that the collection was filled from; its address where nobody knows."""
        return (self._store.note() or {}).get("corpus_hash", f"remote:{self._name}")


def is_store(url: str) -> bool:
    """Whether an address is a collection's, and not a search server's."""
    return url.startswith(_KIND)


def open_store(url: str, encoder: str) -> StoreIndex:
    """Open a collection for searching, with the encoder that made its vectors.

    Raises:
        ConfigError: the address is wrong.
        IndexMismatchError: there is no such collection, or another encoder made its vectors.
        ServerError: the store does not answer.
        MissingExtraError: chromadb is not installed.
    """
    store = Collection(parse_store(url))
    note = store.note()
    if note is None:
        raise IndexMismatchError(
            f"{url}: there is no such collection; fill one with: seekling index --push INDEX {url}"
        )
    now = describe_encoder(encoder)
    if "encoder" in note:
        changed = encoder_changes(EncoderRecord.model_validate_json(note["encoder"]), encoder)
    else:
        has = store.dimension()
        changed = [f"dimension: the store has {has}, the encoder {now.dimension}"][: has != now.dimension]
    if changed:
        raise IndexMismatchError(
            f"{url} was made with another encoder than {encoder} is now:\n  " + "\n  ".join(changed) + "\n"
            "Name the encoder that made it (--encoder, retrieval.index.encoder)"
        )
    return StoreIndex(store, load_encoder(now), url)


def fill_store(
    index_dir: Path | str, url: str, *, report: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Copy the passages and vectors of a dense or hybrid index into a collection, and say how many there are.

    The collection is made, or is one that the same index has begun to fill. `report` is called as report(done, total).

    Raises:
        IndexMismatchError: the index has no vectors or is damaged, or the collection is of something else.
        ServerError: the store does not answer.
    """
    folder = Path(index_dir)
    record = read_record(folder)
    check_files(folder, record)
    if record.encoder is None:
        raise IndexMismatchError(
            f"{folder} is a {record.settings.kind} index without vectors; build a dense or hybrid one"
        )
    store = Collection(parse_store(url))
    note = {"encoder": record.encoder.model_dump_json(), "corpus_hash": record.corpus_hash}
    has = store.note()
    if has is None:
        store.create(note)
    elif has != note:
        raise IndexMismatchError(f"{url} already holds something else than {folder}; choose another collection")
    passages, total = PassageStore(folder), record.counts.passages
    for start, vectors_BD in StoredVectors(folder).blocks(_BATCH):
        store.add([passages[start + place] for place in range(len(vectors_BD))], vectors_BD)
        report(start + len(vectors_BD), total)
    return total


def parse_store(url: str) -> StoreAddress:
    """Read a collection's address.

    Raises:
        ConfigError: it is of another kind, or names no place or no collection.
    """
    rest, _, collection = url.removeprefix(_KIND).partition("#")
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query))
    if not is_store(url) or not place or not collection or set(options) - {"key_env"}:
        raise ConfigError(
            f"{url!r} is not the address of a collection; expected chroma:FOLDER#COLLECTION or "
            "chroma:http://host:8000#COLLECTION"
        )
    return StoreAddress(place.rstrip("/"), collection, options.get("key_env", ""))


def _passage_of(id_: str, text: str | None, payload: Mapping[str, object] | None) -> Passage:
    """A passage, whoever filled the collection: what is not there is the id, or empty."""
    kept = payload or {}
    title = kept.get("title")
    return Passage(id_, str(kept.get("document_id", id_)), title if isinstance(title, str) else "", text or "")
