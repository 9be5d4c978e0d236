"""Vector databases as retrievers: passages and vectors lie in Chroma or Qdrant, embedded or behind a server.

A store is written `chroma:FOLDER#COLLECTION`, `chroma:http://host:8000#COLLECTION`, `qdrant:FOLDER#COLLECTION` or
`qdrant:https://host:6333?key_env=NAME#COLLECTION`. `fill_store` copies an index into one and writes down what made it;
collections that others have filled work too, when the encoder that made them is named. Stores find approximately, and
hold passages only: pages are read from an index.
"""

from __future__ import annotations

import contextlib
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np

from seekling.errors import ConfigError, IndexMismatchError, ServerError
from seekling.retrieval.encoders import Encoder, describe_encoder, encoder_changes, load_encoder
from seekling.retrieval.index_record import EncoderRecord, check_files, read_record
from seekling.retrieval.interface import check_request
from seekling.retrieval.store import PassageStore
from seekling.retrieval.stored_vectors import StoredVectors
from seekling.types import Document, Hit, Passage

KINDS = ("chroma", "qdrant")
NOTE = "seekling"
"""Name under which a collection carries what `fill_store` knows about it, as JSON."""

_BATCH = 256
_SCORE_DECIMALS = 5


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a collection is."""

    kind: str
    place: str
    """A folder, or the address of a server."""
    collection: str
    key_env: str = ""
    """Name of the environment variable that holds the server's key."""

    @property
    def is_server(self) -> bool:
        """Not embedded in this process."""
        return self.place.startswith(("http://", "https://"))


class Store(typing.Protocol):
    """One collection of a vector database. Safe to share between threads. Failures are `ServerError`s."""

    def note(self) -> Mapping[str, str] | None:
        """What `create` was given; empty for a collection of somebody else's, None where there is no collection."""
        ...

    def create(self, dimension: int, note: Mapping[str, str]) -> None:
        """Make the collection, searched by cosine."""
        ...

    def add(self, first: int, passages: Sequence[Passage], vectors_BD: np.ndarray) -> None:
        """Add passages, or write them again; `first` numbers the first of them."""
        ...

    def find(self, vectors_BD: np.ndarray, top_k: int) -> list[list[tuple[Passage, float]]]:
        """The nearest passages of each vector and their cosines, at most `top_k`."""
        ...

    def dimension(self) -> int:
        """Of the vectors; 0 while there are none."""
        ...


class StoreIndex:
    """A `Retriever` over a store."""

    def __init__(self, store: Store, encoder: Encoder, name: str) -> None:
        self._store, self._encoder, self._name = store, encoder, name

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`."""
        check_request(queries, top_k)
        asked = [place for place, query in enumerate(queries) if query.strip()]
        hits: list[list[Hit]] = [[] for _ in queries]
        if asked:
            found = self._store.find(self._encoder.queries([queries[place] for place in asked]), top_k)
            for place, pairs in zip(asked, found, strict=True):
                hits[place] = _in_order(pairs)
        return hits

    def find(self, document_id: str) -> Document | None:
        """Never a document: a store holds passages.

        Raises:
            ServerError: always.
        """
        raise ServerError(
            f"{self._name} holds passages and no pages, so {document_id!r} cannot be read; the code protocol needs an "
            "index folder or `seekling serve --search-only`"
        )

    def corpus_hash(self) -> str:
        """Of the corpus that the store was filled from; the store's address where nobody knows."""
        return (self._store.note() or {}).get("corpus_hash", f"remote:{self._name}")


@contextlib.contextmanager
def store_failing(name: str, place: str, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a store's client raises into the failure that ends an episode.

    Raises:
        ServerError: one of the failures was raised.
    """
    try:
        yield
    except failures as error:
        raise ServerError(f"{name} at {place} failed: {type(error).__name__}: {str(error)[:300]}") from error


def is_store(url: str) -> bool:
    """Whether an address is a store's, and not a search server's."""
    return url.partition(":")[0] in KINDS


def open_store(url: str, encoder: str) -> StoreIndex:
    """Open a collection for searching.

    Args:
        url: of the store.
        encoder: the one that made its vectors.

    Raises:
        ConfigError: the address is wrong.
        IndexMismatchError: there is no such collection, or another encoder made its vectors.
        ServerError: the store does not answer.
        MissingExtraError: its client is not installed.
    """
    store = _connect(parse_store(url))
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
        changed = [f"dimension: the store has {has}, the encoder {now.dimension}"] if has != now.dimension else []
    if changed:
        raise IndexMismatchError(
            f"{url} was made with another encoder than {encoder} is now:\n  " + "\n  ".join(changed) + "\n"
            "Name the encoder that made it (--encoder, retrieval.index.encoder)"
        )
    return StoreIndex(store, load_encoder(now), url)


def fill_store(
    index_dir: Path | str, url: str, *, report: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Copy the passages and vectors of an index into a store; done again it goes over what is there.

    Args:
        index_dir: a dense or hybrid index.
        url: of the store; the collection is made, or is one that the same index has begun to fill.
        report: called as report(done, total).

    Returns:
        The number of passages.

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
    store = _connect(parse_store(url))
    note = {"encoder": record.encoder.model_dump_json(), "corpus_hash": record.corpus_hash}
    has = store.note()
    if has is None:
        store.create(record.encoder.dimension, note)
    elif has != note:
        raise IndexMismatchError(f"{url} already holds something else than {folder}; choose another collection")
    passages, total = PassageStore(folder), record.counts.passages
    for start, vectors_BD in StoredVectors(folder).blocks(_BATCH):
        store.add(start, [passages[start + place] for place in range(len(vectors_BD))], vectors_BD)
        report(start + len(vectors_BD), total)
    return total


def parse_store(url: str) -> StoreAddress:
    """Read a store's address.

    Raises:
        ConfigError: it names no known kind, no place or no collection.
    """
    kind, _, rest = url.partition(":")
    rest, _, collection = rest.partition("#")
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query))
    if kind not in KINDS or not place or not collection or set(options) - {"key_env"}:
        raise ConfigError(
            f"{url!r} is not the address of a store; expected chroma:FOLDER#COLLECTION, "
            "chroma:http://host:8000#COLLECTION, or the same with qdrant"
        )
    return StoreAddress(kind, place.rstrip("/"), collection, options.get("key_env", ""))


def _connect(address: StoreAddress) -> Store:
    if address.kind == "chroma":
        from seekling.retrieval.chroma import ChromaStore

        return ChromaStore(address)
    from seekling.retrieval.qdrant import QdrantStore

    return QdrantStore(address)


def _in_order(pairs: Sequence[tuple[Passage, float]]) -> list[Hit]:
    rounded = [(passage, round(score, _SCORE_DECIMALS)) for passage, score in pairs]
    rounded.sort(key=lambda pair: -pair[1])
    return [Hit(passage, score, rank) for rank, (passage, score) in enumerate(rounded)]


def passage_to_payload(passage: Passage) -> dict[str, str]:
    """What a store keeps beside the text and the id."""
    return {"document_id": passage.document_id, "title": passage.title}


def passage_from_payload(id_: str, text: str | None, payload: Mapping[str, object] | None) -> Passage:
    """A passage of a store, whoever filled it: what is not there is the id, or empty."""
    kept = payload or {}
    title = kept.get("title")
    return Passage(id_, str(kept.get("document_id", id_)), title if isinstance(title, str) else "", text or "")


def note_from_text(text: object) -> dict[str, str]:
    """What a store keeps about a collection, written as JSON since not all keep more than texts; else empty."""
    try:
        note = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in note.items()} if isinstance(note, dict) else {}
