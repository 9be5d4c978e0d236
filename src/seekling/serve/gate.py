"""The way into a server: who may ask, how often, how slowly; and what is written down about it.

It stands before every address of an app, so that no handler can forget it. Without keys only programs of this machine
are let in, and no page of a browser but our own: another one's requests say where they come from, and one whose name
was made to point at this machine says that name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seekling.errors import ConfigError
from seekling.serve.chat_form import error_reply, refusal
from seekling.serve.keys import Keys, RateLimit
from seekling.serve.requests import RefusedRequestError
from seekling.types import Json

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Of every reply that does not say otherwise."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """Whom to let in, and how."""

    keys: Keys = field(default_factory=Keys)
    rate: RateLimit = field(default_factory=lambda: RateLimit(0))
    body_s: float = 60.0
    """For the body of a request to arrive."""
    open_paths: frozenset[str] = frozenset({"/health"})
    """Need no key."""
    on_reply: Callable[[dict[str, Json]], None] = lambda row: None
    """Told of every request when it has been answered: what a log line says of it."""
    limits_keyless: bool = False
    """Without keys, all requests but those to `open_paths` share one rate; else they have none."""


class Gate:
    """ASGI middleware: checks a request before the app sees it.

    The name of its key is put into the request's state as `key`, what handlers add to `about` there is logged.
    """

    def __init__(self, app: ASGIApp, rules: GateRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with its refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["key"], state["about"] = "", {}
        request_id, started, status = uuid.uuid4().hex[:16], time.perf_counter(), 499

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                state["key"] = self._check(scope)
            except RefusedRequestError as error:
                state["about"]["error"] = error.code
                await refusal(error)(scope, receive, send_noting)
            except ConfigError as error:
                state["about"]["error"] = "keys_unreadable"
                await error_reply(503, str(error), "keys_unreadable")(scope, receive, send_noting)
            else:
                await self._app(scope, self._patient(receive), send_noting)
        finally:
            route, seconds = scope.get("route"), round(time.perf_counter() - started, 4)
            about = {"id": request_id, "key": state["key"], "method": scope["method"]}
            about |= {"route": route.path if route is not None else "other", "status": status, "seconds": seconds}
            self._rules.on_reply({**about, **state["about"]})

    def _check(self, scope: Scope) -> str:
        """The name of the request's key; empty where none is needed."""
        headers, keys, is_open = Headers(scope=scope), self._rules.keys, scope["path"] in self._rules.open_paths
        origin, host = headers.get("origin"), headers.get("host", "")
        try:
            is_own, is_here = (
                origin is None or urlsplit(origin).netloc == host,
                is_local(urlsplit(f"//{host}").hostname),
            )
        except ValueError:
            is_own = is_here = False
        if not is_own:
            raise RefusedRequestError(403, "pages of other sites may not ask this server", "cross_origin")
        name = keys.name_of(_key_in(headers)) if keys.are_needed and not is_open else ""
        if name is None:
            what = "the Authorization header does not hold a key of this server"
            raise RefusedRequestError(401, what, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        if not keys.are_needed and not is_here:
            raise RefusedRequestError(403, f"this server does not answer by the name {host!r:.80}", "unknown_host")
        if (name or (self._rules.limits_keyless and not is_open)) and (wait_s := self._rules.rate.wait_s(name)):
            whose = "with this key" if name else "without a key"
            what = f"too many requests {whose}; try again in {wait_s:.1f} s"
            raise RefusedRequestError(429, what, "rate_limit_exceeded", {"Retry-After": str(math.ceil(wait_s))})
        return name

    def _patient(self, receive: Receive) -> Receive:
        """Receive a body, but not for longer than the rules say."""
        is_whole, ends = False, asyncio.get_running_loop().time() + self._rules.body_s

        async def receive_in_time() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout_at(ends):
                    message = await receive()
            except TimeoutError:
                what = f"the request did not arrive within {self._rules.body_s:g} s"
                raise RefusedRequestError(408, what, "request_timeout", {"Connection": "close"}) from None
            is_whole = not message.get("more_body", False)
            return message

        return receive_in_time


def is_local(host: str | None) -> bool:
    """Whether only this machine can be meant by a name or address."""
    try:
        return ipaddress.ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return host is not None and host.lower() == "localhost"


def _key_in(headers: Headers) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    # Tinker's clients send only keys that begin like this.
    return headers.get("x-api-key", "").strip().removeprefix("tml-")
