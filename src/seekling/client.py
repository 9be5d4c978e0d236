"""The HTTP client for all servers that a run asks: search servers, encoders, judges, teachers and served policies.

Temporary failures (no connection, a reset, a timeout, 408, 409, 425, 429, 5xx, a reply that is no reply) are tried
again after growing, jittered pauses; a server's Retry-After counts. Whatever is left ends as a `ServerError`, which
ends an episode as an infrastructure failure. No result is ever made up.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import urllib3

from seekling.errors import ConfigError, ServerError
from seekling.types import Json

T = TypeVar("T")

_TEMPORARY = {408, 409, 425, 429}
_SHOWN_CHARS = 300
_MAX_REPLY_BYTES = 256 * 1024**2
_MAX_CONNECTIONS = 64
_JITTER = random.Random()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for. One that is away for half a minute is waited for, whatever chance says."""

    timeout_s: float = 30.0
    """Of one try, from connecting to the last byte of the reply."""
    num_tries: int = 9
    first_pause_s: float = 0.5
    """Doubles after every try; each pause is cut by chance to between half and all of it."""
    max_pause_s: float = 15.0
    """Of one pause, a server's Retry-After included."""


class RefusedError(ServerError):
    """The server says that this request is wrong (4xx, `reason` is its text): it would refuse the same again."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class BadReplyError(Exception):
    """Worth another try, after a pause. Of a parser: the reply is not what the server is known to answer."""

    def __init__(self, message: str, *, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class Client:
    """One server. Safe to share between threads; connections are kept and shared.

    Args:
        url: its http(s) address, without the paths of single calls; else a ConfigError.
        patience: how long it is waited for.
        headers: sent with every request, such as a key.
        requests_per_minute: requests are spread out so that no minute has more of them; 0 is no limit.
    """

    def __init__(
        self,
        url: str,
        patience: Patience,
        headers: Mapping[str, str] | None = None,
        *,
        requests_per_minute: float = 0.0,
    ) -> None:
        try:
            address = urllib3.util.parse_url(url)
        except urllib3.exceptions.LocationParseError:
            address = urllib3.util.Url()
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigError(f"{url!r} is not the address of a server; expected http(s)://host:port")
        self.url = url.rstrip("/")
        self._patience = patience
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._pool = urllib3.PoolManager(maxsize=_MAX_CONNECTIONS, retries=False)
        self._interval_s = 60.0 / requests_per_minute if requests_per_minute > 0 else 0.0
        self._pace_lock, self._next_start_s = threading.Lock(), 0.0

    def call(self, path: str, parse: Callable[[Json], T], body: Mapping[str, Json] | None = None) -> T:
        """Send a request until there is a reply that the parser takes, and return what it made of it.

        The parser raises `BadReplyError` otherwise. A body is sent as JSON by POST; None sends a GET.

        Raises:
            RefusedError: the server refused this request.
            ServerError: no reply after all tries.
        """
        patience, pause_s, failure = self._patience, self._patience.first_pause_s, ""
        for number in range(patience.num_tries):
            try:
                return parse(self._send(path, body))
            except BadReplyError as error:
                failure, wait_s = str(error), max(pause_s * _JITTER.uniform(0.5, 1.0), error.pause_s)
            if number + 1 < patience.num_tries:
                time.sleep(min(wait_s, patience.max_pause_s))
                pause_s *= 2
        raise ServerError(f"{self.url}{path} gave no answer in {patience.num_tries} tries; the last one: {failure}")

    def _wait_for_turn(self) -> None:
        with self._pace_lock:
            now = time.monotonic()
            start_s = max(now, self._next_start_s)
            self._next_start_s = start_s + self._interval_s
        if start_s > now:
            time.sleep(start_s - now)

    def _send(self, path: str, body: Mapping[str, Json] | None) -> Json:
        self._wait_for_turn()
        deadline = time.monotonic() + self._patience.timeout_s
        try:
            response = self._pool.request(
                "GET" if body is None else "POST",
                self.url + path,
                # Half a surrogate pair, which a model can write, passes as an escape only.
                body=None if body is None else json.dumps(body).encode("ascii"),
                headers=self._headers,
                timeout=urllib3.Timeout(total=self._patience.timeout_s),
                redirect=False,
                preload_content=False,
            )
            raw = _read(response, deadline)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise BadReplyError(f"{type(error).__name__}: {error}") from None
        if response.status != 200:
            shown = " ".join(raw[:4000].decode("utf-8", "replace").split())[:_SHOWN_CHARS]
            what = f"HTTP {response.status}: {shown}"
            if response.status in _TEMPORARY or response.status >= 500:
                raise BadReplyError(what, pause_s=_seconds(response.headers.get("Retry-After")))
            raise RefusedError(f"{self.url}{path} refused the request ({what})", response.status, shown)
        try:
            reply: Json = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise BadReplyError(f"the reply is not JSON ({error}): {raw[:_SHOWN_CHARS]!r}") from None
        return reply


def key_from(variable: str) -> str:
    """The key that an environment variable holds; a ConfigError where it holds none."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"the environment variable {variable} is not set; it must hold the API key")
    return key


def _read(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """The body, unless it does not end: a timeout of the socket alone never strikes while bytes trickle in."""
    parts: list[bytes] = []
    num_bytes = 0
    while part := response.read1(64 * 1024):
        parts.append(part)
        num_bytes += len(part)
        if num_bytes > _MAX_REPLY_BYTES or time.monotonic() > deadline:
            response.close()
            raise BadReplyError(f"the reply did not end in time, or in {_MAX_REPLY_BYTES} bytes")
    response.release_conn()
    return b"".join(parts)


def _seconds(value: str | None) -> float:
    """Seconds that a server asks for; 0 when it names none, or a date."""
    try:
        return max(float(value or 0), 0.0)
    except ValueError:
        return 0.0
