"""The agent's server: OpenAI's chat completions with searches and citations, feedback, pages, MCP, and a web page.

A page's text is data on every way through here: it is sent as JSON and put into the web page as text, and ids only ever
look something up in the index. Nothing that a page says reaches a tool, a file or another key's answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from importlib import resources

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seekling.errors import SeeklingError
from seekling.serve.admission import Admission
from seekling.serve.agent_replies import (
    NOT_FOUND,
    Feedback,
    FeedbackKept,
    PageText,
    annotations_of,
    answer_text,
    details_of,
    turn_made,
    turn_text,
)
from seekling.serve.asking import Answer, Exchange
from seekling.serve.chat_form import (
    CLIENT_GONE,
    DONE,
    ERROR_REPLIES,
    ChatBody,
    EventStream,
    about_reply,
    check_text,
    chunk,
    completion,
    failed_event,
    models_list,
    read_chat,
    unless_gone,
    usage_chunk,
    usage_of,
)
from seekling.serve.desk import Asked, Desk
from seekling.serve.gate import Gate, GateRules
from seekling.serve.mcp_server import make_mcp_server
from seekling.serve.openapi import openapi_of
from seekling.serve.request_body import RefusedRequestError, read_fields, read_object
from seekling.types import UNKNOWN_ANSWER, Json

OPEN_PATHS = frozenset({"/", "/page.js", "/page.css", "/health", "/openapi.json"})
"""Need no key: the web page asks for one."""
_WAITING_BODIES = 32
"""So many of the largest requests may be held at once."""
_ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


def make_agent_app(desk: Desk, rules: GateRules) -> Starlette:
    """The server of one agent.

    Args:
        desk: where its questions go.
        rules: whom to let in.
    """
    app = _App(desk)
    mcp = make_mcp_server(desk)
    # Every request stands for itself (stateless), and the gate has checked where it comes from.
    mcp_routes = mcp.streamable_http_app(
        stateless_http=True, host="", max_request_body_size=desk.config.body_bytes
    ).routes

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mcp.session_manager.run():
            yield

    return Starlette(
        routes=[
            Route("/v1/chat/completions", app.completions, methods=["POST"]),
            Route("/v1/feedback", app.feedback, methods=["POST"]),
            Route("/v1/models", app.models),
            Route("/v1/pages/{id:path}", app.page),
            Route("/health", app.health),
            Route("/metrics", app.metrics),
            Route("/openapi.json", app.openapi),
            *(Route(path, app.asset) for path in _ASSETS),
            *mcp_routes,
        ],
        middleware=[Middleware(Gate, rules)],
        exception_handlers=ERROR_REPLIES,
        lifespan=lifespan,
    )


class _App:
    def __init__(self, desk: Desk) -> None:
        self._desk, self._created = desk, int(time.time())
        config = desk.config
        self._admission = Admission(body_bytes=config.body_bytes, waiting_bytes=_WAITING_BODIES * config.body_bytes)

    async def completions(self, request: Request) -> Response:
        desk = self._desk
        with contextlib.ExitStack() as held:
            body = read_chat(await self._body(request, held), desk.name)
            question, before = _conversation(body)
            asked = desk.let_in(question, before, request.state.key, request.state.about)
            held.enter_context(desk.room())
            about = {**about_reply(desk.name), "id": asked.id}
            base_url = str(request.base_url).rstrip("/")
            if body.stream:
                return EventStream(self._stream(asked, about, body, base_url), held.pop_all())
            answer = await unless_gone(request, desk.ask(asked))
            if answer is None:
                return Response(status_code=CLIENT_GONE)
            details = details_of(answer, desk.library.title_of, base_url)
            text = answer_text(details)
            message: dict[str, Json] = {"content": text, "annotations": annotations_of(details, text)}
            return JSONResponse(
                completion(about, message, "stop", _usage(answer), seekling=details.model_dump(mode="json"))
            )

    async def _stream(self, asked: Asked, about: dict[str, Json], body: ChatBody, base_url: str) -> AsyncIterator[str]:
        title_of = self._desk.library.title_of
        yield chunk(about, {"role": "assistant", "content": ""})
        try:
            async with contextlib.aclosing(self._desk.stream(asked)) as said:
                async for each in said:
                    if isinstance(each, Answer):
                        details = details_of(each, title_of, base_url)
                        text = answer_text(details)
                        yield chunk(
                            about,
                            {"content": text, "annotations": annotations_of(details, text)},
                            seekling=details.model_dump(mode="json"),
                        )
                        yield chunk(about, {}, finish="stop")
                        if body.wants_usage:
                            yield usage_chunk(about, _usage(each))
                    else:
                        made = turn_made(each, title_of)
                        delta: dict[str, Json] = {"reasoning_content": turn_text(made)}
                        yield chunk(about, delta, seekling={"turn": made.model_dump(mode="json")})
        except (SeeklingError, RefusedRequestError) as error:
            yield failed_event(str(error))
            return
        yield DONE

    async def feedback(self, request: Request) -> Response:
        with contextlib.ExitStack() as held:
            row = read_object(await self._body(request, held), status=400)
            check_text(row)
            feedback = read_fields(row, Feedback, status=400)
            await self._desk.take_feedback(feedback, request.state.key)
        return JSONResponse(FeedbackKept(id=feedback.id).model_dump())

    async def models(self, request: Request) -> Response:
        return models_list(self._desk.name, self._created)

    async def page(self, request: Request) -> Response:
        page_id = request.path_params["id"]
        library = await self._desk.documents()
        document = await asyncio.to_thread(library.find, page_id)
        if document is None:
            raise RefusedRequestError(404, f"there is no page {page_id!r:.80} here", "page_not_found")
        page = PageText(document_id=document.id, title=document.title, text=document.content)
        return JSONResponse(page.model_dump())

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self._desk.name})

    async def metrics(self, request: Request) -> Response:
        return Response(self._desk.metrics.text(), media_type=self._desk.metrics.media_type)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi_of(self._desk.name))

    async def asset(self, request: Request) -> Response:
        name, kind = _ASSETS[request.url.path]
        raw = (resources.files("seekling.serve") / "assets" / name).read_bytes()
        return Response(raw, media_type=kind, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def _body(self, request: Request, held: contextlib.ExitStack) -> bytes:
        admitted = await self._admission.read(request)
        held.callback(admitted.release)
        return admitted.body


def _conversation(body: ChatBody) -> tuple[str, list[Exchange]]:
    """The question, and what was asked and answered before it; what a system message says is not for this agent."""
    messages = [each.message() for each in body.messages if each.role in ("user", "assistant")]
    if not messages or messages[-1].role != "user":
        raise RefusedRequestError(400, "the last message must be the user's; it is the question")
    before = [
        (asked.content, UNKNOWN_ANSWER if said.content.startswith(NOT_FOUND) else said.content)
        for asked, said in itertools.pairwise(messages)
        if (asked.role, said.role) == ("user", "assistant")
    ]
    return messages[-1].content, before


def _usage(answer: Answer) -> dict[str, Json]:
    """Tokens that the policy read and wrote, each once: its cache is kept between turns, so none is read again."""
    num_written = sum(turn.num_action_tokens for turn in answer.episode.turns)
    return usage_of(answer.num_tokens - num_written, num_written)
