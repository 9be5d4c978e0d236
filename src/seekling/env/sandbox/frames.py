"""The host's end of a session's socket: reading frames that an attacker wrote.

A frame is four bytes of length and JSON. The reader refuses long frames before it has them in memory, everything that
is not an object with the expected fields of the expected types, and text that is not Unicode.
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

Outcome = Literal["ok", "error", "timeout", "memory", "output_limit", "crashed", "protocol"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)

MAX_FRAME_BYTES = 1 << 20
"""From a program. Parsed JSON can take some twenty times its size, so this bounds what a program costs the trainer."""
_HEADER_BYTES = 4
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class KillProgram(Exception):
    """The program must be killed; the message says so and why."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class FrameError(KillProgram):
    """The other end does not speak the protocol."""

    def __init__(self, what: str) -> None:
        super().__init__("protocol", f"Killed: the program broke the sandbox's own channel ({what}).")


def clean_text(text: str) -> str:
    """Make text safe to print, to tokenise and to write: no lone surrogates and no control characters.

    Line feeds and tabs stay; carriage returns become line feeds; everything else turns into U+FFFD.
    """
    text = _without_surrogates(text)
    if text.isprintable():
        return text
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def _without_surrogates(value: Any) -> Any:
    """Remove lone surrogates from the strings of a JSON value. json.loads has bounded its depth."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


_Text = Annotated[str, BeforeValidator(lambda value: clean_text(value) if isinstance(value, str) else value)]


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Output(_Frame):
    """A piece of standard output."""

    op: Literal["out"] = "out"
    text: _Text


class Call(_Frame):
    """The program calls a host function."""

    op: Literal["call"] = "call"
    name: Annotated[_Text, Field(max_length=200)]
    args: Annotated[list[Any], BeforeValidator(_without_surrogates)]
    kwargs: Annotated[dict[str, Any], BeforeValidator(_without_surrogates)]


class Done(_Frame):
    """The program says that it ended: in one of the ways that leave its process alive."""

    op: Literal["done"] = "done"
    outcome: Literal["ok", "error", "timeout", "memory", "output_limit"]
    error: _Text


class Ready(_Frame):
    """The process of a session is confined. It comes before the first program can, so no program can forge it."""

    op: Literal["ready"] = "ready"
    cpu_s: Annotated[float, Field(ge=0, le=1e9)]
    """What the process has computed so far, none of it a program's."""


Frame = Output | Call | Done | Ready
_FRAME: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="op")])


class FrameReader:
    """Reads the frames of one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._buffer = sock, bytearray()

    def read(self, timeout_s: float) -> Frame | None:
        """Read one frame; None at the end of the stream.

        Raises:
            TimeoutError, FrameError, OSError: the time was over, what arrived is not a frame, or the socket failed.
        """
        deadline_s = time.monotonic() + timeout_s
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
            data = self._socket.recv(65536)
            if not data:
                return None
            self._buffer += data


def parse_frame(body: bytes) -> Frame:
    """Validate one frame's body.

    Raises:
        FrameError: it is not JSON, or a field is missing, unknown or of the wrong type.
    """
    try:
        return _FRAME.validate_python(json.loads(body))
    except (ValueError, RecursionError, OverflowError) as error:
        raise FrameError(f"not a frame: {type(error).__name__}") from None


def encode_frame(text: str) -> bytes:
    """The bytes of one frame for a program, of its JSON in ASCII."""
    return len(text).to_bytes(_HEADER_BYTES, "little") + text.encode("ascii")
