"""A client of OpenAI-compatible chat endpoints, for judges and for served policies.

Temporary failures (no connection, timeouts, 408, 409, 425, 429, 5xx, a damaged body) are tried again with growing
pauses; what is left after the last try is an `InfrastructureError`, which excludes an episode and never scores it 0.
What trying again cannot mend (a wrong key, address or parameter) is a `ConfigError`. Standard library only.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import typing
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import cast

from seekling.errors import ConfigError, InfrastructureError
from seekling.types import Json, Message

_TEMPORARY = {408, 409, 425, 429}
_PERMANENT = {401, 403, 404}
_COUNTS = ("prompt_tokens", "completion_tokens")
_MAX_PAUSE_S = 60.0
_BODY_CHARS = 300
_MAX_REPLY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """Where a served model is, and how it is asked."""

    url: str
    """Base address, such as http://localhost:8000/v1; `/chat/completions` is added."""
    model: str
    key_env: str = ""
    """Name of the environment variable that holds the key; empty sends none. The key itself is kept nowhere."""
    timeout_s: float = 120.0
    num_tries: int = 6
    first_pause_s: float = 1.0
    """Doubles after every try; a server's Retry-After counts instead, up to a minute."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Further fields of every request; null takes one of ours out, such as {"seed": null}."""
    requests_per_minute: float = 0.0
    """Requests are spread out so that no minute has more of them; 0 is no limit."""


def read_fields(text: str, name: str) -> dict[str, Json]:
    """Further request fields as a person wrote them.

    Args:
        text: a JSON object; empty for none.
        name: of the option or setting, for the error.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        fields = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON ({error}); expected a JSON object of request fields") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{name} is {text!r}; expected a JSON object of request fields")
    return fields


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What the model said, and what it cost."""

    text: str
    is_cut: bool
    """The token limit ended it."""
    prompt_tokens: int
    completion_tokens: int
    """As the server counts them, hidden reasoning included; 0 where it does not say."""
    is_counted: bool = True
    """The server said how many tokens there were."""


class ChatModel(typing.Protocol):
    """Whatever answers messages: an endpoint, or a model in this process."""

    @property
    def endpoint(self) -> ChatEndpoint:
        """What it is: verdicts and replies are kept under its address, name and fields."""
        ...

    def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> ChatReply:
        """Get one reply; see `ChatClient.ask`."""
        ...


class ChatClient:
    """Asks one endpoint. Safe to share between threads.

    Args:
        endpoint: which one.

    Raises:
        ConfigError: the address is no http(s) address, or the environment variable of the key is not set.
    """

    def __init__(self, endpoint: ChatEndpoint) -> None:
        if not endpoint.url.startswith(("http://", "https://")):
            raise ConfigError(f"{endpoint.url!r} is not the address of an endpoint; expected http(s)://host/v1")
        self.endpoint = endpoint
        self._headers = {"Content-Type": "application/json"}
        if endpoint.key_env:
            key = os.environ.get(endpoint.key_env, "").strip()
            if not key:
                raise ConfigError(f"the environment variable {endpoint.key_env} is not set; it must hold the API key")
            self._headers["Authorization"] = f"Bearer {key}"
        self._limit_name = "max_tokens"
        self._has_answered = threading.Event()
        self._pace_lock, self._next_start_s = threading.Lock(), 0.0

    def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> ChatReply:
        """Get one reply.

        Args:
            messages: the conversation so far.
            max_tokens: of the reply, hidden reasoning included.
            temperature: 0 is greedy.
            top_p: sent when it is below 1.
            seed: sent when given.

        Raises:
            InfrastructureError: no reply after all tries, or this one request was refused.
            ConfigError: the endpoint refuses the key, the address, the model or the parameters.
        """
        body: dict[str, Json] = {
            "model": self.endpoint.model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "temperature": temperature,
        }
        body |= {"top_p": top_p} if top_p < 1 else {}
        body |= {"seed": seed % 2**31} if seed is not None else {}
        pause_s, failure = self.endpoint.first_pause_s, ""
        for number in range(self.endpoint.num_tries):
            if number:
                time.sleep(min(pause_s * random.uniform(1.0, 1.3), _MAX_PAUSE_S))  # never less than a server asks for
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            try:
                return self._attempt(body, max_tokens)
            except _TemporaryError as error:
                failure = str(error)
                pause_s = max(pause_s, error.pause_s)
        raise InfrastructureError(
            f"{self.endpoint.url} gave no reply in {self.endpoint.num_tries} tries; the last one: {failure}"
        )

    def _attempt(self, body: Mapping[str, Json], max_tokens: int) -> ChatReply:
        extra = dict(self.endpoint.extra)
        try:
            return self._post({**body, self._limit_name: max_tokens, **extra})
        except _RenamedLimitError:
            self._limit_name = "max_completion_tokens"
            return self._post({**body, self._limit_name: max_tokens, **extra})

    def _wait_for_turn(self) -> None:
        if self.endpoint.requests_per_minute <= 0:
            return
        with self._pace_lock:
            now = time.monotonic()
            start_s = max(now, self._next_start_s)
            self._next_start_s = start_s + 60.0 / self.endpoint.requests_per_minute
        time.sleep(start_s - now)

    def _post(self, body: Mapping[str, Json]) -> ChatReply:
        self._wait_for_turn()
        request = urllib.request.Request(
            self.endpoint.url.rstrip("/") + "/chat/completions",
            data=json.dumps({name: value for name, value in body.items() if value is not None}).encode("utf-8"),
            headers=self._headers,
            method="POST",
        )
        try:
            with _OPENER.open(request, timeout=self.endpoint.timeout_s) as response:
                raw = response.read(_MAX_REPLY_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                self._refuse(
                    error.code, error.read(4000).decode("utf-8", errors="replace"), error.headers.get("Retry-After")
                )
        except (OSError, HTTPException) as error:
            raise _TemporaryError(f"{type(error).__name__}: {error}") from None
        reply = _parse_reply(raw)
        self._has_answered.set()
        return reply

    def _refuse(self, code: int, text: str, retry_after: str | None) -> None:
        shown = " ".join(text.split())[:_BODY_CHARS]
        if code in _TEMPORARY or code >= 500:
            raise _TemporaryError(f"HTTP {code}: {shown}", pause_s=_retry_after(retry_after))
        if code == 400 and self._limit_name == "max_tokens" and "max_completion_tokens" in text:
            raise _RenamedLimitError
        if code in _PERMANENT or not self._has_answered.is_set():
            raise ConfigError(
                f"{self.endpoint.url} refuses to serve {self.endpoint.model!r} (HTTP {code}: {shown}); check the "
                "address, the model's name, the key and the decoding settings"
            )
        # It has answered before, so the key and the parameters are right: it is this request that it refuses.
        raise InfrastructureError(f"{self.endpoint.url} refused this request (HTTP {code}: {shown})")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to wherever it points, and turn the request into a GET."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class _TemporaryError(Exception):
    """Worth another try."""

    def __init__(self, message: str, *, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class _RenamedLimitError(Exception):
    """The server knows the token limit under its newer name only."""


def _parse_reply(raw: bytes) -> ChatReply:
    try:
        row = json.loads(raw)
        choice = row["choices"][0]
        content = choice["message"].get("content")
        usage = cast("dict[str, Json]", row.get("usage") or {})
        finish = choice.get("finish_reason")
        counts = [int(str(usage.get(name) or 0)) for name in _COUNTS]
        if not (content is None or isinstance(content, str)):
            raise TypeError(f"the content is a {type(content).__name__}")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        shown = raw[:_BODY_CHARS].decode("utf-8", errors="replace")
        raise _TemporaryError(f"not a chat completion ({type(error).__name__}: {error}): {shown}") from None
    if finish == "content_filter":
        raise InfrastructureError("the server's content filter withheld the reply")
    is_counted = all(name in usage for name in _COUNTS)
    return ChatReply(content or "", finish == "length", counts[0], counts[1], is_counted)


def _retry_after(value: str | None) -> float:
    """Seconds that the server asks for; 0 when it names none, or a date."""
    try:
        return min(max(float(value or 0), 0.0), _MAX_PAUSE_S)
    except ValueError:
        return 0.0
