"""The Tinker API over HTTP: a request is answered at once, or begins work whose answer is fetched by long polling.

Work is begun once for each (model, sequence number), however often a client sends it, and its answer kept for a client
that missed it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pydantic
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from tinker import types

from seekling.errors import DataError, InfrastructureError, SeeklingError
from seekling.rollout.local_chat import LoopThread
from seekling.serve.chat_form import ERROR_REPLIES, error_reply, refusal
from seekling.serve.gate import Gate, GateRules
from seekling.serve.requests import Admitted, RefusedRequestError, Room, read_body
from seekling.tinker.engine import Engine
from seekling.tinker.handlers import Handlers, Work
from seekling.tinker.runs import Runs
from seekling.tinker.wire import Reply, SavedPath, failure
from seekling.types import Json

OPEN_PATHS = frozenset({"/api/v1/healthz"})
"""Need no key."""
_BODY_BYTES = 32 * 1024**2
_WAITING_BYTES = 256 * 1024**2
_POLL_S = 25.0
"""Less than the 45 seconds that the SDK waits."""
_FORGETTING_S = 60.0
"""Between looks for programs that were ended without a word."""
_EXTERNAL = "/api/v1/training_runs/{model_id}/checkpoints/external_weights/{name}/external_weights_urls"
_KEPT_ANSWERS, _KEPT_BYTES = 1024, 64 * 1024**2
_Body = TypeVar("_Body", bound=pydantic.BaseModel)
_Answer = Callable[[bytes, str], dict[str, Json] | Work]
"""Body and name of the key -> what is said at once, or work whose answer is fetched later."""


class _Answers:
    """Work that was begun, by the id of its request. Answers are made in the engine's thread."""

    def __init__(self) -> None:
        self._thread = LoopThread("tinker")
        self._kept: OrderedDict[str, tuple[str, concurrent.futures.Future[Reply]]] = OrderedDict()

    def close(self) -> None:
        self._thread.close()

    def begin(self, work: Work, owner: str, release: Callable[[], None]) -> None:
        """Begin work that has not begun; `release` is called when it ends, or has begun before."""
        if work.request_id in self._kept:
            release()
            return
        if work.numbered is not None:
            model, number = work.numbered
            if number <= model.last_seq_id:
                release()
                raise RefusedRequestError(410, f"{work.request_id} was answered before, and the answer is forgotten")
            model.last_seq_id = number
        future = self._thread.submit(_answered(work))
        self._kept[work.request_id] = owner, future
        future.add_done_callback(lambda _: release())
        self._forget()

    def _forget(self) -> None:
        """Drop the oldest answers above the limits; what is still being worked on stays."""
        done = [(name, future) for name, (_, future) in self._kept.items() if future.done()]
        num_bytes = sum(len(future.result().body) for _, future in done if future.exception() is None)
        for name, future in done:
            if len(self._kept) <= _KEPT_ANSWERS and num_bytes <= _KEPT_BYTES:
                break
            num_bytes -= len(future.result().body) if future.exception() is None else 0
            del self._kept[name]

    async def run(self, work: Coroutine[object, object, None]) -> None:
        """Something else in the engine's thread."""
        await asyncio.wrap_future(self._thread.submit(work))

    def taking(self, answer: _Answer, room: Room) -> Admitted:
        """An address whose requests are answered at once, or begin work that holds their room."""

        async def handler(request: Request, raw: bytes, held: contextlib.ExitStack) -> Response:
            found = answer(raw, request.state.key)
            if isinstance(found, Work):
                self.begin(found, request.state.key, held.pop_all().close)
                found = found.promise()
            return JSONResponse(found)

        return Admitted(room, handler)

    async def retrieve(self, request: Request, raw: bytes, held: contextlib.ExitStack) -> Response:
        """An answer, or that there is none yet; 410 where this key has no such request."""
        held.close()
        request_id = read_body(raw, types.FutureRetrieveRequest, status=422).request_id
        asked_by, future = self._kept.get(request_id, ("", None))
        if future is None or asked_by != request.state.key:
            raise RefusedRequestError(410, f"there is no request {request_id!r:.200} of yours; send it again")
        await asyncio.wait([asyncio.wrap_future(future)], timeout=_POLL_S)
        if not future.done():
            return JSONResponse({"type": "try_again", "request_id": request_id, "queue_state": "active"}, 408)
        error = future.exception()
        reply = future.result() if error is None else failure(f"{type(error).__name__}: {error}", is_users=False)
        return Response(reply.body, media_type="application/x-protobuf" if reply.is_proto else "application/json")


async def _answered(work: Work) -> Reply:
    try:
        return await work.run()
    except (SeeklingError, RefusedRequestError) as error:
        return failure(str(error), is_users=not isinstance(error, InfrastructureError))


def make_tinker_app(
    engine: Engine, names: tuple[str, ...], *, rules: GateRules | None = None, waiting_bytes: int = _WAITING_BYTES
) -> Starlette:
    """The server of one base model: an ASGI app with the addresses that the pinned tinker SDK asks.

    Args:
        engine: has it.
        names: by which programs may ask for it; by the first, which the server gives, they load the tokenizer.
        rules: whom to let in; None lets in every program of this machine.
        waiting_bytes: of all requests that are not yet answered; more are told to come back (429).
    """
    handlers, answers = Handlers(engine, names), _Answers()
    room = Room(body_bytes=_BODY_BYTES, waiting_bytes=waiting_bytes)
    # However much is waiting, programs fetch answers and say that they are there.
    always = Room(body_bytes=2**16, waiting_bytes=2**26)

    async def finish(request: Request) -> Response:
        handlers.session(session_id := str(request.path_params["session_id"]), request.state.key)
        await answers.run(handlers.end(session_id))
        return JSONResponse({})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        forgetting = asyncio.create_task(_forget(handlers, answers))
        yield
        forgetting.cancel()
        await asyncio.to_thread(answers.close)

    posts: dict[str, Admitted | Callable[[Request], Awaitable[Response]]] = {
        "retrieve_future": Admitted(always, answers.retrieve),
        "sessions/{session_id}/finish": finish,
        "session_heartbeat": answers.taking(_of(types.SessionHeartbeatRequest, handlers.heartbeat), always),
        **{name: answers.taking(answer, room) for name, answer in _requests(handlers).items()},
    }
    gets: dict[str, Callable[[Request], dict[str, Json]]] = {
        "samplers/{sampler_id}": lambda asked: handlers.sampler(asked.path_params["sampler_id"], asked.state.key),
        "get_server_capabilities": lambda asked: handlers.capabilities(),
        "healthz": lambda asked: {"status": "ok"},
    }
    return Starlette(
        routes=[
            *(Route(f"/api/v1/{name}", handler, methods=["POST"]) for name, handler in posts.items()),
            *(Route(f"/api/v1/{name}", _get(answer)) for name, answer in gets.items()),
            *_external_routes(handlers),
            *_run_routes(Runs(engine, names[0])),
        ],
        middleware=[Middleware(Gate, rules or GateRules(open_paths=OPEN_PATHS))],
        exception_handlers={**ERROR_REPLIES, RefusedRequestError: _refused, DataError: _wrong},
        lifespan=lifespan,
    )


async def _forget(handlers: Handlers, answers: _Answers) -> None:
    while True:
        await asyncio.sleep(_FORGETTING_S)
        await answers.run(handlers.drop_forgotten())


def _external_routes(handlers: Handlers) -> list[Route]:
    """Where saved adapters are fetched: the addresses of their files, and these."""

    def files_of(asked: Request) -> dict[str, Path]:
        return handlers.external_files(asked.path_params["model_id"], asked.path_params["name"], asked.state.key)

    async def urls(asked: Request) -> Response:
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        found = {name: f"{asked.url}/{name}" for name in files_of(asked)}
        return JSONResponse({"urls": found, "expires": expires.isoformat()})

    async def file(asked: Request) -> Response:
        path = files_of(asked).get(asked.path_params["file"])
        if path is None:
            raise RefusedRequestError(404, f"there is no file {asked.path_params['file']!r:.200}")
        return FileResponse(path)

    return [Route(_EXTERNAL, urls), Route(_EXTERNAL + "/{file}", file)]


def _run_routes(runs: Runs) -> list[Route]:
    """What `RestClient` asks about models and saved weights."""

    def paged(asked: Request, default: int) -> tuple[str, int, int]:
        try:
            limit, offset = (int(asked.query_params.get(*each)) for each in (("limit", default), ("offset", 0)))
        except ValueError:
            limit = offset = -1
        if limit < 0 or offset < 0:
            raise RefusedRequestError(422, "limit and offset are numbers, 0 or more")
        return asked.state.key, limit, offset

    def path_of(asked: Request) -> SavedPath:
        return SavedPath.read("tinker://{model_id}/{kind}/{name}".format(**asked.path_params))

    run, checkpoints = "/api/v1/training_runs/{model_id}", "/api/v1/training_runs/{model_id}/checkpoints"
    return [
        Route("/api/v1/training_runs", _get(lambda asked: runs.runs(*paged(asked, 20)))),
        Route(run, _get(lambda asked: runs.run(asked.path_params["model_id"], asked.state.key))),
        Route(checkpoints, _get(lambda asked: runs.checkpoints(asked.path_params["model_id"], asked.state.key))),
        Route("/api/v1/checkpoints", _get(lambda asked: runs.all_checkpoints(*paged(asked, 100)))),
        Route(
            checkpoints + "/{kind}/{name}",
            _get(lambda asked: runs.delete(path_of(asked), asked.state.key)),
            methods=["DELETE"],
        ),
    ]


def _requests(handlers: Handlers) -> dict[str, _Answer]:
    """What is sent in a body, by the last part of its address."""
    return {
        "client/config": _of(types.ClientConfigRequest, handlers.config),
        "telemetry": lambda raw, owner: {"status": "accepted"},  # and not kept
        "create_session": _of(types.CreateSessionRequest, handlers.create_session),
        "create_sampling_session": _of(types.CreateSamplingSessionRequest, handlers.create_sampling_session),
        "get_info": _of(types.GetInfoRequest, handlers.get_info),
        "create_model": _of(types.CreateModelRequest, handlers.create_model),
        "forward_backward": handlers.forward_backward,
        "optim_step": _of(types.OptimStepRequest, handlers.optim_step),
        "save_weights": _of(types.SaveWeightsRequest, handlers.save_weights),
        "load_weights": _of(types.LoadWeightsRequest, handlers.load_weights),
        "save_weights_for_sampler": _of(types.SaveWeightsForSamplerRequest, handlers.save_weights_for_sampler),
        "save_weights_external": _of(types.SaveWeightsExternalRequest, handlers.save_weights_external),
        "asample": _of(types.SampleRequest, handlers.sample),
    }


def _of(kind: type[_Body], answer: Callable[[_Body, str], dict[str, Json] | Work]) -> _Answer:
    return lambda raw, owner: answer(read_body(raw, kind, status=422), owner)


def _get(answer: Callable[[Request], dict[str, Json]]) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        return JSONResponse(answer(request))

    return handler


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequestError)
    if error.status == 503:  # to 429 the SDK slows down; to 503 it would give up some day
        error.status = 429
    return refusal(error)


async def _wrong(request: Request, error: Exception) -> Response:
    return error_reply(400, str(error), "invalid_value")
