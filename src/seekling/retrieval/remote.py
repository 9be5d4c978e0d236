"""A retriever whose index lives behind a server that speaks Search-R1's `POST /retrieve`.

Ours does (`seekling serve --search-only`), and so do Search-R1's own and its relatives. Ours also gives whole
documents, so that an agent can read pages remotely. A failing server is a `ServerError`, never an empty result.
"""

from __future__ import annotations

from collections.abc import Sequence

from seekling.client import BadReplyError, Client, Patience, RefusedError
from seekling.config import RetrievalConfig
from seekling.errors import ConfigError
from seekling.retrieval.chroma import StoreIndex, is_store, open_store
from seekling.retrieval.interface import Retriever, check_request
from seekling.retrieval.rerank import reranked
from seekling.retrieval.retrieve_json import documents_from_json, hits_from_json
from seekling.types import Document, Hit, Json

_RETRIEVE = "/retrieve"


class RemoteIndex:
    """Searches, and reads documents, where the index is: a `Retriever` and a `DocumentSource`.

    Args:
        client: of the server, or the part of it that is one of its indexes.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`.

        Raises:
            DataError: `top_k` is below 1, or `queries` is one string.
            ServerError: the server did not answer, or not with an answer.
        """
        check_request(queries, top_k)
        # Other servers find something for an empty query.
        asked = [place for place, query in enumerate(queries) if query.strip()]
        hits: list[list[Hit]] = [[] for _ in queries]
        if not asked:
            return hits
        texts: list[Json] = [queries[place] for place in asked]
        found = self._client.call(
            _RETRIEVE,
            lambda reply: hits_from_json(reply, num_queries=len(asked), top_k=top_k),
            {"queries": texts, "topk": top_k, "return_scores": True},
        )
        for place, each in zip(asked, found, strict=True):
            hits[place] = each
        return hits

    def find(self, document_id: str) -> Document | None:
        """The document with exactly this id, or None.

        Raises:
            ServerError: the server did not answer, or has no documents to give, as servers other than ours.
        """

        def parse(reply: Json) -> Document | None:
            documents = documents_from_json(reply)
            if len(documents) != 1:
                raise BadReplyError(f"the reply holds {len(documents)} documents for one id")
            return documents[0]

        return self._client.call("/documents", parse, {"ids": [document_id]})

    def corpus_hash(self) -> str:
        """What a run records of a corpus that it does not hold: the server's hash of it, else the server's address.

        Raises:
            ServerError: the server did not answer.
        """

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
    """Find the server and make sure that it answers.

    Args:
        config: its `url`, with or without /retrieve at the end, and its `timeout_s` count.
        patience: how long it is waited for; None takes the defaults with the config's timeout.

    Raises:
        ConfigError: the address is no address, or what is there does not speak /retrieve.
        ServerError: nobody answers.
    """
    url = config.url.rstrip("/").removesuffix(_RETRIEVE)
    index = RemoteIndex(Client(url, patience or Patience(timeout_s=config.timeout_s)))
    try:
        index.search(["Is anybody there?"], 1)
    except RefusedError as error:
        raise ConfigError(f"{error}; retrieval.url must be a server that answers POST {_RETRIEVE}") from None
    return index
