"""An OpenAI-compatible server of a model in this process: chat completions, whole or streamed.

For collecting, judging and trying out with what is at hand. One model, text messages, one choice a request; what it
does not do it refuses by name. No batching of its own: the sampler batches whatever is asked at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from seekling.errors import SeeklingError
from seekling.rollout.chat import ChatReply
from seekling.rollout.local_chat import ChatRequest, LocalChat
from seekling.serve import chat_form
from seekling.serve.gate import Gate, GateRules
from seekling.serve.requests import CLIENT_GONE, RefusedRequestError, Room
from seekling.types import Json

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_WAITING_BYTES = 4 * MAX_BODY_BYTES
"""Of all requests whose replies are not finished."""
_CHARS_PER_TOKEN = 64
"""What is longer, does not fit: tokenizers read all of a text, and nobody else is answered meanwhile."""


def make_chat_app(
    chat: LocalChat, *, rules: GateRules | None = None, waiting_bytes: int = MAX_WAITING_BYTES
) -> Starlette:
    """The server of one model: POST /v1/chat/completions, GET /v1/models and GET /health.

    Args:
        chat: the model; its name is the one that clients ask for.
        rules: whom to let in; None lets in every program of this machine.
        waiting_bytes: of all requests whose replies are not finished; more are told to come back (503).
    """
    model, room = chat.endpoint.model, Room(body_bytes=MAX_BODY_BYTES, waiting_bytes=waiting_bytes)

    async def complete(request: Request, raw: bytes, held: contextlib.ExitStack) -> Response:
        body = chat_form.read_chat(raw, model)
        ready, about = await _ready(body, chat), chat_form.about_reply(model)
        if body.stream:
            return chat_form.events(_stream(chat, ready, about, body.wants_usage, request.state.about))
        reply = await chat_form.unless_gone(request, asyncio.wrap_future(chat.submit(ready)))
        if reply is None:
            request.state.about["outcome"] = "cancelled"
            return Response(status_code=CLIENT_GONE)
        request.state.about["outcome"] = "answered"
        return chat_form.completion(about, {"content": reply.text}, _finish(reply), _usage(reply))

    return Starlette(
        routes=chat_form.openai_routes(model, room, complete),
        middleware=[Middleware(Gate, rules or GateRules())],
        exception_handlers=chat_form.ERROR_REPLIES,
    )


async def _ready(body: chat_form.ChatBody, chat: LocalChat) -> ChatRequest:
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
    keeps = body.include_stop_str_in_output
    return ChatRequest(messages, limit, temperature, body.top_p or 1.0, seed, tuple(stop), keeps)


async def _stream(
    chat: LocalChat, ready: ChatRequest, about: dict[str, Json], with_usage: bool, logged: dict[str, Json]
) -> AsyncGenerator[str]:
    """The pieces of a reply; what became of it is `logged`."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(piece: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the server has been stopped meanwhile
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    future = chat.submit(ready, tell)
    future.add_done_callback(lambda _: tell(None))
    logged["outcome"] = "cancelled"
    try:
        yield chat_form.chunk(about, {"role": "assistant", "content": ""})
        while (piece := await pieces.get()) is not None:
            yield chat_form.chunk(about, {"content": piece})
        try:
            reply = future.result()
        except (SeeklingError, concurrent.futures.CancelledError) as error:
            logged["outcome"] = "failed"
            yield chat_form.failed_event(str(error) or "the server stops")
            return
        logged["outcome"] = "answered"
        yield chat_form.chunk(about, {}, finish=_finish(reply))
        if with_usage:
            yield chat_form.usage_chunk(about, _usage(reply))
        yield chat_form.DONE
    finally:
        future.cancel()


def _finish(reply: ChatReply) -> str:
    return "length" if reply.is_cut else "stop"


def _usage(reply: ChatReply) -> dict[str, Json]:
    return chat_form.usage_of(reply.prompt_tokens, reply.completion_tokens)
