"""The search server's HTTP side: Search-R1's `POST /retrieve`, whole documents, health and metrics.

Every index is at its name (`/wiki/retrieve`), the first one also without (`/retrieve`). A failure has a status and a
JSON body {"error": why}: 4xx for a wrong request, 503 with Retry-After when too much is asked at once, 504 when it took
too long, 500 when the search itself failed. There is no way from a failure to an empty result.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seekling.config import SearchServerConfig
from seekling.serve.admission import BROKEN, Admission
from seekling.serve.request_body import RefusedRequestError
from seekling.serve.search_index import ServedIndex
from seekling.serve.search_metrics import SearchMetrics
from seekling.types import Json

_CLIENT_CLOSED = 499


def search_app(indexes: Sequence[ServedIndex], config: SearchServerConfig, metrics: SearchMetrics) -> Starlette:
    """The application that serves some indexes.

    Args:
        indexes: at least one; the first also answers requests that name none.
        config: of the server.
        metrics: what /metrics tells.
    """
    app = _App(indexes, config, metrics)
    return Starlette(
        routes=[
            *(Route(f"{start}/retrieve", app.retrieve, methods=["POST"]) for start in ("", "/{index}")),
            *(Route(f"{start}/documents", app.documents, methods=["POST"]) for start in ("", "/{index}")),
            *(Route(f"{start}/index", app.index, methods=["GET"]) for start in ("", "/{index}")),
            Route("/health", app.health, methods=["GET"]),
            Route("/metrics", app.metrics, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
        lifespan=app.lifespan,
    )


class _App:
    def __init__(self, indexes: Sequence[ServedIndex], config: SearchServerConfig, metrics: SearchMetrics) -> None:
        self._indexes = {index.name: index for index in indexes}
        self._first = indexes[0]
        self._config, self._metrics = config, metrics
        self._admission = Admission(body_bytes=config.body_bytes, waiting_bytes=config.waiting_bytes)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(index.batcher.run()) for index in self._indexes.values()]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def retrieve(self, request: Request) -> Response:
        index = self._index_of(request)
        return await self._answer(request, index, index.retrieve)

    async def documents(self, request: Request) -> Response:
        index = self._index_of(request)
        return await self._answer(request, index, index.documents)

    async def index(self, request: Request) -> Response:
        return JSONResponse(self._index_of(request).describe())

    async def health(self, request: Request) -> Response:
        indexes: list[Json] = [index.describe() for index in self._indexes.values()]
        return JSONResponse({"status": "ok", "indexes": indexes})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=self._metrics.media_type)

    def _index_of(self, request: Request) -> ServedIndex:
        name = request.path_params.get("index", self._first.name)
        index = self._indexes.get(name)
        if index is None:
            known = ", ".join(sorted(self._indexes))
            raise HTTPException(404, f"there is no index {name!r:.80} here; there are: {known}")
        return index

    async def _answer(
        self, request: Request, index: ServedIndex, answer: Callable[[bytes], Awaitable[bytes]]
    ) -> Response:
        """Read the body, answer it within the time limit, and count what came of it."""
        started = time.perf_counter()
        response = _error(500, "the search failed")
        admitted = None
        try:
            async with asyncio.timeout(self._config.timeout_s):
                admitted = await self._admission.read(request)
                response = Response(await answer(admitted.body), media_type="application/json")
        except RefusedRequestError as error:
            response = _error(error.status, str(error), error.headers)
        except TimeoutError:
            what = "the request did not arrive" if admitted is None else "the search did not end"
            response = _error(408 if admitted is None else 504, f"{what} within {self._config.timeout_s:g} s")
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_CLOSED)
        finally:
            if admitted is not None:
                admitted.release()
            self._metrics.count_request(index.name, response.status_code, time.perf_counter() - started)
        return response


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
