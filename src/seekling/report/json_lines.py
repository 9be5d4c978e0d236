"""A file of JSON lines that may be damaged, half-written or still growing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

from seekling.errors import DataError
from seekling.report.encode import finite
from seekling.types import Json

T = TypeVar("T")
_LISTED = 3
"""Damaged lines that are named one by one; of the others it is said how many they are."""


class JsonLinesFile(Generic[T]):
    """The rows of a file, read once each: `refresh` reads what was added since.

    Args:
        path: the file.
        name: of the file in sentences.
        parse: makes an item of a row; what it refuses with a `DataError` is left out.
        is_growing: a last line without an end is being written, and no damage.
    """

    def __init__(self, path: Path, name: str, parse: Callable[[dict[str, Json]], T], *, is_growing: bool) -> None:
        self.path, self.name = path, name
        self._parse, self._is_growing = parse, is_growing
        self._state: tuple[int, int, int] | None = None
        self._failure = ""
        self._start_over()

    def _start_over(self) -> None:
        self.items: list[T] = []
        """Of the whole lines; a new list when the file was replaced or cut back, so that it can be told apart."""
        self._tail: list[T] = []
        self._damage: list[str] = []
        self._tail_damage: list[str] = []
        self._offset = self._num_lines = 0
        self._before = b""

    @property
    def all_items(self) -> list[T]:
        """With the item of a last line that has no end yet."""
        return [*self.items, *self._tail]

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged, one sentence each."""
        if self._failure:
            return [self._failure]
        damage = [*self._damage, *self._tail_damage]
        listed = [f"{self.name}: {what}; left out." for what in damage[:_LISTED]]
        more = len(damage) - _LISTED
        if more > 0:
            listed.append(f"{self.name}: {more} more {'line' if more == 1 else 'lines'} left out.")
        return listed

    def refresh(self) -> bool:
        """Read what is new; say whether anything changed."""
        try:
            stat = self.path.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state == self._state:
                return False
            self._read()
        except FileNotFoundError:
            return self._fail(f"{self.name} is missing.")
        except OSError as error:
            return self._fail(f"{self.name} cannot be read: {error.strerror}.")
        self._state, self._failure = state, ""
        return True

    def _fail(self, sentence: str) -> bool:
        is_new = self._failure != sentence
        self._state, self._failure = None, sentence
        self._start_over()
        return is_new

    def _read(self) -> None:
        with self.path.open("rb") as file:
            # Replaced files and files cut back to a checkpoint no longer say what was read before this place.
            file.seek(max(0, self._offset - len(self._before)))
            if file.read(len(self._before)) != self._before:
                self._start_over()
                file.seek(0)
            new = file.read()
        *whole, tail = new.split(b"\n")
        self._tail, self._tail_damage = [], []
        for line in whole:
            self._num_lines += 1
            self._take(line, self.items, self._damage, f"line {self._num_lines} is not JSON")
        self._offset += len(new) - len(tail)
        self._before = (self._before + new[: len(new) - len(tail)])[-256:]
        cut = [] if self._is_growing else self._tail_damage
        self._take(tail, self._tail, cut, f"line {self._num_lines + 1} is cut")

    def _take(self, line: bytes, items: list[T], damage: list[str], complaint: str) -> None:
        if not line.strip():
            return
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            damage.append(complaint)
            return
        if not isinstance(row, dict):
            damage.append(complaint.replace("is not JSON", "is not an object").replace("is cut", "is not an object"))
            return
        try:
            items.append(self._parse(cast("dict[str, Json]", finite(row))))
        except DataError as error:
            damage.append(str(error).splitlines()[1].strip())
