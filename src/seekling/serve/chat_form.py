"""OpenAI's form: what a chat request may say, and how replies, streams and errors are written. No model here.

Both chat servers of this package, the agent's and the bare policy's, read and answer in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Annotated, Literal, TypeVar

import pydantic
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from seekling.errors import SeeklingError
from seekling.serve.requests import (
    BROKEN,
    Admitted,
    Body,
    RefusedRequestError,
    Room,
    read_fields,
    read_object,
)
from seekling.types import Json, Message, Role

_LOOK_EVERY_S = 0.5
_UNSUPPORTED = ("tools", "functions", "response_format", "logprobs", "audio", "prediction")
_PLAIN_TEXT = {"type": "text"}
"""The `response_format` that asks for nothing special."""
_Result = TypeVar("_Result")


class _Piece(pydantic.BaseModel):
    type: Literal["text"]
    text: str


class Said(pydantic.BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_Piece], Field(fail_fast=True)] | None = None

    def message(self) -> Message:
        """The same, as the rest of the package has it."""
        role: Role = "system" if self.role == "developer" else self.role
        parts = self.content or ""
        return Message(role, parts if isinstance(parts, str) else "".join(piece.text for piece in parts))


class _StreamOptions(pydantic.BaseModel):
    include_usage: bool = False


class ChatBody(pydantic.BaseModel):
    """What a request may say; fields we do not know are ignored, those we cannot do are refused."""

    model_config = pydantic.ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[Said], Field(min_length=1, fail_fast=True)]
    """The first wrong one is enough: to list a million of them would keep everybody waiting."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    include_stop_str_in_output: bool = False
    """vLLM's: the reply ends after its stop string, not before it."""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the tokens that were used."""
        return self.stream_options is not None and self.stream_options.include_usage


def read_openai(raw: bytes, kind: type[Body]) -> Body:
    """Read a request. Halves of characters, which no tokenizer takes, would fail amid others' replies: refused."""
    row = read_object(raw, status=400)
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusedRequestError(400, f"the body is not JSON ({error})", "invalid_json") from None
    return read_fields(row, kind, status=400)


def read_chat(raw: bytes, model: str) -> ChatBody:
    """Read a chat request; one that asks for what we cannot do, or for another model than this, is refused."""
    body = read_openai(raw, ChatBody)
    for name, value in (body.model_extra or {}).items():
        if name in _UNSUPPORTED and value and value != _PLAIN_TEXT:
            what = f"this server does not support {name!r}; leave it out"
            raise RefusedRequestError(400, what, "unsupported_parameter")
    _refuse_other_model(body.model, model)
    return body


def _refuse_other_model(asked: str, model: str) -> None:
    if asked != model:
        raise RefusedRequestError(404, f"there is no model {asked!r:.80} here, only {model!r}", "model_not_found")


def about_reply(model: str) -> dict[str, Json]:
    """What every part of one reply repeats: its id, its time, its model."""
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}


def openai_routes(
    model: str, room: Room, complete: Callable[[Request, bytes, contextlib.ExitStack], Awaitable[Response]]
) -> list[Route]:
    """The addresses that every server of one model has; `complete` answers the bodies of chat requests."""
    listed = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "seekling"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [listed]})

    async def one_model(request: Request) -> Response:
        _refuse_other_model(request.path_params["id"], model)
        return JSONResponse(listed)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": model})

    return [
        Route("/v1/chat/completions", Admitted(room, complete), methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{id:path}", one_model),
        Route("/health", health),
    ]


def completion(
    about: Mapping[str, Json], message: Mapping[str, Json], finish: str, usage: Mapping[str, Json], **more: Json
) -> JSONResponse:
    """A whole reply."""
    said: dict[str, Json] = {"role": "assistant", **message}
    choice: dict[str, Json] = {"index": 0, "message": said, "finish_reason": finish}
    return JSONResponse({**about, "object": "chat.completion", "choices": [choice], "usage": dict(usage), **more})


def chunk(about: Mapping[str, Json], delta: dict[str, Json], *, finish: str | None = None, **more: Json) -> str:
    """A piece of a streamed reply."""
    choice: dict[str, Json] = {"index": 0, "delta": delta, "finish_reason": finish}
    return _event({**about, "object": "chat.completion.chunk", "choices": [choice], **more})


def usage_chunk(about: Mapping[str, Json], usage: Mapping[str, Json]) -> str:
    """The piece that says what a streamed reply used."""
    return _event({**about, "object": "chat.completion.chunk", "choices": [], "usage": dict(usage)})


def failed_event(message: str, code: str = "engine_failed") -> str:
    """The event of a stream that fails after it began: what the body of a failure is where nothing was sent yet."""
    kind = "invalid_request_error" if code == "context_length_exceeded" else "server_error"
    return _event({"error": _problem(message, kind, code)})


def _event(row: Mapping[str, Json]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(row, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, Json]:
    """Tokens, as OpenAI counts them."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


class _Events(StreamingResponse):
    """A stream whose pieces are closed before it ends: also when the client goes away while one is being sent."""

    def __init__(self, pieces: AsyncGenerator[str]) -> None:
        super().__init__(pieces, media_type="text/event-stream")
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        async with contextlib.aclosing(self._pieces):
            await super().__call__(scope, receive, send)


def events(pieces: AsyncGenerator[str]) -> Response:
    """A streamed reply."""
    return _Events(pieces)


async def unless_gone(request: Request, work: Awaitable[_Result]) -> _Result | None:
    """What comes of the work; None, and the work given up, when the client is gone."""
    waiting = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([waiting], timeout=_LOOK_EVERY_S))[0]:
            if await request.is_disconnected():
                return None
        return waiting.result()
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])  # what becomes of it is logged with the request


def error_reply(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A refusal or failure."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": _problem(message, kind, code)}, status, headers)


def _problem(message: str, kind: str, code: str) -> dict[str, Json]:
    return {"message": message, "type": kind, "code": code, "param": None}


def refusal(error: RefusedRequestError) -> JSONResponse:
    """The reply to a request that is refused."""
    return error_reply(error.status, str(error), error.code, error.headers)


async def _error(request: Request, error: Exception) -> Response:
    about = request.state.about
    match error:
        case RefusedRequestError():
            about["error"] = error.code
            return refusal(error)
        case HTTPException():
            about["error"] = "not_found"
            what = f"{request.method} {request.url.path}: {error.detail}"
            return error_reply(error.status_code, what, "not_found", error.headers)
        case SeeklingError():
            about["error"], about["failure"] = "engine_failed", str(error)
            return error_reply(503, str(error), "engine_failed")
    about["error"] = "internal_error"
    return error_reply(500, f"the request failed: {type(error).__name__}: {error}", "internal_error", BROKEN)


ERROR_REPLIES: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = dict.fromkeys(
    (RefusedRequestError, HTTPException, SeeklingError, Exception), _error
)
"""How exceptions become replies."""
