"""What the agent's server says, as data: turns, answers with citations, pages; /openapi.json is made of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal
from urllib.parse import quote, urlsplit

import pydantic
from pydantic.json_schema import models_json_schema

from seekling import __version__
from seekling.serve.asking import Answer
from seekling.serve.asking import Quote as Quoted
from seekling.serve.chat_form import ChatBody
from seekling.types import Json, StopReason, Turn

NOT_FOUND = "I did not find this in the documents."
_MAX_NAMED = 8
"""Pages that a "not found" names."""


class Reply(pydantic.BaseModel):
    """Something in a reply; what is not declared is not said."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class PageName(Reply):
    """A page that was looked at."""

    document_id: str
    title: str


class SearchMade(Reply):
    """A search, or another call of a tool, and what came back."""

    tool: str
    query: str
    """What was looked for; the id of what was read."""
    pages: list[PageName]
    error: str


class TurnMade(Reply):
    """A turn of the agent as it happens."""

    kind: Literal["search", "code", "call", "answer", "invalid"]
    calls: list[SearchMade]


class Citation(Reply):
    """A sentence that an answer rests on."""

    quote: str
    document_id: str
    title: str
    section: str
    link: str
    """Of the document where it has a web address, else of its page on this server."""
    span: tuple[int, int] | None
    """Where it stands in the text of the page, in characters (code points); null where there are only passages."""


class UrlCitation(Reply):
    """A citation as OpenAI has them."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(Reply):
    """A citation of a message: OpenAI's, and beside it which sentence of which document it is."""

    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation
    document_id: str
    section: str
    quote: str


class Details(Reply):
    """What is known of an answer beyond its text: the field `seekling` of a reply."""

    question: str
    """As the agent was asked it: a follow-up question is reworded to stand for itself."""
    is_found: bool
    answer: str | None
    """What the agent said; where `is_found` is false, what it is not sure enough of."""
    confidence: float | None
    """Probability that the answer is right, where the policy is calibrated."""
    promise: float | None
    """Share of right answers that is promised of those that are found; null where nothing can be promised."""
    stop_reason: StopReason
    searches: list[SearchMade]
    citations: list[Citation]


class PageText(Reply):
    """A whole page."""

    document_id: str
    title: str
    text: str


class Feedback(pydantic.BaseModel):
    """What somebody thinks of an answer: thumbs, a correction, or both."""

    model_config = pydantic.ConfigDict(extra="forbid")

    id: str
    """Of the chat completion."""
    thumbs: Literal["up", "down"] | None = None
    correction: str = ""
    """The right answer, in a few words; "unknown" when the documents do not say."""

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Feedback:
        if self.thumbs is None and not self.correction.strip():
            raise ValueError('expected "thumbs" (up or down), a "correction", or both')
        return self


class FeedbackKept(Reply):
    """Feedback is on disk."""

    id: str
    status: Literal["kept"] = "kept"


def turn_made(turn: Turn, title_of: Callable[[str], str]) -> TurnMade:
    """A turn, without what the model thought and without the text of pages."""
    return TurnMade(kind=turn.kind, calls=_calls(turn, title_of))


def _calls(turn: Turn, title_of: Callable[[str], str]) -> list[SearchMade]:
    return [
        SearchMade(
            tool=call.name,
            query=" ".join(str(value) for value in call.arguments.values()),
            pages=[PageName(document_id=each, title=title_of(each)) for each in call.document_ids],
            error=call.error,
        )
        for call in turn.calls
    ]


def turn_text(made: TurnMade) -> str:
    """A turn in words, for clients that show reasoning."""
    lines = []
    for call in made.calls:
        found = ", ".join(page.title or page.document_id for page in call.pages) or call.error or "nothing found"
        lines.append(f"{call.tool}: {call.query}\n  {found}\n")
    return "".join(lines)


def details_of(answer: Answer, title_of: Callable[[str], str], base_url: str) -> Details:
    """What there is to say of an answer; links to pages begin with `base_url`."""
    return Details(
        question=answer.question,
        is_found=answer.is_found,
        answer=answer.text,
        confidence=answer.confidence,
        promise=answer.promise,
        stop_reason=answer.stop_reason,
        searches=[call for turn in answer.episode.turns for call in _calls(turn, title_of)],
        citations=[_citation(each, base_url) for each in answer.quotes],
    )


def answer_text(details: Details) -> str:
    """The answer in words; where nothing was found, what was looked at."""
    if details.is_found and details.answer is not None:
        return details.answer
    pages = dict.fromkeys(page.title or page.document_id for call in details.searches for page in call.pages)
    queries = dict.fromkeys(call.query for call in details.searches)
    parts = [NOT_FOUND]
    if queries:
        parts.append(f"I looked for: {'; '.join(queries)}.")
    if pages:
        named = list(pages)[:_MAX_NAMED]
        others = f" and {len(pages) - len(named)} more" if len(pages) > len(named) else ""
        parts.append(f"I looked at: {'; '.join(named)}{others}.")
    return " ".join(parts)


def annotations_of(details: Details, text: str) -> list[Json]:
    """The citations of a message with this text."""
    return [
        Annotation(
            url_citation=UrlCitation(start_index=0, end_index=len(text), title=each.title, url=each.link),
            document_id=each.document_id,
            section=each.section,
            quote=each.quote,
        ).model_dump(mode="json")
        for each in (details.citations if details.is_found else ())
    ]


def _citation(quoted: Quoted, base_url: str) -> Citation:
    link = quoted.link
    # A document says where it comes from; what a browser would run instead of open is no address.
    if urlsplit(link).scheme not in ("http", "https"):
        link = f"{base_url}/v1/pages/{quote(quoted.document_id, safe='')}"
    return Citation(
        quote=quoted.text,
        document_id=quoted.document_id,
        title=quoted.title,
        section=quoted.section,
        link=link,
        span=quoted.span,
    )


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


class Model(Reply):
    """The agent, or the policy."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Reply):
    """The one agent."""

    object: Literal["list"]
    data: list[Model]


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
    replies = ChatCompletion, ChatCompletionChunk, FeedbackKept, PageText, Model, Models, Health, ErrorReply
    _, schemas = models_json_schema(
        [(model, "validation") for model in (ChatBody, Feedback, *replies)], ref_template=_PLACE
    )
    chat = _operation("Ask the agent; the last message is the question.", ChatCompletion, ChatBody)
    event: dict[str, Json] = {"anyOf": [_ref(ChatCompletionChunk), _ref(ErrorReply)]}
    chat["responses"]["200"]["content"]["text/event-stream"] = {"schema": event}  # type: ignore[index,call-overload]
    page = _operation("The text of a page.", PageText)
    model = _operation("The one agent of this server, by its name.", Model)
    page["parameters"] = model["parameters"] = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    no_key: dict[str, Json] = {"description": _REFUSALS["401"], "content": _json_of(ErrorReply)}
    figures: dict[str, Json] = {"200": _text_reply("Figures."), "401": no_key}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"seekling: {name}", "version": __version__, "description": _ABOUT},
        "paths": {
            "/v1/chat/completions": {"post": chat},
            "/v1/feedback": {"post": _operation("Say what is right or wrong in an answer.", FeedbackKept, Feedback)},
            "/v1/models": {"get": _operation("The one agent of this server.", Models)},
            "/v1/models/{id}": {"get": model},
            "/v1/pages/{id}": {"get": page},
            "/metrics": {"get": {"summary": "Figures for Prometheus.", "responses": figures}},
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
