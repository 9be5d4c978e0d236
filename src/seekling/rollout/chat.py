"""Chat models behind OpenAI-compatible endpoints, for judges and for served policies; replies can be kept on disk.

What trying again cannot mend (a wrong key, address or parameter) is a `ConfigError`; what is left after the last try is
an `InfrastructureError`, which excludes an episode and never scores it 0.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, Unpack

from seekling.client import BadReplyError, Client, Patience, RefusedError, key_from
from seekling.config import EndpointConfig
from seekling.errors import BudgetReachedError, ConfigError, InfrastructureError
from seekling.files import read_appended
from seekling.types import Json, Message

_PERMANENT = {401, 403, 404}
_COUNTS = ("prompt_tokens", "completion_tokens")


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


class AskSettings(TypedDict, total=False):
    """How a reply is made."""

    max_tokens: Required[int]
    """Of the reply, hidden reasoning included."""
    temperature: float
    """0, which it is where nothing is said, is greedy."""
    top_p: float
    seed: int | None


class ChatModel(Protocol):
    """Whatever answers messages: an endpoint, or a model in this process."""

    @property
    def endpoint(self) -> EndpointConfig:
        """What it is: verdicts and replies are kept under its address, name and fields."""

    def ask(self, messages: Sequence[Message], **settings: Unpack[AskSettings]) -> ChatReply:
        """Get one reply.

        Raises:
            InfrastructureError: no reply after all tries, or this one request was refused.
            ConfigError: the endpoint refuses the key, the address, the model or the parameters.
        """


class ChatClient:
    """Asks one endpoint. Safe to share between threads. The pause after a failed try doubles up to a minute.

    Raises:
        ConfigError: the address is no http(s) address, or the environment variable of the key is not set.
    """

    def __init__(self, endpoint: EndpointConfig, *, first_pause_s: float = 1.0) -> None:
        self.endpoint = endpoint
        self._client = Client(
            endpoint.url,
            Patience(endpoint.timeout_s, endpoint.request_tries, first_pause_s, 60.0),
            {"Authorization": f"Bearer {key_from(endpoint.key_env)}"} if endpoint.key_env else {},
            requests_per_minute=endpoint.requests_per_minute,
        )
        self._limit_name = "max_tokens"
        self._has_answered = threading.Event()

    def ask(self, messages: Sequence[Message], **settings: Unpack[AskSettings]) -> ChatReply:
        """Get one reply; see `ChatModel.ask`."""
        limit_name, top_p, seed = self._limit_name, settings.get("top_p", 1.0), settings.get("seed")
        body: dict[str, Json] = {
            "model": self.endpoint.model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "temperature": settings.get("temperature", 0.0),
            "top_p": top_p if top_p < 1 else None,
            "seed": seed % 2**31 if seed is not None else None,
            limit_name: settings["max_tokens"],
            **self.endpoint.fields,
        }
        body = {name: value for name, value in body.items() if value is not None}
        try:
            reply = self._client.call("/chat/completions", _reply_of, body)
        except RefusedError as error:
            is_renamed = error.status == 400 and "max_completion_tokens" in error.reason
            if limit_name == "max_tokens" and is_renamed:
                self._limit_name = "max_completion_tokens"
                return self.ask(messages, **settings)
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


@dataclass(frozen=True, slots=True)
class Price:
    """What an endpoint charges."""

    usd_per_million_prompt_tokens: float = 0.0
    usd_per_million_completion_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent in all; None is no limit."""

    max_usd: float | None = None
    max_tokens: int | None = None
    """Of prompts and replies together."""
    price: Price | None = None

    def __post_init__(self) -> None:
        if self.max_usd is not None and self.price is None:
            raise ConfigError("a budget in dollars needs the endpoint's prices; give --price-in and --price-out")


@dataclass(slots=True)
class Spent:
    """What requests cost, in tokens as the server counts them."""

    num_requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_counted: bool = True
    """The server said how many tokens each took."""

    @property
    def num_tokens(self) -> int:
        """Of prompts and replies."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, reply: ChatReply) -> None:
        """Count one more reply."""
        self.num_requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.is_counted = self.is_counted and reply.is_counted

    def cost_usd(self, price: Price | None) -> float | None:
        """Dollars; None without a price."""
        if price is None:
            return None
        prompt = self.prompt_tokens * price.usd_per_million_prompt_tokens
        return (prompt + self.completion_tokens * price.usd_per_million_completion_tokens) / 1e6


class JournalledChat:
    """A `ChatModel` whose replies are kept on disk as they arrive: what was paid for is never asked for again.

    A process that was killed in the middle of episodes starts them again, gets from here what was said before, and so
    goes on where it was. The journal has one JSON line per reply. What was spent is added up over all processes; a
    budget, or a Ctrl-C that `is_interrupted` tells of, ends the asking between two requests. Safe to share between
    threads.
    """

    def __init__(
        self,
        chat: ChatModel,
        path: Path,
        budget: Budget | None = None,
        *,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._chat, self._path, self._budget = chat, path, budget or Budget()
        self._is_interrupted = is_interrupted
        self._lock = threading.Lock()
        self._replies: dict[str, ChatReply] = {}
        self.spent = Spent()
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in read_appended(path):
            self._load(line)

    @property
    def endpoint(self) -> EndpointConfig:
        """Of the model behind."""
        return self._chat.endpoint

    def ask(self, messages: Sequence[Message], **settings: Unpack[AskSettings]) -> ChatReply:
        """The reply that the journal has for this very request, else the model's; see `ChatModel.ask`.

        Raises:
            BudgetReachedError: a new request would be made, and the budget is spent.
            ConfigError: there is a budget, and the server does not say how many tokens it used.
            KeyboardInterrupt: a new request would be made after a Ctrl-C.
        """
        endpoint = self.endpoint
        parts: list[Json] = [endpoint.url, endpoint.model, dict(endpoint.fields), settings["max_tokens"]]
        parts += [settings.get("temperature", 0.0), settings.get("top_p", 1.0), settings.get("seed")]
        parts += [[each.role, each.content] for each in messages]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            if key in self._replies:
                return self._replies[key]
            if self._is_interrupted():
                raise KeyboardInterrupt
            self._check_budget()
        reply = self._chat.ask(messages, **settings)
        with self._lock:
            self._keep(key, reply)
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps({"key": key, **asdict(reply)}) + "\n")
        if not reply.is_counted and (self._budget.max_usd is not None or self._budget.max_tokens is not None):
            raise ConfigError(
                f"{endpoint.url} does not say how many tokens a reply took, so a budget cannot be kept; "
                "leave the budget out, or ask a server that reports usage"
            )
        return reply

    def _check_budget(self) -> None:
        budget, cost_usd = self._budget, self.spent.cost_usd(self._budget.price)
        if budget.max_usd is not None and cost_usd is not None and cost_usd >= budget.max_usd:
            raise BudgetReachedError(f"{cost_usd:.4f} of {budget.max_usd} dollars are spent")
        if budget.max_tokens is not None and self.spent.num_tokens >= budget.max_tokens:
            raise BudgetReachedError(f"{self.spent.num_tokens} of {budget.max_tokens} tokens are spent")

    def _keep(self, key: str, reply: ChatReply) -> None:
        self._replies[key] = reply
        self.spent.add(reply)

    def _load(self, line: str) -> None:
        try:
            row = json.loads(line)
            key = row.pop("key")
            reply = ChatReply(**row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # a line that an interruption cut short: its request is made again
        if isinstance(key, str) and key not in self._replies:
            self._keep(key, reply)
