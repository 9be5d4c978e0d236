"""The host's end of a session's socket: reading frames that an attacker wrote.

A frame is four bytes of length and JSON. The reader refuses long frames before it has them in memory, everything that
is not an object with the expected fields of the expected types, and text that is not Unicode.
"""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass

from seekling.types import Json

MAX_FRAME_BYTES = 1 << 20
"""From a program. Parsed JSON can take some twenty times its size, so this bounds what a program costs the trainer."""
MAX_REPLY_BYTES = 16 << 20
"""To a program."""
_HEADER_BYTES = 4
_RECEIVE_BYTES = 65536
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MAX_NAME_CHARS = 200
_MAX_SECONDS = 1e9


class FrameError(Exception):
    """The other end does not speak the protocol."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of standard output."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The program calls a host function."""

    name: str
    args: list[Json]
    kwargs: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Done:
    """The program says that it ended."""

    outcome: str
    error_text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The process of a session is confined. It comes before the first program can, so no program can forge it."""

    cpu_s: float
    """What the process has computed so far, none of it a program's."""


Frame = Output | Call | Done | Ready


class FrameReader:
    """Reads the frames of one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()

    def read(self, deadline_s: float) -> Frame | None:
        """Read one frame.

        Args:
            deadline_s: on the clock of `time.monotonic`.

        Returns:
            The frame; None at the end of the stream.

        Raises:
            TimeoutError: the deadline passed first.
            FrameError: what arrived is not a frame.
            OSError: the socket failed.
        """
        while True:
            if len(self._buffer) >= _HEADER_BYTES:
                length = int.from_bytes(self._buffer[:_HEADER_BYTES], "little")
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length:,} bytes; at most {MAX_FRAME_BYTES:,} are allowed")
                end = _HEADER_BYTES + length
                if len(self._buffer) >= end:
                    body = bytes(self._buffer[_HEADER_BYTES:end])
                    del self._buffer[:end]
                    return parse_frame(body)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                return None
            self._buffer += data


def parse_frame(body: bytes) -> Frame:
    """Validate one frame's body.

    Raises:
        FrameError: it is not JSON, or a field is missing, unknown or of the wrong type.
    """
    try:
        raw = json.loads(body)
        return _validate(raw)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {type(error).__name__}") from None


def _validate(raw: Json) -> Frame:
    if not isinstance(raw, dict):
        raise FrameError("not an object")
    match raw.get("op"):
        case "out":
            _only(raw, "op", "text")
            return Output(clean_text(_string(raw, "text")))
        case "call":
            _only(raw, "op", "name", "args", "kwargs")
            args, kwargs = raw.get("args"), raw.get("kwargs")
            if not isinstance(args, list) or not isinstance(kwargs, dict):
                raise FrameError("args is not a list or kwargs not an object")
            name = _string(raw, "name")
            if len(name) > _MAX_NAME_CHARS:
                raise FrameError("the name of a function is too long")
            return Call(name, [_clean(arg) for arg in args], {clean_text(key): _clean(kwargs[key]) for key in kwargs})
        case "done":
            _only(raw, "op", "outcome", "error")
            return Done(clean_text(_string(raw, "outcome")), clean_text(_string(raw, "error")))
        case "ready":
            _only(raw, "op", "cpu_s")
            return Ready(_seconds(raw))
    raise FrameError("an unknown op")


def encode_frame(frame: dict[str, Json]) -> bytes:
    """Make the bytes of one frame for a program.

    Raises:
        TypeError, ValueError, RecursionError: a value cannot be sent.
    """
    body = json.dumps(frame).encode()
    if len(body) > MAX_REPLY_BYTES:
        raise ValueError(f"{len(body):,} bytes are too many; at most {MAX_REPLY_BYTES:,} pass")
    return len(body).to_bytes(_HEADER_BYTES, "little") + body


def clean_text(text: str) -> str:
    """Make text safe to print, to tokenise and to write: no lone surrogates and no control characters.

    Line feeds and tabs stay; carriage returns become line feeds; everything else turns into U+FFFD.
    """
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if text.isprintable():
        return text
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def _clean(value: Json) -> Json:
    """Remove lone surrogates from the strings of a JSON value. json.loads has bounded its depth."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {str(_clean(key)): _clean(item) for key, item in value.items()}
    return value


def _only(raw: dict[str, Json], *fields: str) -> None:
    if not raw.keys() <= set(fields):
        raise FrameError("unknown fields")


def _string(raw: dict[str, Json], field: str) -> str:
    value = raw.get(field)
    if not isinstance(value, str):
        raise FrameError(f"{field} is not a string")
    return value


def _seconds(raw: dict[str, Json]) -> float:
    value = raw.get("cpu_s")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SECONDS:
        raise FrameError("cpu_s is not a number of seconds")
    return float(value)
