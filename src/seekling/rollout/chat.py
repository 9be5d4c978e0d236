"""Chat models behind OpenAI-compatible endpoints, for judges and for served policies.

What trying again cannot mend (a wrong key, address or parameter) is a `ConfigError`; what is left after the last try is
an `InfrastructureError`, which excludes an episode and never scores it 0.
"""

from __future__ import annotations

import threading
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seekling.client import BadReplyError, Client, Patience, RefusedError, key_from
from seekling.config import EndpointConfig
from seekling.errors import ConfigError, InfrastructureError
from seekling.types import Json, Message

_PERMANENT = {401, 403, 404}
_COUNTS = ("prompt_tokens", "completion_tokens")
_NEVER = 10**9
"""The breaker stays closed: a question that was not asked would have to be asked by hand."""


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
    def endpoint(self) -> EndpointConfig:
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
        first_pause_s: between the first two tries; doubles after every try, up to a minute.

    Raises:
        ConfigError: the address is no http(s) address, or the environment variable of the key is not set.
    """

    def __init__(self, endpoint: EndpointConfig, *, first_pause_s: float = 1.0) -> None:
        self.endpoint = endpoint
        self._fields = endpoint.fields
        self._client = Client(
            endpoint.url,
            Patience(endpoint.timeout_s, endpoint.request_tries, first_pause_s, 60.0, failures_to_open=_NEVER),
            {"Authorization": f"Bearer {key_from(endpoint.key_env)}"} if endpoint.key_env else {},
            requests_per_minute=endpoint.requests_per_minute,
        )
        self._limit_name = "max_tokens"
        self._has_answered = threading.Event()

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
        limit_name = self._limit_name
        body: dict[str, Json] = {
            "model": self.endpoint.model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "temperature": temperature,
            "top_p": top_p if top_p < 1 else None,
            "seed": seed % 2**31 if seed is not None else None,
            limit_name: max_tokens,
            **self._fields,
        }
        body = {name: value for name, value in body.items() if value is not None}
        try:
            reply = self._client.call("/chat/completions", _reply_of, body)
        except RefusedError as error:
            is_renamed = error.status == 400 and "max_completion_tokens" in error.reason
            if limit_name == "max_tokens" and is_renamed:
                self._limit_name = "max_completion_tokens"
                return self.ask(messages, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
            if error.status in _PERMANENT or not self._has_answered.is_set():
                raise ConfigError(
                    f"{self.endpoint.url} refuses to serve {self.endpoint.model!r} (HTTP {error.status}: "
                    f"{error.reason}); check the address, the model's name, the key and the decoding settings"
                ) from None
            raise  # It has answered before, so the key and the parameters are right: it refuses this request alone.
        self._has_answered.set()
        return reply


def _reply_of(reply: Json) -> ChatReply:
    row: Any = reply
    try:
        choice = row["choices"][0]
        content = choice["message"].get("content")
        usage = row.get("usage") or {}
        finish = choice.get("finish_reason")
        counts = [int(str(usage.get(name) or 0)) for name in _COUNTS]
        if not (content is None or isinstance(content, str)):
            raise TypeError(f"the content is a {type(content).__name__}")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadReplyError(f"not a chat completion ({type(error).__name__}: {error}): {row!s:.300}") from None
    if finish == "content_filter":
        raise InfrastructureError("the server's content filter withheld the reply")
    is_counted = all(name in usage for name in _COUNTS)
    return ChatReply(content or "", finish == "length", counts[0], counts[1], is_counted)
