r"""The code protocol: the model writes a Python block, what it prints comes back as a message.

    ```python
    print(search_pages("wind instruments"))
    ```

The functions of the library and the user's own tools are provided as Python functions. `<answer> answer </answer>`,
outside any block, ends the episode.

The stop string is the closing fence with both its line ends, because "\n```" alone would match the opening fence of a
block that follows a line of prose. So a bare opening fence after prose stops the turn before the program (the model is
told to name the language), and a program with a line of three backquotes inside a string ends there.
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
)
from seekling.env.protocol.stopping import THOUGHT, StopRule, drop_opened_thought
from seekling.env.schema import signature
from seekling.env.tools import LIBRARY_TOOLS, Outcome, Tool

INSTRUCTIONS = """\
Answer the question by writing Python. In each turn, think inside <think> and </think>, then write one block that \
starts with ```python and ends with ```; what it prints comes back. Variables stay. These functions are provided; \
call them, do not define them:
{tools}
When you know the answer, write no block but <answer>, the answer in a few words (unknown if the pages do not say), \
and the closing tag."""

NOTHING_PRINTED = "The program ran but printed nothing. Use print() to see a value."

_LIBRARY_FUNCTIONS = tuple(name for name in LIBRARY_TOOLS if name != "search")
_PART = re.compile(
    rf"{THOUGHT}|```[ \t]*([\w+-]*)[ \t]*\n(.*?)^[ \t]*```[ \t]*$|"
    r"<answer>(?P<answer>.*?)</answer>|(?P<open>```[ \t]*[\w+-]*[ \t]*\n.*)",
    re.DOTALL | re.MULTILINE,
)


class CodeProtocol(Protocol):
    """Python as the action."""

    name = "code"
    stops = StopRule(("\n```\n", "</answer>"), ("```", "<answer>"))

    def __init__(self, config: EnvConfig, tools: Mapping[str, Tool]) -> None:
        super().__init__(
            config,
            tools,
            offered=_LIBRARY_FUNCTIONS,
            instructions=INSTRUCTIONS,
            describe=lambda tool: f"{signature(tool.name, tool.parameters)}: {tool.description}",
        )

    def parse(self, text: str) -> Action:
        """Read the first closed block or answer outside thoughts."""
        is_open = False
        for match in _PART.finditer(drop_opened_thought(text)):
            if match.group("answer") is not None:
                return read_answer(match.group("answer"))
            if match.group(2) is not None:
                return _read_block(match.group(1).lower(), match.group(2).strip("\n"))
            is_open = is_open or match.group("open") is not None
        if is_open:
            return Action("invalid", error="the block is not closed by a line of ``` of its own, or an answer is in it")
        return nothing_found(text, self.stops, "it holds neither a Python block nor an answer")

    def observation(self, outcomes: Sequence[Outcome], budget: Budget) -> Observation:
        """What the program printed, then its error, then our notes."""
        blocks: list[Block] = []
        for outcome in outcomes:
            for search in outcome.searches:
                blocks += search_blocks(search, lambda number, title: f"Document {number}: {title}\n")
            if outcome.text.strip():
                blocks.append(Block("Output:\n", outcome.text.strip("\n")))
            elif not outcome.error:
                blocks.append(Block(NOTHING_PRINTED, ""))
            if outcome.error:
                blocks.append(Block("Error:\n", outcome.error.strip("\n"), keep="end"))
            blocks += [Block(note, "") for note in outcome.notes]
        return budget.fit("", blocks, "")

    def complaint(self, error: str) -> str:
        """Says what is wrong and what is expected."""
        return (
            f"Your last turn was not valid: {error}. "
            "Write one Python block in fences that name python, or the answer in its tags."
        )

    def search_action(self, *queries: str) -> Action:
        """A program that prints the pages found for each query."""
        literals = (
            json.dumps(query, ensure_ascii=False) for query in queries
        )  # in double quotes, as most code has them
        return Action("code", "\n".join(f"print(search_pages({each}))" for each in literals))

    def _write(self, action: Action) -> str:
        if action.kind == "answer":
            return f"<answer> {action.payload} </answer>"
        return f"```python\n{action.payload}\n```\n"  # up to and with the stop string


def _read_block(language: str, program: str) -> Action:
    if language not in ("", "python", "py", "python3"):
        return Action("invalid", error=f"the block is marked {language}, only Python runs")
    if not program.strip():
        return Action("invalid", error="the block is empty; open it with the word python right after the fence")
    return Action("code", program)
