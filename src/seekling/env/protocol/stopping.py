"""What a thought is, and where a turn ends: at the first stop string that stands outside of thoughts.

A thought begins with <think> and lasts until </think>, or to the end of the turn where it is never closed; nothing in
it is an action and no stop string in it counts. Inside an action, such as a program that prints it, <think> is text.
Samplers ask a `Stopper` while a turn grows; `parse` of every protocol leaves out the same thoughts.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

THOUGHT = r"<think>.*?(?:</think>|\Z)"

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class StopRule:
    """What ends a turn."""

    strings: tuple[str, ...] = ()
    """A turn ends right after the first of these outside of thoughts; it stays part of the turn."""
    openings: tuple[str, ...] = ()
    """What begins an action, in which no thought begins. Empty: there are no thoughts, a stop string always counts."""

    def read(self, text: str) -> Stopper:
        """A stopper that has read the text of a turn."""
        stopper = Stopper(self)
        stopper.feed(text)
        return stopper


NO_STOPS = StopRule()


class Stopper:
    """Reads one turn as it is written. However the text is cut into pieces, the end is the same."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self._in_action = not rule.openings
        self._num_read, self._rest = 0, ""
        self.is_thinking = False
        """A thought is open."""
        self.end: int | None = None
        """Characters of the turn, its stop string included; None while it goes on."""

    def feed(self, text: str) -> bool:
        """Read the next piece; whether the turn has ended."""
        self._rest += text
        while self.end is None:
            marks = self._marks()
            match = marks.pattern.search(self._rest)
            # The tail may turn out to be the beginning of a mark, which then comes before any mark inside that tail.
            safe = len(self._rest) - marks.num_held(self._rest)
            if match is None or match.start() >= safe:
                self._skip(safe)
                break
            self._skip(match.end())
            self._note(match.group())
        return self.end is not None

    def _marks(self) -> _Marks:
        if self.is_thinking:
            return _marks_of((_CLOSE,))
        if self._in_action:
            return _marks_of(self._rule.strings)
        return _marks_of((_OPEN, *self._rule.strings, *self._rule.openings))

    def _note(self, mark: str) -> None:
        if mark in self._rule.strings:
            self.end = self._num_read
        elif mark in (_OPEN, _CLOSE):
            self.is_thinking = mark == _OPEN
        else:
            self._in_action = True

    def _skip(self, length: int) -> None:
        self._num_read += length
        self._rest = self._rest[length:]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Texts that are looked for together."""

    pattern: re.Pattern[str]
    beginnings: frozenset[str]
    longest: int

    def num_held(self, text: str) -> int:
        """Length of the longest end of a text that begins a mark without being one."""
        for length in range(min(self.longest, len(text)), 0, -1):
            if text[-length:] in self.beginnings:
                return length
        return 0


@functools.cache
def _marks_of(marks: tuple[str, ...]) -> _Marks:
    beginnings = frozenset(mark[:length] for mark in marks for length in range(1, len(mark)))
    pattern = re.compile("|".join(map(re.escape, marks)) if marks else r"(?!)")
    return _Marks(pattern, beginnings, max(map(len, beginnings), default=0))


def drop_opened_thought(text: str) -> str:
    """Leave out a thought that began in the prompt, as reasoning templates do: text up to a `</think>` of its own."""
    start, end = text.find(_OPEN), text.find(_CLOSE)
    if end != -1 and (start == -1 or end < start):
        return text[end + len(_CLOSE) :]
    return text


def cut_after_stop(text: str, rule: StopRule) -> tuple[str, bool]:
    """A whole reply up to and with its stop string, and whether there is one.

    It may begin inside a thought that the server's template opened.
    """
    own = drop_opened_thought(text) if rule.openings else text
    end = rule.read(own).end
    return (text, False) if end is None else (text[: len(text) - len(own) + end], True)
