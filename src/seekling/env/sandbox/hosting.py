"""One program as the host sees it: what it printed, the trainer's functions that it called, and its result."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import json
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

from seekling.config import SandboxConfig
from seekling.env.sandbox.back_end import STATE_LOST, HostFunction, KillProgram, Outcome, Result
from seekling.env.sandbox.frames import clean_text
from seekling.errors import InfrastructureError, ToolError
from seekling.types import Json

_MAX_ERROR_CHARS = 2000
_MAX_REPLY_CHARS = 16 << 20
_SPARE_CALLS = 100
"""Calls beyond the cap that are answered with an error before the program is killed."""
_CHANGES_THE_FLOW = (StopIteration, StopAsyncIteration, MemoryError, SyntaxError)
"""Built-in exceptions that would mean something else inside a program than where they were raised."""


class HostCallError(Exception):
    """A host function failed in a way that the program should see."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        """Name of a built-in exception, or ToolError."""
        self.text = text


@dataclass(slots=True)
class ProgramRun:
    """The output and the calls of one program."""

    config: SandboxConfig
    functions: Mapping[str, HostFunction]
    started_s: float = field(default_factory=time.monotonic)
    hosting_s: float = 0.0
    """Seconds inside the provided functions, which are not the program's."""
    num_calls: int = 0
    num_chars: int = 0
    pieces: list[str] = field(default_factory=list)

    def wall_s(self) -> float:
        """Seconds since the start, those inside the provided functions left out."""
        return time.monotonic() - self.started_s - self.hosting_s

    def add_output(self, text: str) -> None:
        """Keep a piece of output as far as the cap allows."""
        room = max(0, self.config.output_chars - self.num_chars)
        self.num_chars += len(text)
        if room:
            self.pieces.append(text[:room])

    def call(self, name: str, args: list[Json], kwargs: dict[str, Json]) -> str:
        """Call one of the functions; a coroutine function is run to its end.

        Returns:
            What it returned, as JSON.

        Raises:
            HostCallError: there is no such function, it raised, or these were too many calls.
            KillProgram: these were far too many calls.
            InfrastructureError: as raised by the function, or the calls so far took too long: the program is not at
                fault.
        """
        self.num_calls += 1
        most = self.config.max_host_calls
        if self.num_calls > most + _SPARE_CALLS:
            raise KillProgram("protocol", f"Killed: more than {most} calls of provided functions.")
        if self.num_calls > most:
            raise HostCallError("RuntimeError", f"more than {most} calls of provided functions in one program")
        if self.hosting_s > self.config.max_host_s:
            raise InfrastructureError(
                f"the provided functions took {self.hosting_s:.1f} s in one program, more than env.sandbox.max_host_s "
                f"= {self.config.max_host_s:g}: what they rely on is too slow, or too many programs wait for it"
            )
        started_s = time.monotonic()
        try:
            text = json.dumps(call_host_function(self.functions, name, args, kwargs))
            if len(text) > _MAX_REPLY_CHARS:
                raise ValueError(f"{len(text):,} bytes are too many; at most {_MAX_REPLY_CHARS:,} pass")
            return text
        except (TypeError, ValueError, RecursionError) as error:
            problem = clean_text(str(error))[:500]
            text = f"{name}() returned something that cannot be passed on: {problem}"
            raise HostCallError("RuntimeError", text) from None
        finally:
            self.hosting_s += time.monotonic() - started_s

    def result(self, outcome: Outcome, error_text: str, cpu_s: float, *, state_lost: bool) -> Result:
        """The result; a lost state is told in the text, and text and output are cut to the cap together."""
        if state_lost:
            error_text = f"{error_text} {STATE_LOST}"
        error_text = error_text[: self.config.output_chars]
        room = self.config.output_chars - len(error_text)
        return Result(
            stdout="".join(self.pieces)[:room],
            error_text=error_text,
            outcome=outcome,
            wall_s=self.wall_s(),
            cpu_s=cpu_s,
            host_calls=self.num_calls,
            truncated=self.num_chars > room or "characters left out) ..." in error_text,
            state_lost=state_lost,
        )


def call_host_function(
    functions: Mapping[str, HostFunction], name: str, args: list[Json], kwargs: dict[str, Json]
) -> object:
    """Call one of the functions; a coroutine function is run to its end.

    Raises:
        HostCallError: there is no such function, or it raised.
        InfrastructureError: as raised by the function: the program is not at fault.
    """
    function = functions.get(name)
    if function is None:
        raise HostCallError("NameError", f"there is no function {name!r} here")
    try:
        value = function(*args, **kwargs)
        return asyncio.run(_wait_for(value)) if inspect.isawaitable(value) else value
    except BaseException as error:
        # Whatever a tool raises is a consequence of how the program called it, so it goes there: except what says that
        # the tool itself is out of order, and what is not an error at all, such as Ctrl-C.
        if isinstance(error, InfrastructureError) or not isinstance(error, Exception):
            raise
        raise _describe(function, name, args, kwargs, error) from error


async def _wait_for(value: Awaitable[object]) -> object:
    return await value


def _describe(
    function: HostFunction, name: str, args: list[Json], kwargs: dict[str, Json], error: Exception
) -> HostCallError:
    if isinstance(error, TypeError):
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError as problem:  # the number or the names of the arguments
            return HostCallError("TypeError", f"{name}() {problem}")
        except ValueError:  # a built-in without a signature
            pass
    kind = next((cls.__name__ for cls in type(error).__mro__ if _is_known(cls)), "RuntimeError")
    # str(KeyError("x")) is "'x'", and the program's KeyError would quote it once more.
    text = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error)
    if kind == "Exception":
        kind, text = "RuntimeError", f"{type(error).__name__}: {text}"
    return HostCallError(kind, clean_text(text)[:_MAX_ERROR_CHARS])


def _is_known(cls: type) -> bool:
    is_builtin = vars(builtins).get(cls.__name__) is cls and not issubclass(cls, _CHANGES_THE_FLOW)
    return is_builtin or cls is ToolError
