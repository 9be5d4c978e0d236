"""What a protocol is: a grammar for actions and the text that answers them.

A protocol reads and writes text. It runs nothing, knows no token ids, and keeps no state: one object serves all
episodes. What a model wrote wrongly is an `Action` of kind invalid that says why, never an exception.

Thoughts are no actions, whether they are closed or not; `stopping.py` says where they begin and end. What goes back to
the model fits into a budget of tokens: documents are cut evenly, their frames stay whole. (Cutting the finished text
from the right would lose the closing tag and starve the last documents, as Search-R1 does.)
"""

from __future__ import annotations

import abc
import bisect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from seekling.config import EnvConfig
from seekling.env.protocol.stopping import StopRule
from seekling.env.tools import LIBRARY_TOOLS, Outcome, SearchResult, Tool
from seekling.errors import DataError
from seekling.types import ActionKind, Json, Message, Question, Role

CUT_MARK = " ..."

_WORD_END = re.compile(r"\S(?=\s|$)")
_WORD_START = re.compile(r"(?<!\S)\S")
NO_RESULTS = "No results for this query."


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an observation; only its body may be cut."""

    head: str
    body: str
    tail: str = "\n"
    keep: Literal["start", "end"] = "start"
    """Which side of the body survives a cut: a traceback says most in its last line."""

    def text(self) -> str:
        """The piece in full."""
        return self.head + self.body + self.tail


@dataclass(frozen=True, slots=True)
class Observation:
    """Text that goes back to the model."""

    text: str
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens one observation may have, and how they are counted."""

    tokens: int
    count_tokens: Callable[[str], int]

    def fit(self, prefix: str, blocks: Sequence[Block], suffix: str) -> Observation:
        """Put the blocks between prefix and suffix, which are never lost, cutting bodies where the budget asks for it.

        Short bodies stay whole and the long ones share what is left evenly; a cut falls between words and is marked.
        Where not even the frames fit, the last blocks go; the first one stays, with its head cut. The text is at most
        `tokens` long unless prefix, suffix and cut marks alone are longer.
        """
        text = _assemble(prefix, blocks, suffix)
        excess = self.count_tokens(text) - self.tokens
        if excess <= 0:
            return Observation(text)
        sizes = [self.count_tokens(block.body) for block in blocks]
        available = sum(sizes) - excess
        while available > 0:
            level = _even_level(sizes, available)
            pairs = zip(blocks, sizes, strict=True)
            text = _assemble(
                prefix, [each if size <= level else self._cut(each, level) for each, size in pairs], suffix
            )
            excess = self.count_tokens(text) - self.tokens
            if excess <= 0:
                return Observation(text, is_truncated=True)
            available -= excess  # marks and merges across cuts were not in the sum; give them room and try again
        if len(blocks) > 1:
            return replace(self.fit(prefix, blocks[:-1], suffix), is_truncated=True)
        frame = self.count_tokens(prefix + CUT_MARK + suffix)
        heads = [self._cut(Block("", block.head.strip(), ""), self.tokens - frame) for block in blocks]
        return Observation(_assemble(prefix, heads, suffix), is_truncated=True)

    def _cut(self, block: Block, tokens: int) -> Block:
        """The most words of the body that fit, marked; characters of it when not even one word does."""
        body, mark = block.body.strip(), CUT_MARK.strip()
        if block.keep == "start":
            ends = [match.end() for match in _WORD_END.finditer(body)]
        else:
            ends = [len(body) - match.start() for match in _WORD_START.finditer(body)][::-1]

        def kept(length: int) -> str:
            return body[:length] if block.keep == "start" else body[len(body) - length :]

        def longest(lengths: Sequence[int]) -> int:
            num_fit = bisect.bisect_right(lengths, tokens, key=lambda length: self.count_tokens(kept(length)))
            return lengths[num_fit - 1] if num_fit else 0

        length = longest(ends) or longest(range(1, ends[0] + 1) if ends else ())
        if not length:
            return replace(block, body=mark)
        return replace(block, body=kept(length) + CUT_MARK if block.keep == "start" else f"{mark} {kept(length)}")


def _assemble(prefix: str, blocks: Sequence[Block], suffix: str) -> str:
    return prefix + "".join(block.text() for block in blocks).strip() + suffix


def _even_level(sizes: Sequence[int], available: int) -> int:
    """The level L for which the sizes, each cut at L, sum to `available` or just below."""
    left = available
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


@dataclass(frozen=True, slots=True)
class Action:
    """What one turn's text asks for."""

    kind: ActionKind
    payload: str = ""
    """The query, the program, the answer, or a call as it was written; empty when invalid."""
    calls: tuple[tuple[str, Mapping[str, Json]], ...] = ()
    """Tools to call, with arguments as the model wrote them, in order."""
    error: str = ""
    """Why it is invalid, or which part of it was unreadable; shown to the model."""


class Protocol(abc.ABC):
    """A grammar for actions. Three implementations: tags, code, tools; a test suite holds them to this contract.

    It offers the library's tools that are `offered`, and the user's. `instructions`, or the config's `system_prompt`
    instead, hold `{tools}` where `describe` says one line of each tool.
    """

    name: str
    stops: StopRule
    """Where a turn ends; every sampler follows it."""
    continues_turn = False
    """True: the observation goes on inside the assistant's turn. False: it is a message of `observation_role`."""
    observation_role: Role = "user"
    native_tools = False
    """The chat template describes the tools to the model: give it `tool_schemas()`."""

    def __init__(
        self,
        config: EnvConfig,
        tools: Mapping[str, Tool],
        *,
        offered: Sequence[str],
        instructions: str,
        describe: Callable[[Tool], str],
    ) -> None:
        self.tool_names = (*offered, *(name for name in tools if name not in LIBRARY_TOOLS))
        """The tools this protocol offers; others may exist, but cannot be called."""
        self._tools = {name: tools[name] for name in self.tool_names}
        lines = "\n".join(describe(tool) for tool in self._tools.values())
        self._instructions = (config.system_prompt or instructions).replace("{tools}", lines)

    def prompt(self, question: Question) -> list[Message]:
        """The first messages: instructions first, the question last, so that prompts share a long prefix."""
        return [Message("system", self._instructions), Message("user", question.question.strip())]

    def tool_schemas(self) -> list[dict[str, Json]]:
        """The offered tools as chat templates expect them."""
        return [tool.to_json() for tool in self._tools.values()]

    @abc.abstractmethod
    def parse(self, text: str) -> Action:
        """Read the text of one turn. Never raises."""

    @abc.abstractmethod
    def observation(self, outcomes: Sequence[Outcome], budget: Budget) -> Observation:
        """Tell the model what came of its action, within the budget."""

    @abc.abstractmethod
    def complaint(self, error: str) -> str:
        """Tell the model that its action was invalid, and why. Holds no mark that could be taken for an action."""

    @abc.abstractmethod
    def search_action(self, *queries: str) -> Action:
        """The action that searches for the queries; the tags protocol takes exactly one."""

    def answer_action(self, answer: str) -> Action:
        """The action that answers."""
        return Action("answer", answer.strip())

    def act(self, action: Action, *, think: str = "") -> str:
        """Write an action in this grammar, after an optional thought; `parse` gives the action back.

        Raises:
            DataError: the grammar cannot express it, for instance a query that holds a closing tag.
        """
        text = f"<think> {think.strip()} </think>\n" * bool(think.strip()) + self._write(action)
        read, end = self.parse(text), self.stops.read(text).end
        if read != action:
            raise DataError(
                f"{action} cannot be written in the {self.name} protocol: it would be read as {read}; change its text"
            )
        if end not in (None, len(text)):
            raise DataError(
                f"the turn {text!r} would stop early, after {text[:end]!r}; keep what ends a turn out of payloads"
            )
        return text

    @abc.abstractmethod
    def _write(self, action: Action) -> str:
        """The action as a model would write it."""


def read_answer(text: str) -> Action:
    """The answer that stands in a text of its own."""
    return Action("answer", text.strip()) if text.strip() else Action("invalid", error="the answer is empty")


def nothing_found(text: str, stops: StopRule, error: str) -> Action:
    """The invalid action of a turn that holds none; the error is not told where an open thought hides what follows."""
    if stops.read(text).is_thinking:
        error = "the thought is not closed, and what stands inside a thought does not count"
    return Action("invalid", error=error)


def describe_call(name: str, arguments: Mapping[str, Json]) -> str:
    """A call as episodes keep it."""
    return json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)


def text_blocks(outcome: Outcome) -> list[Block]:
    """What a tool returned, its error, and notes about it, each on lines of their own."""
    blocks = [Block("", outcome.text)] if outcome.text else []
    if outcome.error:
        blocks.append(Block("", outcome.error, keep="end"))
    return blocks + [Block(note, "") for note in outcome.notes]


def search_blocks(search: SearchResult, head: Callable[[int, str], str]) -> list[Block]:
    """One block per passage; `head` makes the text before it of its number, from 1, and its page's title."""
    if not search.hits:
        return [Block(NO_RESULTS, "")]
    return [Block(head(number, hit.passage.title), hit.passage.text) for number, hit in enumerate(search.hits, start=1)]
