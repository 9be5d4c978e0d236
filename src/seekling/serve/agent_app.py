"""The agent's server: OpenAI's chat completions with searches and citations, feedback, pages, MCP, and a web page.

A page's text is data on every way through here: it is sent as JSON and put into the web page as text, and ids only ever
look something up in the index. Nothing that a page says reaches a tool, a file or another key's answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from importlib import resources

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seekling.errors import SeeklingError
from seekling.serve import agent_replies as replies
from seekling.serve import chat_form
from seekling.serve.asking import Answer, Exchange
from seekling.serve.desk import Asked, Desk
from seekling.serve.gate import Gate, GateRules
from seekling.serve.mcp_server import make_mcp_server
from seekling.serve.requests import CLIENT_GONE, Admitted, RefusedRequestError, Room
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
    """The server of the agent behind a desk, which lets in whom the rules say."""
    app, body_bytes = _App(desk), desk.config.body_bytes
    room = Room(body_bytes=body_bytes, waiting_bytes=_WAITING_BODIES * body_bytes)
    mcp = make_mcp_server(desk)
    # Every request stands for itself (stateless), and the gate has checked where it comes from.
    mcp_routes = mcp.streamable_http_app(stateless_http=True, host="", max_request_body_size=body_bytes).routes

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mcp.session_manager.run():
            yield

    return Starlette(
        routes=[
            *chat_form.openai_routes(desk.name, room, app.complete),
            Route("/v1/feedback", Admitted(room, app.feedback), methods=["POST"]),
            Route("/v1/pages/{id:path}", app.page),
            Route("/metrics", app.metrics),
            Route("/openapi.json", app.openapi),
            *(Route(path, app.asset) for path in _ASSETS),
            *mcp_routes,
        ],
        middleware=[Middleware(Gate, rules)],
        exception_handlers=chat_form.ERROR_REPLIES,
        lifespan=lifespan,
    )


class _App:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def complete(self, request: Request, raw: bytes, held: contextlib.ExitStack) -> Response:
        desk = self._desk
        body = chat_form.read_chat(raw, desk.name)
        asked = desk.let_in(*_conversation(body), request.state.key, request.state.about)
        held.enter_context(desk.room())
        about = {**chat_form.about_reply(desk.name), "id": asked.id}
        base_url = str(request.base_url).rstrip("/")
        if body.stream:
            return chat_form.events(self._stream(asked, about, body.wants_usage, base_url))
        answer = await chat_form.unless_gone(request, desk.ask(asked))
        if answer is None:
            return Response(status_code=CLIENT_GONE)
        message, details = self._said(answer, base_url)
        return chat_form.completion(about, message, "stop", _usage(answer), seekling=details)

    def _said(self, answer: Answer, base_url: str) -> tuple[dict[str, Json], Json]:
        """Content and annotations of a message, and what else is known."""
        details = replies.details_of(answer, self._desk.library.title_of, base_url)
        text = replies.answer_text(details)
        return {"content": text, "annotations": replies.annotations_of(details, text)}, details.model_dump(mode="json")

    async def _stream(
        self, asked: Asked, about: dict[str, Json], wants_usage: bool, base_url: str
    ) -> AsyncGenerator[str]:
        yield chat_form.chunk(about, {"role": "assistant", "content": ""})
        try:
            async with contextlib.aclosing(self._desk.stream(asked)) as said:
                async for each in said:
                    if isinstance(each, Answer):
                        message, details = self._said(each, base_url)
                        yield chat_form.chunk(about, message, seekling=details)
                        yield chat_form.chunk(about, {}, finish="stop")
                        if wants_usage:
                            yield chat_form.usage_chunk(about, _usage(each))
                    else:
                        made = replies.turn_made(each, self._desk.library.title_of)
                        delta: dict[str, Json] = {"reasoning_content": replies.turn_text(made)}
                        yield chat_form.chunk(about, delta, seekling={"turn": made.model_dump(mode="json")})
        except RefusedRequestError as error:
            yield chat_form.failed_event(str(error), error.code)
            return
        except SeeklingError as error:
            yield chat_form.failed_event(str(error))
            return
        yield chat_form.DONE

    async def feedback(self, request: Request, raw: bytes, held: contextlib.ExitStack) -> Response:
        feedback = chat_form.read_openai(raw, replies.Feedback)
        await self._desk.take_feedback(feedback, request.state.key)
        return JSONResponse(replies.FeedbackKept(id=feedback.id).model_dump())

    async def page(self, request: Request) -> Response:
        page_id = request.path_params["id"]
        library = await self._desk.documents()
        document = await asyncio.to_thread(library.find, page_id)
        if document is None:
            raise RefusedRequestError(404, f"there is no page {page_id!r:.80} here", "page_not_found")
        page = replies.PageText(document_id=document.id, title=document.title, text=document.content)
        return JSONResponse(page.model_dump())

    async def metrics(self, request: Request) -> Response:
        return self._desk.metrics.reply()

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(replies.openapi_of(self._desk.name))

    async def asset(self, request: Request) -> Response:
        name, kind = _ASSETS[request.url.path]
        raw = (resources.files("seekling.serve") / "assets" / name).read_bytes()
        return Response(raw, media_type=kind, headers={"Content-Security-Policy": _PAGE_POLICY})


def _conversation(body: chat_form.ChatBody) -> tuple[str, list[Exchange]]:
    """The question, and what was asked and answered before it; what a system message says is not for this agent."""
    messages = [each.message() for each in body.messages if each.role not in ("system", "developer")]
    if not messages or messages[-1].role != "user":
        raise RefusedRequestError(400, "the last message must be the user's; it is the question")
    before = [
        (asked.content, UNKNOWN_ANSWER if said.content.startswith(replies.NOT_FOUND) else said.content)
        for asked, said in itertools.pairwise(messages)
        if (asked.role, said.role) == ("user", "assistant")
    ]
    return messages[-1].content, before


def _usage(answer: Answer) -> dict[str, Json]:
    """Tokens that the policy read and wrote, each once: its cache is kept between turns, so none is read again."""
    num_written = sum(turn.num_action_tokens for turn in answer.episode.turns)
    return chat_form.usage_of(answer.num_tokens - num_written, num_written)
