"""JSON that a browser reads and that nothing in it can end, and files of JSON lines that may be damaged or growing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

from seekling.errors import DataError
from seekling.types import Json

T = TypeVar("T")
_LISTED = 3
"""Damaged lines that are named one by one; of the others it is said how many they are."""
# Besides what could end or confuse a script block: lone surrogates, which UTF-8 cannot hold, and the line separators
# that JSON allows in strings.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def encode(value: Json) -> str:
    r"""JSON that is safe inside a script block, whatever strings it holds.

    Example:
        >>> print(encode("</script>"))
        "\u003c/script\u003e"
    """
    try:
        text = _dumps(value)
    except ValueError:
        text = _dumps(finite(value))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def finite(value: object) -> object:
    """Replace NaN and infinities, which Python's JSON writes and browsers refuse, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


class JsonLinesFile(Generic[T]):
    """The rows of a file, read once each: `refresh` reads what was added since.

    `name` is the file's in sentences; what `parse` refuses with a `DataError` is left out. Of a growing file a last
    line without an end is being written, and no damage.
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
        return (
            [*listed, f"{self.name}: {more} more {'line' if more == 1 else 'lines'} left out."] if more > 0 else listed
        )

    def refresh(self) -> None:
        """Read what is new."""
        try:
            stat = self.path.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state != self._state:
                self._read()
            self._state, self._failure = state, ""
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            self._state = None
            self._failure = f"{self.name} {'is missing' if is_missing else f'cannot be read: {error.strerror}'}."
            self._start_over()

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
            self._take(line, self.items, self._damage, f"line {self._num_lines} is not", "JSON")
        self._offset += len(new) - len(tail)
        self._before = (self._before + new[: len(new) - len(tail)])[-256:]
        ignored: list[str] = []
        damage = ignored if self._is_growing else self._tail_damage
        self._take(tail, self._tail, damage, f"line {self._num_lines + 1} is", "cut")

    def _take(self, line: bytes, items: list[T], damage: list[str], start: str, otherwise: str) -> None:
        if not line.strip():
            return
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            damage.append(f"{start} {otherwise}")
            return
        if not isinstance(row, dict):
            damage.append(f"{start.removesuffix(' not')} not an object")
            return
        try:
            items.append(self._parse(cast("dict[str, Json]", finite(row))))
        except DataError as error:
            damage.append(str(error).splitlines()[1].strip())
