"""The search server: Search-R1's `POST /retrieve`, whole documents, health and metrics.

Every index is at its name (`/wiki/retrieve`), the first one also without (`/retrieve`). A failure has a status and a
JSON body {"error": why}: 4xx for a wrong request, 503 with Retry-After when too much is asked at once, 504 when it took
too long, 500 when the search itself failed. There is no way from a failure to an empty result.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

import pydantic
from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seekling.config import SearchServerConfig
from seekling.errors import ConfigError
from seekling.retrieval.index import open_index
from seekling.retrieval.index_record import IndexRecord, read_record
from seekling.retrieval.interface import DocumentSource, Retriever
from seekling.retrieval.remote import documents_to_json, hits_to_json
from seekling.retrieval.store import DocumentStore
from seekling.serve.batching import Batcher, Key
from seekling.serve.metrics import SearchMetrics
from seekling.serve.requests import BROKEN, CLIENT_GONE, RefusedRequestError, Room, read_body
from seekling.types import Json

_MAX_DOCUMENTS = 100
_MAX_CHECKED = 32
"""Unknown fields of a request that are compared with the known ones: more would keep the others waiting."""


class RetrieveRequest(pydantic.BaseModel):
    """A request to /retrieve: Search-R1's dialect, and SkyRL's with one "query".

    Fields that are unknown are ignored, as Search-R1's server does, unless they look like a misspelt one.
    """

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    queries: Annotated[list[str], Field(fail_fast=True)] | None = None
    query: str | None = None
    topk: Annotated[int, Field(ge=0)] | None = None
    """None or 0: the server's own."""
    return_scores: bool | None = None

    @pydantic.model_validator(mode="after")
    def _is_clear(self) -> Self:
        for name in itertools.islice(self.model_extra or (), _MAX_CHECKED):
            near = difflib.get_close_matches(name, list(type(self).model_fields), n=1, cutoff=0.75)
            if near:
                raise ValueError(f"{name!r:.80} is no field of a request; did you mean {near[0]!r}?")
        if (self.queries is None) == (self.query is None):
            raise ValueError('expected one of "queries", a list of texts, and "query", a text')
        return self


class DocumentsRequest(pydantic.BaseModel):
    """A request to /documents."""

    model_config = pydantic.ConfigDict(strict=True)

    ids: Annotated[list[str], Field(fail_fast=True)]


class ServedIndex:
    """One index behind the server, with its name in the path of a request; `record` says what it is made of."""

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
            on_batch=metrics.batch.labels(name).observe,
        )
        metrics.num_waiting.labels(name).set_function(lambda: self.batcher.num_waiting)

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

    async def answer(self, request: Request, room: Room, work: Callable[[bytes], Awaitable[bytes]]) -> Response:
        """Read a body, answer it within the time limit, and count what came of it."""
        started, limit_s = time.perf_counter(), self._config.timeout_s
        response, late = _error(500, "the search failed"), (408, "the request did not arrive")
        try:
            with contextlib.ExitStack() as held:
                async with asyncio.timeout(limit_s):
                    body = await room.read(request, held)
                    late = (504, "the search did not end")
                    response = Response(await work(body), media_type="application/json")
        except RefusedRequestError as error:
            response = _error(error.status, str(error), error.headers)
        except TimeoutError:
            response = _error(late[0], f"{late[1]} within {limit_s:g} s")
        except ClientDisconnect:
            response = Response(status_code=CLIENT_GONE)
        finally:
            self._metrics.requests.labels(self.name, str(response.status_code)).inc()
            self._metrics.seconds.labels(self.name).observe(time.perf_counter() - started)
        return response

    async def retrieve(self, body: bytes) -> bytes:
        """Answer the body of a request to /retrieve with the body of the reply."""
        asked, config = read_body(body, RetrieveRequest, status=422), self._config
        queries = [asked.query] if asked.query is not None else asked.queries or []
        longest = max(map(len, queries), default=0)
        if longest > config.query_chars:
            what = f"a query has {longest} characters; this server takes {config.query_chars}: shorten it"
            raise RefusedRequestError(413, what)
        top_k = min(asked.topk or config.top_k, self._record.counts.passages)
        num_hits = top_k * len(queries)
        if num_hits > config.hits_per_request:
            raise RefusedRequestError(
                422,
                f"{len(queries)} queries with topk {top_k} ask for {num_hits} passages; this server gives "
                f"{config.hits_per_request} per request: ask for fewer at once",
            )
        self._metrics.queries.labels(self.name).inc(len(queries))
        found = await self.batcher.ask([Key(query, top_k, bool(asked.return_scores)) for query in queries])
        return b'{"result": [' + b", ".join(found) + b"]}"

    async def documents(self, body: bytes) -> bytes:
        """Answer the body of a request to /documents with the body of the reply."""
        ids = read_body(body, DocumentsRequest, status=422).ids
        if len(ids) > _MAX_DOCUMENTS:
            what = f"{len(ids)} documents asked for; this server gives {_MAX_DOCUMENTS} per request"
            raise RefusedRequestError(422, what)
        return documents_to_json(await asyncio.to_thread(lambda: [self._documents.find(id_) for id_ in ids]))

    def _search(self, keys: Sequence[Key]) -> list[bytes]:
        answers: dict[Key, bytes] = {}
        for top_k in dict.fromkeys(key.top_k for key in keys):
            group = [key for key in keys if key.top_k == top_k]
            found = self._retriever.search([key.query for key in group], top_k)
            for key, hits in zip(group, found, strict=True):
                answers[key] = hits_to_json(hits, with_scores=key.with_scores)
        return [answers[key] for key in keys]


def open_indexes(specs: Sequence[str], config: SearchServerConfig, metrics: SearchMetrics) -> list[ServedIndex]:
    """Open indexes for serving, each given as FOLDER or NAME=FOLDER; a folder alone goes by its own name.

    Raises:
        ConfigError: two indexes have one name, or a name cannot be part of an address.
        IndexMismatchError: an index is missing or damaged.
    """
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
    opened = []
    for name, folder in folders.items():
        retriever = open_index(folder)
        # What is loaded at the first search (kernels, pages of the map) is loaded before anybody waits for it.
        retriever.search(["warm up"], 1)
        documents, record = DocumentStore(folder), read_record(folder)
        opened.append(ServedIndex(name, retriever, documents, record, config=config, metrics=metrics))
    return opened


def search_app(indexes: Sequence[ServedIndex], config: SearchServerConfig, metrics: SearchMetrics) -> Starlette:
    """The application that serves some indexes; the first also answers requests that name none."""
    by_name = {index.name: index for index in indexes}
    room = Room(body_bytes=config.body_bytes, waiting_bytes=config.waiting_bytes)

    def index_of(request: Request) -> ServedIndex:
        name = request.path_params.get("index", indexes[0].name)
        if name not in by_name:
            raise HTTPException(404, f"there is no index {name!r:.80} here; there are: {', '.join(sorted(by_name))}")
        return by_name[name]

    async def retrieve(request: Request) -> Response:
        return await (index := index_of(request)).answer(request, room, index.retrieve)

    async def documents(request: Request) -> Response:
        return await (index := index_of(request)).answer(request, room, index.documents)

    async def about(request: Request) -> Response:
        return JSONResponse(index_of(request).describe())

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "indexes": [index.describe() for index in indexes]})

    async def measured(request: Request) -> Response:
        return metrics.reply()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(index.batcher.run()) for index in indexes]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    posts, starts = {"retrieve": retrieve, "documents": documents}, ("", "/{index}")
    return Starlette(
        routes=[
            *(Route(f"{start}/{name}", each, methods=["POST"]) for start in starts for name, each in posts.items()),
            *(Route(f"{start}/index", about) for start in starts),
            Route("/health", health),
            Route("/metrics", measured),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
        lifespan=lifespan,
    )


def _error(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": why}, status_code=status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = error.detail
    if error.status_code == 404 and why == "Not Found":
        why = f"there is nothing at {request.url.path!r:.80}; searches go to POST /retrieve"
    if error.status_code == 405:
        takes = (error.headers or {}).get("Allow", "POST")
        why = f"{request.url.path!r:.80} is asked by {takes}, not by {request.method:.20}"
    return _error(error.status_code, why, error.headers)


async def _server_error(request: Request, error: Exception) -> Response:
    return _error(500, f"the search failed: {type(error).__name__}: {error}", BROKEN)
