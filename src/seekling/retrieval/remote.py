r"""A retriever whose index lives behind a server that speaks Search-R1's `POST /retrieve`, and that JSON both ways.

Ours does (`seekling serve --search-only`), and so do Search-R1's own and its relatives. Ours also gives whole
documents, so that an agent can read pages remotely. A failing server is a `ServerError`, never an empty result.

A passage is {"id", "contents"} with contents of the form '"Title"\nbody'; with scores it stands as "document" beside
its "score". We add "title", "text" and "document_id", which other clients do not read. What other servers are known to
answer is read too: numbers as ids, no ids, no scores, a document that is only its contents.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from seekling.client import BadReplyError, Client, Patience, RefusedError
from seekling.config import RetrievalConfig
from seekling.errors import ConfigError
from seekling.retrieval.chroma import StoreIndex, is_store, open_store
from seekling.retrieval.interface import Retriever, check_request
from seekling.retrieval.local_models import reranked
from seekling.types import Document, Hit, Json, Passage

_RETRIEVE = "/retrieve"
TRIES_AT_FIRST = 7
"""A wrong address is not tried as long as a server that was there before: 15 to 30 s."""


class RemoteIndex:
    """Searches, and reads documents, where the index is: a `Retriever` and a `DocumentSource`.

    The client is of the server, or of the part of it that is one of its indexes. Methods raise ServerError when the
    server does not answer, or not with an answer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`."""
        check_request(queries, top_k)
        # Other servers find something for an empty query.
        asked: list[Json] = [query for query in queries if query.strip()]
        if not asked:
            return [[] for _ in queries]
        found = iter(
            self._client.call(
                _RETRIEVE,
                lambda reply: hits_from_json(reply, num_queries=len(asked), top_k=top_k),
                {"queries": asked, "topk": top_k, "return_scores": True},
            )
        )
        return [next(found) if query.strip() else [] for query in queries]

    def find(self, document_id: str) -> Document | None:
        """The document with exactly this id, or None; servers other than ours have no documents to give."""

        def parse(reply: Json) -> Document | None:
            documents = documents_from_json(reply)
            if len(documents) != 1:
                raise BadReplyError(f"the reply holds {len(documents)} documents for one id")
            return documents[0]

        return self._client.call("/documents", parse, {"ids": [document_id]})

    def corpus_hash(self) -> str:
        """What a run records of a corpus that it does not hold: the server's hash of it, else the server's address."""

        def parse(reply: Json) -> str:
            digest = reply.get("corpus_hash") if isinstance(reply, dict) else None
            return digest if isinstance(digest, str) else ""

        try:
            digest = self._client.call("/index", parse)
        except RefusedError:
            digest = ""  # another kind of server
        return digest or f"remote:{self._client.url}"


def open_distant(config: RetrievalConfig) -> tuple[Retriever, RemoteIndex | StoreIndex]:
    """Open what a remote configuration names: a search server, or a collection in a vector database.

    Returns:
        What searches, its reranker included, and what gives documents and the corpus hash.

    Raises:
        ConfigError: the address is wrong.
        ServerError: nobody answers.
        IndexMismatchError: the collection was made by another encoder than the one that is named.
    """
    index = open_store(config.url, config.index.encoder) if is_store(config.url) else open_remote(config)
    return reranked(index, config.reranker), index


def open_remote(config: RetrievalConfig, patience: Patience | None = None) -> RemoteIndex:
    """Find the server at the config's `url`, with or without /retrieve at the end, and make sure that it answers.

    Raises:
        ConfigError: the address is no address, or what is there does not speak /retrieve.
        ServerError: nobody answers.
    """
    url = config.url.rstrip("/").removesuffix(_RETRIEVE)
    patience = patience or Patience(timeout_s=config.timeout_s)
    first = replace(patience, num_tries=min(patience.num_tries, TRIES_AT_FIRST))
    try:
        RemoteIndex(Client(url, first)).search(["Is anybody there?"], 1)
    except RefusedError as error:
        raise ConfigError(f"{error}; retrieval.url must be a server that answers POST {_RETRIEVE}") from None
    return RemoteIndex(Client(url, patience))


def hits_to_json(hits: list[Hit], *, with_scores: bool) -> bytes:
    """The JSON array of one query's hits. ASCII only, so that half a surrogate pair in a text is no problem."""
    rows: list[Json] = []
    for hit in hits:
        passage = hit.passage
        document: Json = {
            "id": passage.id,
            "contents": f'"{passage.title}"\n{passage.text}',
            "title": passage.title,
            "text": passage.text,
            "document_id": passage.document_id,
        }
        rows.append({"document": document, "score": hit.score} if with_scores else document)
    return json.dumps(rows).encode("ascii")


def hits_from_json(reply: Json, *, num_queries: int, top_k: int) -> list[list[Hit]]:
    """Read the reply to a request of several queries; lists are cut at `top_k`, since some servers answer with more.

    Raises:
        BadReplyError: it is not the reply to such a request; says what it is.
    """
    result = _list_in(reply, "result")
    if len(result) != num_queries:
        raise BadReplyError(f"the reply holds {len(result)} results for {num_queries} queries")
    return [_hits_of(rows, top_k) for rows in result]


def documents_to_json(documents: Sequence[Document | None]) -> bytes:
    """The reply to a request of documents; null stands for an id that does not exist."""
    rows = [None if each is None else {**asdict(each), "metadata": dict(each.metadata)} for each in documents]
    return json.dumps({"documents": rows}).encode("ascii")


def documents_from_json(reply: Json) -> list[Document | None]:
    """Read the reply to a request of documents; a BadReplyError when it is no such reply."""
    return [None if row is None else _document_of(row) for row in _list_in(reply, "documents")]


def _document_of(row: Json) -> Document:
    given = row if isinstance(row, dict) else {}
    id_, title, content, metadata = (given.get(name) for name in ("id", "title", "content", "metadata"))
    if not isinstance(id_, str) or not isinstance(title, str) or not isinstance(content, str):
        raise BadReplyError(f"not a document: {row!s:.200}")
    columns = metadata if isinstance(metadata, dict) else {}
    return Document(id_, title, content, {name: str(value) for name, value in columns.items()})


def _list_in(reply: Json, name: str) -> list[Json]:
    rows = reply.get(name) if isinstance(reply, dict) else None
    if not isinstance(rows, list):
        raise BadReplyError(f'the reply has no list "{name}": {reply!s:.200}')
    return rows


def _hits_of(rows: Json, top_k: int) -> list[Hit]:
    if not isinstance(rows, list):
        raise BadReplyError(f"the result of a query is not a list: {rows!s:.200}")
    hits: dict[str, Hit] = {}
    for row in rows:
        rank = len(hits)
        document, score = row, None
        if isinstance(row, dict) and "document" in row:
            document, score = row["document"], row.get("score")
        if score is None:  # the order is all that there is
            score = -float(rank)
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise BadReplyError(f"not a score: {score!r:.100}")
        passage = _passage_of(document)
        # A server whose corpus is smaller than k may fill up with one passage again and again.
        hits.setdefault(passage.id, Hit(passage, float(score), rank))
    return list(hits.values())[:top_k]


def _passage_of(document: Json) -> Passage:
    row = {"contents": document} if isinstance(document, str) else document
    if not isinstance(row, dict):
        raise BadReplyError(f"not a document: {document!r:.200}")
    title, text, contents = row.get("title"), row.get("text"), row.get("contents")
    if not isinstance(title, str) or not isinstance(text, str):
        if not isinstance(contents, str):
            raise BadReplyError(f"a document without contents: {document!s:.200}")
        first, newline, rest = contents.partition("\n")
        title, text = (first.strip().strip('"'), rest) if newline else ("", contents)
    id_ = row.get("id")
    if id_ is None:
        id_ = hashlib.blake2b(f"{title}\n{text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    document_id = row.get("document_id")
    return Passage(str(id_), document_id if isinstance(document_id, str) else str(id_), title, text)
