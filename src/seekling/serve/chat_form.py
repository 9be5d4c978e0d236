"""OpenAI's form: what a chat request may say, and how replies, streams and errors are written. No model here.

Both chat servers of this package, the agent's and the bare policy's, read and answer in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Literal, TypeVar

import pydantic
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from seekling.errors import SeeklingError
from seekling.serve.admission import BROKEN
from seekling.serve.request_body import RefusedRequestError, read_fields, read_object
from seekling.types import Json, Message, Role

CLIENT_GONE = 499
_LOOK_EVERY_S = 0.5
_UNSUPPORTED = ("tools", "functions", "response_format", "logprobs", "audio", "prediction")
_Result = TypeVar("_Result")


class _Piece(pydantic.BaseModel):
    type: Literal["text"]
    text: str


class Said(pydantic.BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Piece] | None = None

    def message(self) -> Message:
        """The same, as the rest of the package has it."""
        role: Role = "system" if self.role == "developer" else self.role
        parts = self.content or ""
        return Message(role, parts if isinstance(parts, str) else "".join(piece.text for piece in parts))


class _StreamOptions(pydantic.BaseModel):
    include_usage: bool = False


class ChatBody(pydantic.BaseModel):
    """What a request may say; fields we do not know are ignored, those we cannot do are refused."""

    model: str
    messages: Annotated[list[Said], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    """vLLM's: the reply ends after its stop string, not before it."""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the tokens that were used."""
        return self.stream_options is not None and self.stream_options.include_usage


def read_chat(raw: bytes, model: str) -> ChatBody:
    """Read a chat request.

    Args:
        raw: its body.
        model: the one name of a model that is known here.

    Raises:
        RefusedRequestError: it is not JSON, asks for what we cannot do, or for another model.
    """
    row = read_object(raw, status=400)
    check_text(row)
    for name in _UNSUPPORTED:
        if row.get(name):
            raise RefusedRequestError(
                400, f"this server does not support {name!r}; leave it out", "unsupported_parameter"
            )
    body = read_fields(row, ChatBody, status=400)
    if body.model != model:
        raise RefusedRequestError(404, f"there is no model {body.model!r} here, only {model!r}", "model_not_found")
    return body


def check_text(row: Mapping[str, Json]) -> None:
    """Refuse halves of characters, which JSON can hold and no tokenizer takes: they would fail amid others' replies.

    Raises:
        RefusedRequestError: there is one.
    """
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusedRequestError(400, f"the body is not JSON ({error})", "invalid_json") from None


def about_reply(model: str) -> dict[str, Json]:
    """What every part of one reply repeats: its id, its time, its model."""
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}


def models_list(model: str, created: int) -> JSONResponse:
    """The reply to GET /v1/models."""
    row = {"id": model, "object": "model", "created": created, "owned_by": "seekling"}
    return JSONResponse({"object": "list", "data": [row]})


def completion(
    about: Mapping[str, Json], message: Mapping[str, Json], finish: str, usage: Mapping[str, Json], **more: Json
) -> dict[str, Json]:
    """A whole reply."""
    said: dict[str, Json] = {"role": "assistant", **message}
    choice: dict[str, Json] = {"index": 0, "message": said, "finish_reason": finish}
    return {**about, "object": "chat.completion", "choices": [choice], "usage": dict(usage), **more}


def chunk(about: Mapping[str, Json], delta: dict[str, Json], *, finish: str | None = None, **more: Json) -> str:
    """A piece of a streamed reply."""
    choice: dict[str, Json] = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({**about, "object": "chat.completion.chunk", "choices": [choice], **more})


def usage_chunk(about: Mapping[str, Json], usage: Mapping[str, Json]) -> str:
    """The piece that says what a streamed reply used."""
    return event({**about, "object": "chat.completion.chunk", "choices": [], "usage": dict(usage)})


def event(row: Mapping[str, Json]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(row, ensure_ascii=False)}\n\n"


def failed_event(message: str) -> str:
    """The event of a stream that fails after it began."""
    return event({"error": {"message": message, "type": "server_error"}})


DONE = "data: [DONE]\n\n"


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, Json]:
    """Tokens, as OpenAI counts them."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class EventStream(StreamingResponse):
    """A stream that lets go of what its request holds when it ends, begun or not."""

    def __init__(self, events: AsyncIterator[str], held: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._held:
            await super().__call__(scope, receive, send)


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


def error_reply(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A refusal or failure."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    row: Json = {"error": {"message": message, "type": kind, "code": code, "param": None}}
    return JSONResponse(row, status, headers)


def refusal(error: RefusedRequestError) -> JSONResponse:
    """The reply to a request that is refused."""
    return error_reply(error.status, str(error), error.code, error.headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequestError)
    return refusal(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    return error_reply(error.status_code, what, "not_found", error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return error_reply(503, str(error), "engine_failed")


async def _broken(request: Request, error: Exception) -> Response:
    return error_reply(500, f"the request failed: {type(error).__name__}: {error}", "internal_error", BROKEN)


ERROR_REPLIES: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    RefusedRequestError: _refused,
    HTTPException: _http_error,
    SeeklingError: _failed,
    Exception: _broken,
}
"""How exceptions become replies."""
