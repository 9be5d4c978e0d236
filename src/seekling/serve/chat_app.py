"""An OpenAI-compatible server of a model in this process: chat completions, whole or streamed.

For collecting, judging and trying out with what is at hand. One model, text messages, one choice a request; what it
does not do it refuses by name. No batching of its own: the sampler batches whatever is asked at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hmac
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Literal

import pydantic
from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from seekling.errors import SeeklingError
from seekling.rollout.chat import ChatReply
from seekling.rollout.local_chat import ChatRequest, LocalChat
from seekling.serve.admission import BROKEN, Admission
from seekling.serve.request_body import RefusedRequestError, read_fields, read_object
from seekling.types import Json, Message, Role

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_WAITING_BYTES = 4 * MAX_BODY_BYTES
"""Of all requests whose replies are not finished."""
_CHARS_PER_TOKEN = 64
"""What is longer, does not fit: tokenizers read all of a text, and nobody else is answered meanwhile."""
_LOOK_EVERY_S = 0.5
_UNSUPPORTED = ("tools", "functions", "response_format", "logprobs", "audio", "prediction")


class _Piece(pydantic.BaseModel):
    type: Literal["text"]
    text: str


class _Said(pydantic.BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Piece] | None = None

    def message(self) -> Message:
        role: Role = "system" if self.role == "developer" else self.role
        parts = self.content or ""
        return Message(role, parts if isinstance(parts, str) else "".join(piece.text for piece in parts))


class _StreamOptions(pydantic.BaseModel):
    include_usage: bool = False


class _Body(pydantic.BaseModel):
    """What a request may say; fields we do not know are ignored, those we cannot do are refused."""

    model: str
    messages: Annotated[list[_Said], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


def make_chat_app(chat: LocalChat, *, key: str = "", waiting_bytes: int = MAX_WAITING_BYTES) -> Starlette:
    """The server of one model.

    Args:
        chat: the model; its name is the one that clients ask for.
        key: clients must send it as `Authorization: Bearer KEY`; empty lets everyone in.
        waiting_bytes: of all requests whose replies are not finished; more are told to come back (503).

    Returns:
        An ASGI app with POST /v1/chat/completions, GET /v1/models and GET /health.
    """
    created = int(time.time())
    admission = Admission(body_bytes=MAX_BODY_BYTES, waiting_bytes=waiting_bytes)

    async def completions(request: Request) -> Response:
        check_key(request)
        with contextlib.ExitStack() as held:
            admitted = await admission.read(request)
            held.callback(admitted.release)
            body = _read(admitted.body)
            ready = await _ready(body, chat)
            about: dict[str, Json] = {
                "id": f"chatcmpl-{uuid.uuid4().hex}",
                "created": int(time.time()),
                "model": chat.endpoint.model,
            }
            if body.stream:
                with_usage = body.stream_options is not None and body.stream_options.include_usage
                return _EventStream(_stream(chat, ready, about, with_usage), held.pop_all())
            reply = await _whole(chat, ready, request)
            return Response(status_code=499) if reply is None else JSONResponse(_completion(about, reply))

    async def models(request: Request) -> Response:
        check_key(request)
        row = {"id": chat.endpoint.model, "object": "model", "created": created, "owned_by": "seekling"}
        return JSONResponse({"object": "list", "data": [row]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": chat.endpoint.model})

    def check_key(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if key and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise RefusedRequestError(
                401, "the Authorization header does not hold this server's key", "invalid_api_key"
            )

    return Starlette(
        routes=[
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ],
        exception_handlers={
            RefusedRequestError: _refused,
            HTTPException: _http_error,
            SeeklingError: _failed,
            Exception: _broken,
        },
    )


class _EventStream(StreamingResponse):
    """A stream that lets go of what its request holds when it ends, begun or not."""

    def __init__(self, events: AsyncIterator[str], held: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


def _read(raw: bytes) -> _Body:
    row = read_object(raw, status=400)
    try:
        # JSON can hold halves of characters, which no tokenizer takes: they would fail amid the replies of others.
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusedRequestError(400, f"the body is not JSON ({error})", "invalid_json") from None
    for name in _UNSUPPORTED:
        if row.get(name):
            raise RefusedRequestError(
                400, f"this server does not support {name!r}; leave it out", "unsupported_parameter"
            )
    return read_fields(row, _Body, status=400)


async def _ready(body: _Body, chat: LocalChat) -> ChatRequest:
    if body.model != chat.endpoint.model:
        raise RefusedRequestError(
            404, f"there is no model {body.model!r} here, only {chat.endpoint.model!r}", "model_not_found"
        )
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > 8 or not all(stop):
        raise RefusedRequestError(400, "stop takes up to 8 texts, none of them empty")
    messages = tuple(each.message() for each in body.messages)
    size, unit = sum(len(each.content) for each in messages), "characters"
    is_long = size > chat.context_tokens * _CHARS_PER_TOKEN
    if not is_long:
        size, unit = await asyncio.wrap_future(chat.count_prompt_tokens(messages)), "tokens"
        is_long = size >= chat.context_tokens
    if is_long:
        what = f"the messages have {size} {unit}; prompt and reply together have {chat.context_tokens} tokens"
        raise RefusedRequestError(400, what, "context_length_exceeded")
    limit = body.max_completion_tokens or body.max_tokens or chat.context_tokens
    seed = random.getrandbits(62) if body.seed is None else body.seed % 2**62
    temperature = 1.0 if body.temperature is None else body.temperature
    return ChatRequest(messages, limit, temperature, body.top_p or 1.0, seed, tuple(stop))


async def _whole(chat: LocalChat, ready: ChatRequest, request: Request) -> ChatReply | None:
    """The reply; None, and the sampling given up, when the client is gone."""
    waiting = asyncio.wrap_future(chat.submit(ready))
    try:
        while not (await asyncio.wait([waiting], timeout=_LOOK_EVERY_S))[0]:
            if await request.is_disconnected():
                return None
        return waiting.result()
    finally:
        waiting.cancel()


async def _stream(chat: LocalChat, ready: ChatRequest, about: dict[str, Json], with_usage: bool) -> AsyncIterator[str]:
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(piece: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the server has been stopped meanwhile
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    future = chat.submit(ready, tell)
    future.add_done_callback(lambda _: tell(None))
    try:
        yield _event(about, {"role": "assistant", "content": ""})
        while (piece := await pieces.get()) is not None:
            yield _event(about, {"content": piece})
        try:
            reply = future.result()
        except (SeeklingError, concurrent.futures.CancelledError) as error:
            yield _data({"error": {"message": str(error) or "the server stops", "type": "server_error"}})
            return
        yield _event(about, {}, finish="length" if reply.is_cut else "stop")
        if with_usage:
            yield _data({**about, "object": "chat.completion.chunk", "choices": [], "usage": _usage(reply)})
        yield "data: [DONE]\n\n"
    finally:
        future.cancel()


def _event(about: dict[str, Json], delta: dict[str, Json], *, finish: str | None = None) -> str:
    choice: dict[str, Json] = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data({**about, "object": "chat.completion.chunk", "choices": [choice]})


def _data(row: dict[str, Json]) -> str:
    return f"data: {json.dumps(row, ensure_ascii=False)}\n\n"


def _completion(about: dict[str, Json], reply: ChatReply) -> dict[str, Json]:
    choice: dict[str, Json] = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text},
        "finish_reason": "length" if reply.is_cut else "stop",
    }
    return {**about, "object": "chat.completion", "choices": [choice], "usage": _usage(reply)}


def _usage(reply: ChatReply) -> dict[str, Json]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _error(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    row: Json = {"error": {"message": message, "type": kind, "code": code, "param": None}}
    return JSONResponse(row, status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequestError)
    return _error(error.status, str(error), error.code, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", "not_found")


async def _failed(request: Request, error: Exception) -> Response:
    return _error(503, str(error), "engine_failed")


async def _broken(request: Request, error: Exception) -> Response:
    return _error(500, f"the request failed: {type(error).__name__}: {error}", "internal_error", BROKEN)
