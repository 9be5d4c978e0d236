"""What a client of our servers may send: bodies that there is room for, JSON objects of known fields.

A wrong one is told what is wrong with it. Room is what requests may take of a server's memory, each and together, from
their first byte to their answer.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import pydantic
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seekling.types import Json

CLIENT_GONE = 499
BROKEN = {"Connection": "close"}
"""The header of a 500: uvicorn closes the connection after it, and a client that kept it would lose a request."""
_REQUEST_BYTES = 16 * 1024
"""What a request takes besides its body, about: its connection, its task, what was read from it."""
Body = TypeVar("Body", bound=pydantic.BaseModel)


class RefusedRequestError(Exception):
    """A request that is not answered as it was asked: a reply of this status, whose text says why to whoever wrote it.

    The code is a word for programs; only OpenAI's clients read it.
    """

    def __init__(
        self, status: int, message: str, code: str = "invalid_value", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


def busy(what: str) -> RefusedRequestError:
    """The refusal of a request when too much is waiting: come back after a second."""
    return RefusedRequestError(503, f"{what} are waiting already; try again", "overloaded", {"Retry-After": "1"})


class Room:
    """Memory for the requests of a server; one that comes alone is always read, up to `body_bytes`.

    All that are not yet answered may take `waiting_bytes`, their bodies and what else they need.
    """

    def __init__(self, *, body_bytes: int, waiting_bytes: int) -> None:
        self._body_bytes, self._waiting_bytes = body_bytes, waiting_bytes
        self._num_bytes, self._lock = 0, threading.Lock()

    async def read(self, request: Request, held: contextlib.ExitStack) -> bytes:
        """Read a body. One that there is no room for is read to its end, and not kept: an answer before that is lost.

        `held` gives the room back when it is closed, in any thread.

        Raises:
            RefusedRequestError: it is larger than one may be (413), or together with the others too large (503).
            ClientDisconnect: the client went away.
        """
        mine = 0

        def take(num_bytes: int) -> bool:
            nonlocal mine
            with self._lock:
                fits = self._num_bytes == mine or self._num_bytes + num_bytes <= self._waiting_bytes
                self._num_bytes += num_bytes * fits
                mine += num_bytes * fits
                return fits

        def release() -> None:
            nonlocal mine
            with self._lock:
                self._num_bytes, mine = self._num_bytes - mine, 0

        held.callback(release)
        parts: list[bytes] = []
        num_bytes, has_room = 0, take(_REQUEST_BYTES)
        async for part in request.stream():
            num_bytes += len(part)
            has_room = has_room and num_bytes <= self._body_bytes and take(len(part))
            if has_room:
                parts.append(part)
            else:
                parts.clear()
                release()
        if num_bytes > self._body_bytes:
            what = f"the request has {num_bytes} bytes; this server takes {self._body_bytes}: send fewer"
            raise RefusedRequestError(413, what, "request_too_large")
        if not has_room:
            raise busy(f"requests of {self._num_bytes} bytes")
        return b"".join(parts)


class Admitted:
    """An address whose requests have bodies: they are read as there is room, which is held until the reply is sent.

    `answer` is given a request, its body, and what to close after the reply; it may hold more there, or take it over.
    """

    def __init__(
        self, room: Room, answer: Callable[[Request, bytes, contextlib.ExitStack], Awaitable[Response]]
    ) -> None:
        self._room, self._answer = room, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        with contextlib.ExitStack() as held:
            try:
                response = await self._answer(request, await self._room.read(request, held), held)
            except ClientDisconnect:
                response = Response(status_code=CLIENT_GONE)
            await response(scope, receive, send)


def read_object(raw: bytes, *, status: int) -> dict[str, Json]:
    """Read a JSON object; JSON of another kind raises a RefusedRequestError of this status."""
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RefusedRequestError(400, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    if not isinstance(row, dict):
        raise RefusedRequestError(status, f"the body must be a JSON object, not {_shown(row)}", "invalid_json")
    return row


def read_fields(row: Mapping[str, Json], kind: type[Body], *, status: int) -> Body:
    """Read the fields of an object; a missing or wrong one raises a RefusedRequestError of this status."""
    try:
        return kind.model_validate(row)
    except pydantic.ValidationError as error:
        problems = []
        for each in error.errors()[:5]:
            where = ".".join(map(str, each["loc"]))
            what = each["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {what}, got {_shown(each['input'])}" if where else what)
        raise RefusedRequestError(status, "; ".join(problems)) from None


def read_body(raw: bytes, kind: type[Body], *, status: int) -> Body:
    """Both of it."""
    return read_fields(read_object(raw, status=status), kind, status=status)


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
