"""Turns what a program raised into the text that the model learns from.

An ordinary Python traceback with the program's own line numbers and source lines; the frames of this package are left
out and the paths of the standard library are shortened, so that the text is the same on every machine.
"""

from __future__ import annotations

import os
import re
import traceback
import types

PROGRAM_PREFIX = "<program"
_HERE = os.path.dirname(__file__) + os.sep
_STDLIB = os.path.dirname(os.__file__) + os.sep
_MAX_FRAMES = 300
_MAX_CHAIN = 20
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


def is_clean_exit(error: BaseException) -> bool:
    """True for sys.exit() and sys.exit(0), which are how some programs say that they are done."""
    return isinstance(error, SystemExit) and (error.code is None or error.code == 0)


def explain(error: BaseException, max_chars: int) -> str:
    """Format an exception as Python would, without our frames.

    Args:
        error: as caught; its traceback still starts with the runner's frames.
        max_chars: the middle of a longer text is left out.

    Raises:
        BaseException: the exception's own methods may raise anything, or take forever.
    """
    _shorten_tracebacks(error)
    formatted = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
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


def _shorten_tracebacks(error: BaseException) -> None:
    """Cut the tracebacks of a million-deep recursion before they are formatted, in the whole chain of causes."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue and len(seen) < _MAX_CHAIN:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        _shorten(current.__traceback__)
        queue += [current.__cause__, current.__context__]
    for leftover in queue:
        if leftover is not None:
            leftover.__cause__ = leftover.__context__ = None


def _shorten(tb: types.TracebackType | None) -> None:
    count, current = 0, tb
    while current is not None:
        count, current = count + 1, current.tb_next
    if tb is None or count <= _MAX_FRAMES * 10:
        return
    last = tb
    for _ in range(_MAX_FRAMES // 2):
        last = last.tb_next or last
    tail: types.TracebackType | None = last
    for _ in range(count - _MAX_FRAMES):
        tail = tail.tb_next if tail is not None else None
    last.tb_next = tail


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
