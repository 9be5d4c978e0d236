"""Frames between a program's process and the host: four bytes of length, then JSON. Never pickle.

The host trusts nothing of what comes through here; this side only has to be correct for honest programs. The time
limit, an exception raised by the handler of a signal, must never strike in the middle of a frame, so `Guard` marks the
stretches in which the handler does nothing. The signal comes again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TypedDict, cast

_HEADER_BYTES = 4
_FLUSH_EVERY_S = 0.002
_FLUSH_CHARS = 4096
_encode = json.JSONEncoder(allow_nan=True).encode


def _frame(fields: dict[str, object]) -> bytes:
    body = _encode(fields).encode()
    return len(body).to_bytes(_HEADER_BYTES, "little") + body


class Limits(TypedDict):
    """What one program may use."""

    soft_limit_s: float
    wall_limit_s: float
    session_cpu_s: int
    memory_bytes: int
    output_chars: int
    max_frame_bytes: int


class Message(TypedDict, total=False):
    """From the host: a program and the names of its functions, what a function returned, or how it failed."""

    code: str
    functions: list[str]
    value: object
    error: str
    text: str


class Guard:
    """Counts how deep the main thread is in code that the time limit must not interrupt."""

    def __init__(self) -> None:
        self.depth = 0
        self._main = threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self.depth += 1

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() == self._main:
            self.depth -= 1


class Channel:
    """One end of the socket to the host, with the program's output buffered in front of it."""

    def __init__(self, fd: int, *, output_chars: int, max_frame_bytes: int) -> None:
        self.guard = Guard()
        self._fd = fd
        # Re-entrant, because the garbage collector may run a program's __del__, which prints, anywhere in here.
        self._lock = threading.RLock()
        self._is_sending = False
        self._max_frame_bytes = max_frame_bytes
        self._output_chars = output_chars
        self._pending: list[str] = []
        self.start_turn()
        self.is_open = False  # between turns: threads that a program left behind may not call or print then

    def announce(self) -> None:
        """Say that the walls stood before the first program could run; the host reads this before anything else."""
        self._send(_frame({"op": "ready", "cpu_s": time.process_time()}))

    def start_turn(self) -> None:
        """Empty the buffers and let the program talk."""
        self._pending.clear()
        self._num_pending = 0
        self._room = self._output_chars
        self._flushed_at = 0.0
        self.is_open = True

    def write_text(self, text: str) -> bool:
        """Take a piece of output; False when it, or a part of it, is beyond the cap."""
        if not self.is_open:
            return True
        kept = text[: self._room + 1]  # one character too many tells the host that there was more; then none
        self._room -= len(kept)
        if kept:
            self._pending.append(kept)
            self._num_pending += len(kept)
            now = time.monotonic()
            # The first line goes out at once and later lines every 2 ms: should the program hang in one C call until
            # it is killed, what it printed before is with the host. (print writes the line feed by itself.)
            is_due = kept[-1] == "\n" and now - self._flushed_at > _FLUSH_EVERY_S
            if is_due or self._num_pending > _FLUSH_CHARS or self._room < 0:
                with self.guard, self._lock:
                    self._flushed_at = now
                    if not self._is_sending:
                        self._send(self._take_output())
        return self._room >= 0

    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Message:
        """Have the host run a function: its `value`, or the kind (`error`) and the `text` of what it raised.

        Raises:
            TypeError, ValueError, RecursionError: the arguments cannot be sent.
            RuntimeError: the turn is over.
        """
        frame = _frame({"op": "call", "name": name, "args": args, "kwargs": kwargs})
        num_bytes = len(frame) - _HEADER_BYTES
        if num_bytes > self._max_frame_bytes:
            raise ValueError(f"{name}() got arguments of {num_bytes:,} bytes; at most {self._max_frame_bytes:,} pass")
        with self.guard, self._lock:
            if not self.is_open or self._is_sending:
                raise RuntimeError(f"{name}() cannot be called now: the program has ended or another call is under way")
            self._send(self._take_output() + frame)
            return self.receive()

    def finish_turn(self, outcome: str, error_text: str) -> None:
        """Send what is left of the output and how the program ended."""
        with self.guard, self._lock:
            self.is_open = False
            self._send(self._take_output() + _frame({"op": "done", "outcome": outcome, "error": error_text}))

    def receive(self) -> Message:
        """Wait for a program or a reply; ends the process when the host hangs up."""
        length = int.from_bytes(self._read(_HEADER_BYTES), "little")
        return cast(Message, json.loads(self._read(length)))

    def _read(self, num_bytes: int) -> bytes:
        chunks = []
        while num_bytes > 0:
            chunk = os.read(self._fd, min(num_bytes, 1 << 20))
            if not chunk:
                os._exit(0)
            chunks.append(chunk)
            num_bytes -= len(chunk)
        return b"".join(chunks)

    def _take_output(self) -> bytes:
        if not self._pending:
            return b""
        text = "".join(self._pending)
        self._pending.clear()
        self._num_pending = 0
        return _frame({"op": "out", "text": text})

    def _send(self, data: bytes) -> None:
        self._is_sending = True
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        finally:
            self._is_sending = False
