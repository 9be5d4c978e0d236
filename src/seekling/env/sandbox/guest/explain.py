"""Turns what a program raised into the text that the model learns from.

An ordinary Python traceback with the program's own line numbers and source lines; the frames of this package are left
out and the paths of the standard library are shortened, so that the text is the same on every machine.
"""

from __future__ import annotations

import os
import re
import traceback

PROGRAM_PREFIX = "<program"
_HERE = os.path.dirname(__file__) + os.sep
_STDLIB = os.path.dirname(os.__file__) + os.sep
_MAX_FRAMES = 3000
_PROSE = re.compile(r"^\W*[A-Za-z][\w'\u2019]*,?( +[\w'\u2019,\"-]+){3,}[.:!?]?\s*$|^\s*(```|[*#-] |\d+[.)] )")


class ToolError(ValueError):
    """What a provided function raises when it is used wrongly."""


class TimeLimitExceeded(BaseException):
    """The program ran longer than the soft limit."""


class OutputLimitExceeded(BaseException):
    """The program printed more than the cap."""


for _kind in (ToolError, TimeLimitExceeded, OutputLimitExceeded):
    _kind.__module__ = "builtins"  # a traceback then shows the bare name


def outcome_of(error: BaseException) -> str:
    """Name the outcome of a program that raised this."""
    if isinstance(error, TimeLimitExceeded):
        return "timeout"
    if isinstance(error, OutputLimitExceeded):
        return "output_limit"
    return "memory" if isinstance(error, MemoryError) else "error"


def explain(error: BaseException, max_chars: int) -> str:
    """Format an exception as Python would, without our frames.

    Args:
        error: as caught; its traceback still starts with the runner's frames.
        max_chars: the middle of a longer text is left out.

    Raises:
        BaseException: the exception's own methods may raise anything, or take forever.
    """
    formatted = traceback.TracebackException(type(error), error, error.__traceback__, limit=-_MAX_FRAMES, compact=True)
    _strip_frames(formatted)
    text = "".join(formatted.format()).rstrip("\n")
    if isinstance(error, SyntaxError):
        text += _syntax_hint(error)
    return cut_middle(text, max_chars)


def cut_middle(text: str, max_chars: int) -> str:
    """Keep the two ends of a text, which in a traceback say where it began and what went wrong."""
    if len(text) <= max_chars:
        return text
    mark = f"\n... ({len(text) - max_chars:,} characters left out) ...\n"
    room = max(0, max_chars - len(mark))
    head = room // 2
    return (text[:head] + mark + text[len(text) - (room - head) :])[:max_chars]


def _syntax_hint(error: SyntaxError) -> str:
    if not (error.filename or "").startswith(PROGRAM_PREFIX):
        return ""  # from an eval or an ast.parse of the program's own
    if _PROSE.match(error.text or ""):
        return "\nThe line above is prose or markup, not Python. The whole block is run as a program: write only code."
    return ""


def _strip_frames(formatted: traceback.TracebackException) -> None:
    seen: set[int] = set()
    queue: list[traceback.TracebackException | None] = [formatted]
    while queue:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.stack[:] = [frame for frame in current.stack if not frame.filename.startswith(_HERE)]
        for frame in current.stack:
            if frame.filename.startswith(_STDLIB):
                frame.filename = frame.filename.removeprefix(_STDLIB)
        queue += [current.__cause__, current.__context__, *(current.exceptions or ())]
