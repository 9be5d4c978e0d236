"""/openapi.json: the addresses of the agent's server, made of the same classes that read requests and write replies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import pydantic
from pydantic.json_schema import models_json_schema

from seekling import __version__
from seekling.serve.agent_replies import Annotation, Details, Feedback, FeedbackKept, PageText, Reply, TurnMade
from seekling.serve.chat_form import ChatBody
from seekling.types import Json


class _Message(Reply):
    role: Literal["assistant"]
    content: str
    annotations: list[Annotation]


class _Delta(Reply):
    role: Literal["assistant"] | None = None
    reasoning_content: str = ""
    """What the agent looked for and found, in words."""
    content: str = ""
    annotations: tuple[Annotation, ...] = ()


class _Choice(Reply):
    index: int
    message: _Message
    finish_reason: Literal["stop"]


class _ChunkChoice(Reply):
    index: int
    delta: _Delta
    finish_reason: Literal["stop"] | None


class _Usage(Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(Reply):
    """A whole reply."""

    id: str
    created: int
    model: str
    object: Literal["chat.completion"]
    choices: list[_Choice]
    usage: _Usage
    seekling: Details


class _TurnEvent(Reply):
    turn: TurnMade


class ChatCompletionChunk(Reply):
    """An event of a streamed reply; the last event is the text [DONE]."""

    id: str
    created: int
    model: str
    object: Literal["chat.completion.chunk"]
    choices: list[_ChunkChoice]
    usage: _Usage | None = None
    seekling: _TurnEvent | Details | None = None


class _Problem(Reply):
    message: str
    type: Literal["invalid_request_error", "server_error"]
    code: str
    param: None


class ErrorReply(Reply):
    """A request that is refused, or failed."""

    error: _Problem


class _Model(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Reply):
    """The one agent."""

    object: Literal["list"]
    data: list[_Model]


class Health(Reply):
    """The server is up."""

    status: Literal["ok"]
    model: str


_REFUSALS = {
    "400": "a field is missing or wrong, or asks for what this server does not do",
    "401": "the Authorization header does not hold a key of this server",
    "403": "a page of another site asks, or the server is called by a name that is not its own",
    "404": "there is no such model, page or answer",
    "408": "the request did not arrive in time",
    "413": "the request is too large",
    "429": "too many requests with this key, or without keys from all; Retry-After says when to come back",
    "500": "a failure that nobody foresaw",
    "503": "too many questions wait already, or the search failed; Retry-After says when to come back",
    "504": "there was no answer in time",
}
_ABOUT = "An agent that answers from one collection of documents. /mcp speaks the Model Context Protocol."
_PLACE = "#/components/schemas/{model}"


@functools.cache
def openapi_of(name: str) -> dict[str, Json]:
    """The description of a server whose agent has this name."""
    models: Sequence[type[pydantic.BaseModel]] = (
        *(ChatBody, Feedback, ChatCompletion, ChatCompletionChunk, FeedbackKept, PageText, Models, Health, ErrorReply),
    )
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_PLACE)
    chat = _operation("Ask the agent; the last message is the question.", ChatCompletion, ChatBody)
    chat["responses"]["200"]["content"]["text/event-stream"] = {"schema": _ref(ChatCompletionChunk)}  # type: ignore[index,call-overload]
    page = _operation("The text of a page.", PageText)
    page["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return {
        "openapi": "3.1.0",
        "info": {"title": f"seekling: {name}", "version": __version__, "description": _ABOUT},
        "paths": {
            "/v1/chat/completions": {"post": chat},
            "/v1/feedback": {"post": _operation("Say what is right or wrong in an answer.", FeedbackKept, Feedback)},
            "/v1/models": {"get": _operation("The one agent of this server.", Models)},
            "/v1/pages/{id}": {"get": page},
            "/metrics": {"get": {"summary": "Figures for Prometheus.", "responses": {"200": _text_reply("Figures.")}}},
            "/health": {"get": {**_operation("Whether the server is up.", Health), "security": []}},
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(
    summary: str, reply: type[pydantic.BaseModel], body: type[pydantic.BaseModel] | None = None
) -> dict[str, Json]:
    responses: dict[str, Json] = {"200": {"description": summary, "content": _json_of(reply)}}
    for status, why in _REFUSALS.items():
        responses[status] = {"description": why, "content": _json_of(ErrorReply)}
    operation: dict[str, Json] = {"summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json_of(body)}
    return operation


def _json_of(model: type[pydantic.BaseModel]) -> dict[str, Json]:
    return {"application/json": {"schema": _ref(model)}}


def _text_reply(what: str) -> dict[str, Json]:
    return {"description": what, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _ref(model: type[pydantic.BaseModel]) -> dict[str, Json]:
    return {"$ref": _PLACE.format(model=model.__name__)}
