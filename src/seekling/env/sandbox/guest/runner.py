"""Runs the programs of one session, one after the other, in one namespace, and explains what they raise."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import linecache
import os
import random
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from .channel import Channel, Limits, Message

_EXIT_OUT_OF_MEMORY = 86
"""Exit status of a process that had not even the memory to say so."""
_RESERVE_BYTES = 6 << 20
_MAX_ERROR_CHARS = 4000
_HERE = os.path.dirname(__file__) + os.sep
_STDLIB = os.path.dirname(os.__file__) + os.sep
_MAX_FRAMES = 3000


class ToolError(ValueError):
    """What a provided function raises when it is used wrongly."""


class TimeLimitExceeded(BaseException):
    """The program ran longer than the soft limit."""


class OutputLimitExceeded(BaseException):
    """The program printed more than the cap."""


for _kind in (ToolError, TimeLimitExceeded, OutputLimitExceeded):
    _kind.__module__ = "builtins"  # a traceback then shows the bare name


class _Output(io.TextIOBase):
    """What a program finds as sys.stdout and sys.stderr."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, channel: Channel, max_chars: int) -> None:
        self._channel = channel
        self._max_chars = max_chars

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text and not self._channel.write_text(text):
            raise OutputLimitExceeded(f"the output was cut after {self._max_chars} characters; print less")
        return len(text)

    def writable(self) -> bool:
        return True


class Runner:
    """The state of one session: a namespace, the provided functions and the limits."""

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel = channel
        self._limit_texts = {
            signal.SIGXCPU: f"stopped after {limits['soft_limit_s']:g} s of processor time",
            signal.SIGALRM: f"stopped after {limits['wall_limit_s']:g} s by the clock, sleeping included",
        }
        self._limit_text = ""
        self._output_chars = limits["output_chars"]
        self._error_chars = min(_MAX_ERROR_CHARS, self._output_chars)
        self._main = types.ModuleType("__main__")
        self._reserve: bytes | None = None
        self._num_turns = 0
        self._is_over = True
        self._num_alarms = 0
        # A program that looks at its own module, as dataclasses and pickle do, must find its names and not ours.
        sys.modules["__main__"] = self._main
        builtins.ToolError = ToolError  # type: ignore[attr-defined]  # so that a program can name it in an except
        random.seed(0)

    def serve(self) -> None:
        """Run programs until the host hangs up."""
        request = self._channel.receive()
        self._listen_to_alarms()
        self._channel.announce()  # not earlier: first of all comes the fork server's message on this socket
        while True:
            outcome, error_text = self._run(request)
            self._reserve = None
            self._channel.finish_turn(outcome, error_text)
            request = self._channel.receive()

    def _run(self, request: Message) -> tuple[str, str]:
        self._num_turns += 1
        self._prepare(request["functions"])
        try:
            outcome, error_text = self._execute(request["code"], f"<program {self._num_turns}>")
        except TimeLimitExceeded:  # it struck between two lines of ours
            outcome, error_text = "timeout", self._limit_text
        self._is_over = True
        return outcome, error_text

    def _prepare(self, names: list[str]) -> None:
        """Undo what an earlier turn may have done to the streams, the signals and the provided functions."""
        sys.stdin = io.StringIO()
        sys.stdout = sys.stderr = _Output(self._channel, self._output_chars)
        sys.setrecursionlimit(1000)
        if self._reserve is None:
            with contextlib.suppress(MemoryError):
                self._reserve = bytes(_RESERVE_BYTES)  # from calloc and untouched: it costs address space, no memory
        namespace = self._main.__dict__
        namespace["__name__"] = "__main__"
        namespace["__builtins__"] = builtins
        for name in names:
            namespace[name] = self._stub(name)
        self._channel.start_turn()

    def _execute(self, code: str, filename: str) -> tuple[str, str]:
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        self._listen_to_alarms()
        self._is_over = False
        try:
            exec(compile(code, filename, "exec", dont_inherit=True), self._main.__dict__)
        except BaseException as error:  # its own outcome, whatever it is
            self._reserve = None  # the text of a MemoryError needs some memory
            if not isinstance(error, SystemExit) or error.code not in (None, 0):  # which say: I am done
                return self._explain(error)
        return "ok", ""

    def _explain(self, error: BaseException) -> tuple[str, str]:
        outcome = _outcome_of(error)
        num_alarms = self._num_alarms
        try:
            text = _explain(error, self._error_chars)
            # The traceback module swallows whatever an exception's __str__ raises, the time limit too.
            return outcome if self._num_alarms == num_alarms else "timeout", text
        except TimeLimitExceeded:
            return "timeout", f"{type(error).__name__}: (making its message took too long)\n{self._limit_text}"
        except MemoryError:
            return "memory", f"{type(error).__name__}: (no memory was left for its message)"
        except BaseException as second:  # an exception whose __str__ raises, or worse
            return outcome, _cut_middle(f"{type(error).__name__}: (its message raised {type(second).__name__})", 400)

    def _listen_to_alarms(self) -> None:
        for number in self._limit_texts:
            signal.signal(number, self._on_alarm)

    def _on_alarm(self, signum: int, frame: object) -> None:
        """The host says that the program's time is over."""
        if self._channel.guard.depth == 0 and not self._is_over:
            self._num_alarms += 1
            self._limit_text = f"{self._limit_texts[signal.Signals(signum)]}; variables assigned so far are kept"
            raise TimeLimitExceeded(self._limit_text)

    def _stub(self, name: str) -> Callable[..., Any]:
        """A function that looks ordinary to the program and asks the host."""
        call = self._channel.call

        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                reply = call(name, args, kwargs)
            except TypeError as error:
                raise TypeError(
                    f"{name}() takes None, bool, int, float, str, list, tuple and dict as arguments: {error}"
                ) from None
            if "error" in reply:
                raise _exception(reply["error"], reply["text"])
            return reply["value"]

        function.__name__ = function.__qualname__ = name
        function.__module__ = "__main__"
        return function


def _exception(kind: str, text: str) -> BaseException:
    """Rebuild a host error as a type that the program can catch; the host sends only names of built-in exceptions."""
    try:
        error: BaseException = getattr(builtins, kind)(text)
    except TypeError:  # UnicodeDecodeError and the like want more than a text
        return RuntimeError(f"{kind}: {text}")
    return error


def _outcome_of(error: BaseException) -> str:
    """Name the outcome of a program that raised this."""
    if isinstance(error, TimeLimitExceeded):
        return "timeout"
    if isinstance(error, OutputLimitExceeded):
        return "output_limit"
    return "memory" if isinstance(error, MemoryError) else "error"


def _explain(error: BaseException, max_chars: int) -> str:
    """Format an exception as Python would: the program's own lines, none of our frames, the same on every machine.

    The exception's own methods may raise anything, or take forever.
    """
    formatted = traceback.TracebackException(type(error), error, error.__traceback__, limit=-_MAX_FRAMES, compact=True)
    _strip_frames(formatted)
    return _cut_middle("".join(formatted.format()).rstrip("\n"), max_chars)


def _cut_middle(text: str, max_chars: int) -> str:
    """Keep the two ends of a text, which in a traceback say where it began and what went wrong."""
    if len(text) <= max_chars:
        return text
    mark = f"\n... ({len(text) - max_chars:,} characters left out) ...\n"
    room = max(0, max_chars - len(mark))
    head = room // 2
    return (text[:head] + mark + text[len(text) - (room - head) :])[:max_chars]


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


def run_session(fd: int, limits: Limits) -> None:
    """Serve one session on a socket and never return."""
    channel = Channel(fd, output_chars=limits["output_chars"], max_frame_bytes=limits["max_frame_bytes"])
    try:
        Runner(channel, limits).serve()
    except MemoryError:
        os._exit(_EXIT_OUT_OF_MEMORY)
    except OSError as error:  # the socket: the host hung up, or the program closed it
        os._exit(0 if error.errno in (errno.EPIPE, errno.ECONNRESET) else 71)
