"""The tags protocol: `<search> query </search>`, `<answer> answer </answer>`, as Search-R1 has them.

The wire format is Search-R1's byte for byte, so its checkpoints and data work here: the tags, the passages
(`Doc 1(Title: "Title") text`, the title in quotation marks as in the first line of its corpus rows), and the white
space around `<information>`. The whole episode is one assistant turn. Different on purpose: turns stop at a closing
tag, thoughts are not read, the budget never cuts `</information>` off, and neither the prompt nor what we tell the
model holds a pair of answer tags that a scorer might take for an answer.

A user's own tool is a tag of its own: `<name> text </name>` for a tool with one text parameter, otherwise a JSON object
between the tags.

Source: Search-R1 (arXiv:2503.09516), section 3; sentences are ours.
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
    nothing_found,
    read_answer,
    search_blocks,
    text_blocks,
)
from seekling.env.protocol.stopping import THOUGHT, StopRule, drop_opened_thought
from seekling.env.schema import properties_of, type_name
from seekling.env.tools import Outcome, Tool
from seekling.types import Message, Question

INSTRUCTIONS = """\
Answer the question by searching. In each turn, think inside <think> and </think>, then write one of these tags, \
its text, and the closing tag:
{tools}
<answer> the answer in a few words, or unknown if the passages do not say
"""


PASSAGE = r"Doc \d+\(Title: "
"""Finds where a passage of an observation begins, before its title."""


class TagsProtocol(Protocol):
    """Search-R1's grammar."""

    name = "tags"
    continues_turn = True

    def __init__(self, config: EnvConfig, tools: Mapping[str, Tool]) -> None:
        super().__init__(config, tools, offered=("search",), instructions=INSTRUCTIONS, describe=_describe_tag)
        tags = (*self.tool_names, "answer")
        self.stops = StopRule(tuple(f"</{tag}>" for tag in tags), tuple(f"<{tag}>" for tag in tags))
        # The thought is the first alternative, so that tags inside one are passed over with it.
        self._action = re.compile(rf"{THOUGHT}|<({'|'.join(tags)})>(.*?)</\1>", re.DOTALL)

    def prompt(self, question: Question) -> list[Message]:
        """One user message; a question mark is added where there is none, as Search-R1 does."""
        text = question.question.strip()
        text = text if text.endswith("?") else text + "?"
        return [Message("user", f"{self._instructions}Question: {text}\n")]

    def parse(self, text: str) -> Action:
        """Read the first action outside thoughts."""
        for match in self._action.finditer(drop_opened_thought(text)):
            if match.group(1):
                return self._read_tag(match.group(1), match.group(2).strip())
        return nothing_found(text, self.stops, "it holds no tag that is both opened and closed")

    def observation(self, outcomes: Sequence[Outcome], budget: Budget) -> Observation:
        """Passages and texts between information tags."""
        blocks: list[Block] = []
        for outcome in outcomes:
            for search in outcome.searches:
                blocks += search_blocks(search, lambda number, title: f'Doc {number}(Title: "{title}") ')
            blocks += text_blocks(outcome)
        return budget.fit("\n\n<information>", blocks, "</information>\n\n")

    def complaint(self, error: str) -> str:
        """In the first person, since it stands inside the model's own turn."""
        names = ", ".join((*self.tool_names, "answer"))
        return f"\nMy last action was not valid: {error}. I must write one of the tags {names} and close it. Again:\n"

    def search_action(self, *queries: str) -> Action:
        """A search for the one query."""
        (query,) = queries
        return self._read_tag("search", query.strip())

    def _write(self, action: Action) -> str:
        name = action.calls[0][0] if action.calls else action.kind
        return f"<{name}> {action.payload} </{name}>"  # with spaces, as Search-R1's prompt shows it

    def _read_tag(self, name: str, text: str) -> Action:
        if name == "answer":
            return read_answer(text)
        if name == "search":
            if not text:
                return Action("invalid", error="the query is empty")
            return Action("search", text, calls=(("search", {"query_list": [text]}),))
        parameter = _text_parameter(self._tools[name])
        if parameter:
            return Action("call", text, calls=((name, {parameter: text}),))
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return Action("invalid", error=f"the tag {name} takes a JSON object")
        return Action("call", text, calls=((name, arguments),))


def _text_parameter(tool: Tool) -> str:
    """The name of the tool's parameter if it has just one, a text; else empty."""
    properties = properties_of(tool.parameters)
    (name, schema), *others = properties.items() if properties else [("", {})]
    return name if not others and schema.get("type") == "string" else ""


def _describe_tag(tool: Tool) -> str:
    if tool.name == "search":
        return "<search> what to look for; passages come back in <information>"
    parameter = _text_parameter(tool)
    if parameter:
        return f"<{tool.name}> {parameter}: {tool.description}"
    fields = ", ".join(f'"{name}": {type_name(schema)}' for name, schema in properties_of(tool.parameters).items())
    return f"<{tool.name}> {{{fields}}}: {tool.description}"
