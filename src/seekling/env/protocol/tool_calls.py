"""The tools protocol: JSON calls in the model's own chat format, the answer after "Answer:".

    <tool_call>{"name": "search", "arguments": {"query_list": ["wind instruments"]}}</tool_call>

`search` takes several queries in one call, as tinker-cookbook's search tool does; further tools are the user's. The
answer is what follows "Answer:" in a message without a call. That mark must occur exactly once there.

With `native_tools` the chat template describes the tools and frames what comes back (a message of role tool), as
those that speak the `<tool_call>` dialect do (Hermes, Qwen 2.5 and 3). Without, we describe the tools in the system
message, and what comes back is a user's message with `<tool_response>` around it.

A turn stops at its first `</tool_call>`; `parse` reads all calls of a text, for engines that do not stop there. An
"Answer:" beside a call is part of the reasoning and does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from seekling.config import EnvConfig
from seekling.env.protocol.grammar import (
    Action,
    Block,
    Budget,
    Observation,
    Protocol,
    describe_call,
    nothing_found,
    read_answer,
    search_blocks,
    text_blocks,
)
from seekling.env.protocol.stopping import THOUGHT, StopRule, drop_opened_thought
from seekling.env.tools import Outcome, Tool
from seekling.types import Json

INSTRUCTIONS = """\
Answer the question by searching with tools. In each turn, think inside <think> and </think>, then write one call, \
with the arguments as JSON; its result comes back:
<tool_call>{"name": ..., "arguments": {...}}</tool_call>
Tools:
{tools}
When you know the answer, make no call; write Answer: and the answer in a few words, \
or unknown if the passages do not say."""

NATIVE_INSTRUCTIONS = """\
Answer the question by searching with tools. Think before each call. When you know the answer, make no call; \
write Answer: and the answer in a few words, or unknown if the passages do not say."""

ANSWER_MARK = "Answer:"

_PART = re.compile(rf"{THOUGHT}|<tool_call>(.*?)</tool_call>", re.DOTALL)


PASSAGE = r"Document \d+:\n"
"""Finds where a passage of an observation begins, before its title."""


class ToolsProtocol(Protocol):
    """JSON calls as the action."""

    name = "tools"
    stops = StopRule(("</tool_call>",), ("<tool_call>",))

    def __init__(self, config: EnvConfig, tools: Mapping[str, Tool], *, native_tools: bool = False) -> None:
        self.native_tools = native_tools
        self.observation_role = "tool" if native_tools else "user"
        instructions = NATIVE_INSTRUCTIONS if native_tools else INSTRUCTIONS
        super().__init__(config, tools, offered=("search",), instructions=instructions, describe=_compact)

    def parse(self, text: str) -> Action:
        """Read the calls outside thoughts, or else the answer."""
        own = drop_opened_thought(text)
        written = [match.group(1) for match in _PART.finditer(own) if match.group(1) is not None]
        rest = _PART.sub("", own)
        if "<tool_call>" in rest:
            return Action("invalid", error="a tool call is not closed")
        if not written and ANSWER_MARK not in rest:
            return nothing_found(text, self.stops, "it holds neither a call nor the answer mark")
        if not written:
            return _read_marked(rest)
        read = [_read_call(each) for each in written]
        calls = tuple(each for each in read if not isinstance(each, str))
        error = "; ".join(each for each in read if isinstance(each, str))
        return _call_action(calls, error) if calls else Action("invalid", error=error)

    def observation(self, outcomes: Sequence[Outcome], budget: Budget) -> Observation:
        """Passages per query as tinker writes them, errors as a JSON object."""
        blocks: list[Block] = []
        for outcome in outcomes:
            for search in outcome.searches:
                blocks.append(Block(f"Query: {search.query}", ""))
                blocks += search_blocks(search, lambda number, title: f'Document {number}:\n"{title}"\n')
            if outcome.error:
                blocks.append(Block('{"error": "', json.dumps(outcome.error, ensure_ascii=False)[1:-1], '"}\n'))
            else:
                blocks += text_blocks(outcome)
        if self.native_tools:
            return budget.fit("", blocks, "")
        return budget.fit("<tool_response>\n", blocks, "\n</tool_response>")

    def complaint(self, error: str) -> str:
        """Says what is wrong and what is expected."""
        return (
            f"Your last turn was not valid: {error}. "
            "Make one call of a tool, as JSON in its tags, or write the answer after its mark, once."
        )

    def search_action(self, *queries: str) -> Action:
        """One call with all queries."""
        return _call_action((("search", {"query_list": [query.strip() for query in queries]}),))

    def _write(self, action: Action) -> str:
        if action.kind == "answer":
            return f"{ANSWER_MARK} {action.payload}"
        return "\n".join(f"<tool_call>{describe_call(*call)}</tool_call>" for call in action.calls)


def _call_action(calls: tuple[tuple[str, Mapping[str, Json]], ...], error: str = "") -> Action:
    queries: list[str] = []
    for name, arguments in calls:
        query_list = arguments.get("query_list")
        if name != "search" or not isinstance(query_list, list):
            payload = "\n".join(describe_call(*call) for call in calls)
            is_search = all(each == "search" for each, _ in calls)
            return Action("search" if is_search else "call", payload, calls, error)
        queries += [str(query) for query in query_list]
    return Action("search", "\n".join(queries), calls, error)


def _read_call(text: str) -> tuple[str, Mapping[str, Json]] | str:
    """The call, or what is wrong with it."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"the call is not JSON ({error})"
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return 'the call is not a JSON object with "name" and "arguments"'
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return 'the call has no JSON object under "arguments"'
    return call["name"], arguments


def _read_marked(text: str) -> Action:
    if text.count(ANSWER_MARK) > 1:
        return Action("invalid", error="the answer mark must occur exactly once")
    return read_answer(text.partition(ANSWER_MARK)[2])


def _compact(tool: Tool) -> str:
    """A tool's JSON schema without the frame that templates want, to save tokens."""
    schema = {"name": tool.name, "description": tool.description, "parameters": tool.parameters.get("properties", {})}
    return json.dumps(schema, ensure_ascii=False)
