"""Replies of a served model, kept on disk as they arrive: what was paid for is never asked for again.

A process that was killed in the middle of episodes starts them again and gets from here what was said before, so it
goes on where it was. What was spent is added up over all processes, and a budget ends the asking between two requests.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from seekling.config import EndpointConfig
from seekling.errors import BudgetReachedError, ConfigError
from seekling.files import read_appended
from seekling.rollout.chat import ChatModel, ChatReply
from seekling.rollout.chat_roller import Price
from seekling.types import Json, Message


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


@dataclass(frozen=True, slots=True)
class Spent:
    """What all replies of a journal cost."""

    num_requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Of prompts and replies."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, reply: ChatReply) -> Spent:
        """With one more reply."""
        return Spent(
            self.num_requests + 1,
            self.prompt_tokens + reply.prompt_tokens,
            self.completion_tokens + reply.completion_tokens,
        )

    def cost_usd(self, price: Price | None) -> float | None:
        """Dollars; None without a price."""
        return None if price is None else price.cost_usd(self.prompt_tokens, self.completion_tokens)


class JournalledChat:
    """A `ChatModel` whose replies are kept. Safe to share between threads.

    Args:
        chat: who is asked when the journal has no reply.
        path: the journal, one JSON line per reply; made when it is missing.
        budget: ends the asking.
        is_interrupted: so does a Ctrl-C, once this says that there was one.
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

    def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> ChatReply:
        """The reply that the journal has for this very request, else the model's; see `ChatClient.ask`.

        Raises:
            BudgetReachedError: a new request would be made, and the budget is spent.
            ConfigError: there is a budget, and the server does not say how many tokens it used.
            KeyboardInterrupt: a new request would be made after a Ctrl-C.
        """
        endpoint = self.endpoint
        parts: list[Json] = [endpoint.url, endpoint.model, dict(endpoint.fields), max_tokens, temperature, top_p, seed]
        parts += [[each.role, each.content] for each in messages]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            if key in self._replies:
                return self._replies[key]
            if self._is_interrupted():
                raise KeyboardInterrupt
            self._check_budget()
        reply = self._chat.ask(messages, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
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
        self.spent = self.spent.plus(reply)

    def _load(self, line: str) -> None:
        try:
            row = json.loads(line)
            key = row.pop("key")
            reply = ChatReply(**row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # a line that an interruption cut short: its request is made again
        if isinstance(key, str) and key not in self._replies:
            self._keep(key, reply)
