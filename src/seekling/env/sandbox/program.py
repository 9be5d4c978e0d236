"""One program as the host sees it: its output, its calls of the trainer's functions, its time, and its result.

What counts as time is what its process computes, by the kernel's clock of that process: how busy the machine is makes
no difference. The wall's clock has a limit too, a generous one, because a program that sleeps computes nothing.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from seekling.config import SandboxConfig
from seekling.env.sandbox.frames import KillProgram, Outcome, clean_text
from seekling.env.sandbox.processes import Child
from seekling.errors import InfrastructureError, ToolError
from seekling.types import Json

HostFunction = Callable[..., object]
"""A function of the trainer that programs may call; it takes and returns JSON values. May be a coroutine function."""

STATE_LOST = "Its variables are lost."
_MAX_ERROR_CHARS = 2000
_MAX_REPLY_CHARS = 16 << 20
_SPARE_CALLS = 100
"""Calls beyond the cap that are answered with an error before the program is killed."""
_CHANGES_THE_FLOW = (StopIteration, StopAsyncIteration, MemoryError, SyntaxError)
"""Built-in exceptions that would mean something else inside a program than where they were raised."""

_SHORTEST_WAIT_S = 0.01
_REPEAT_CPU_S = 0.05
_REPEAT_WALL_S = 2.0
_GRACE_S = 5.0
"""By the wall's clock, for a program that was told to stop."""
_CORES = os.cpu_count() or 1
"""How many seconds a process can compute in one, at most. A quota does not count: it may be used up in bursts."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one program. `stdout` and `error_text` together never exceed the output cap."""

    stdout: str
    error_text: str
    """A traceback, or a sentence about how the program was stopped; empty when it ran to its end."""
    outcome: Outcome
    wall_s: float
    """Seconds from start to end; time inside host functions is left out."""
    cpu_s: float
    host_calls: int
    truncated: bool
    """True when `stdout` or `error_text` was cut."""
    state_lost: bool
    """True when the process is gone and with it every variable; the next program starts with none."""


class HostCallError(Exception):
    """A host function failed in a way that the program should see."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        """Name of a built-in exception, or ToolError."""


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
        self.pieces.append(text[:room])

    def call(self, name: str, args: list[Json], kwargs: dict[str, Json]) -> str:
        """What one of the functions returned, as JSON; a coroutine function is run to its end.

        Raises:
            HostCallError: there is no such function, it raised, or these were too many calls.
            KillProgram: these were far too many calls.
            InfrastructureError: raised by the function, or the calls so far took too long: not the program's fault.
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
            text = json.dumps(_call(self.functions, name, args, kwargs))
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
        is_cut = self.num_chars > room or "characters left out) ..." in error_text
        stdout = "".join(self.pieces)[:room]
        return Result(stdout, error_text, outcome, self.wall_s(), cpu_s, self.num_calls, is_cut, state_lost)


def _call(functions: Mapping[str, HostFunction], name: str, args: list[Json], kwargs: dict[str, Json]) -> object:
    function = functions.get(name)
    if function is None:
        raise HostCallError("NameError", f"there is no function {name!r} here")
    try:
        value = function(*args, **kwargs)
        return asyncio.run(_wait_for(value)) if inspect.isawaitable(value) else value
    except InfrastructureError:
        raise
    except Exception as error:  # whatever a tool raises is a consequence of how the program called it
        raise _describe(error) from error


async def _wait_for(value: Awaitable[object]) -> object:
    return await value


def _describe(error: Exception) -> HostCallError:
    kind = next((cls.__name__ for cls in type(error).__mro__ if _is_known(cls)), "RuntimeError")
    # str(KeyError("x")) is "'x'", and the program's KeyError would quote it once more.
    text = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error)
    if kind == "Exception":
        kind, text = "RuntimeError", f"{type(error).__name__}: {text}"
    return HostCallError(kind, clean_text(text)[:_MAX_ERROR_CHARS])


def _is_known(cls: type) -> bool:
    is_builtin = vars(builtins).get(cls.__name__) is cls and not issubclass(cls, _CHANGES_THE_FLOW)
    return is_builtin or cls is ToolError


class ProgramClock:
    """Watches a program: tells it to stop, by a signal that becomes an exception in it, and says when to kill it.

    `cpu_before_s` is what its process had computed before.
    """

    def __init__(self, run: ProgramRun, child: Child, cpu_before_s: float) -> None:
        self._run, self._child, self._cpu_before_s = run, child, cpu_before_s
        self._signal = signal.SIGXCPU
        self._first_s: tuple[float, float] | None = None
        """When the program was told to stop: its CPU time and its wall time."""
        self._last_s = (0.0, 0.0)
        """When it was told last."""

    @property
    def was_told(self) -> bool:
        """Whether the program was told to stop."""
        return self._first_s is not None

    def cpu_s(self, total_s: float | None = None) -> float:
        """CPU seconds of the program; given those of its process over its whole life, where they are known."""
        return max(0.0, (self._child.cpu_s() if total_s is None else total_s) - self._cpu_before_s)

    def check(self) -> float:
        """Do what the time demands; return the seconds until the next check, at most.

        Raises:
            KillProgram: the program was told to stop, and did not.
        """
        config, cpu_s, wall_s = self._run.config, self.cpu_s(), self._run.wall_s()
        why = "the program did not stop at its time limit."
        if self._first_s is None:
            left_cpu_s, left_wall_s = config.soft_limit_s - cpu_s, config.wall_limit_s - wall_s
            if min(left_cpu_s, left_wall_s) > 0:
                return max(_SHORTEST_WAIT_S, min(left_cpu_s / _CORES, left_wall_s))
            self._signal = signal.SIGXCPU if left_cpu_s <= 0 else signal.SIGALRM
            self._first_s = (cpu_s, wall_s)
        elif cpu_s - self._first_s[0] >= config.hard_limit_s - config.soft_limit_s:
            raise KillProgram("timeout", f"Killed after {config.hard_limit_s:g} s of processor time: {why}")
        elif wall_s - self._first_s[1] >= _GRACE_S:
            raise KillProgram("timeout", f"Killed after {wall_s:.0f} s by the clock, sleeping included: {why}")
        # Again and again, because a program can catch the exception, or sit in a call of ours that must not be cut.
        elif cpu_s - self._last_s[0] < _REPEAT_CPU_S and wall_s - self._last_s[1] < _REPEAT_WALL_S:
            return _SHORTEST_WAIT_S
        self._last_s = (cpu_s, wall_s)
        self._child.signal(self._signal)
        return _SHORTEST_WAIT_S
