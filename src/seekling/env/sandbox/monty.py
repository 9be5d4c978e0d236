"""The portable back end: pydantic-monty, an interpreter of a part of Python, behind the same interface.

For machines without seccomp (macOS, Windows). Programs run in worker processes with an empty environment, in an
interpreter that has no files, no network and no C extensions to escape through; no wall of the operating system stands
around the workers.

It is a dialect, and a model that was trained in it has learnt the dialect: no class inheritance (so no exceptions of
one's own), no generators, no `del`, no properties, fewer modules, and no provided function may be called from `map`,
`filter` or a `key=`. There is no ToolError to catch; tool errors arrive as ValueError. Sleeping takes no time. After a
time or memory limit the variables are lost, where the default back end keeps them. The time limit counts what a worker
computes where the system tells (Linux), and time by the clock elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, cast

from seekling.config import SandboxConfig
from seekling.env.sandbox.child import Process
from seekling.env.sandbox.clock import seconds_to_look
from seekling.env.sandbox.hosting import HostCallError, call_host_function, raise_if_too_slow
from seekling.env.sandbox.interface import HostFunction, Outcome, Result, SandboxSession
from seekling.env.sandbox.wire import clean_text
from seekling.errors import InfrastructureError, MissingExtraError
from seekling.types import Json

_MAX_ERROR_CHARS = 4000
_MAX_SESSIONS = 256
_SPARE_CALLS = 100
_NO_LIMIT = 2**31
_COUNTS_CPU = sys.platform == "linux"
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
_INPUT_NAME = re.compile(r"<python-input-(\d+)>")
_BACKUP = "_provided_"
_LOST = "Its variables are lost."
_EXCEPTIONS = {
    cls.__name__: cls
    for cls in (
        ArithmeticError,
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        LookupError,
        NameError,
        OSError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    )
}


class _Worker(Protocol):
    """The part of a monty session that is used here."""

    @property
    def worker_pid(self) -> int | None: ...

    def feed_run(self, code: str, *, external_lookup: dict[str, object], print_callback: object) -> object: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...


class _TooMuchOutput(Exception):
    pass


class _TooManyCalls(Exception):
    pass


@dataclass(slots=True)
class _Turn:
    """The books of one program."""

    output_chars: int
    cpu_before_s: float = 0.0
    """What the worker had computed before."""
    started_s: float = field(default_factory=time.monotonic)
    hosting_s: float = 0.0
    host_calls: int = 0
    num_chars: int = 0
    pieces: list[str] = field(default_factory=list)
    failure: BaseException | None = None
    """What a host function raised that is not the program's business."""
    is_time_up: bool = False
    """The worker was killed, because the program had computed for too long."""

    def take(self, stream: str, text: str) -> None:
        room = self.output_chars - self.num_chars
        self.num_chars += len(text)
        if room > 0:
            self.pieces.append(text[:room])
        if len(text) > room:
            raise _TooMuchOutput(f"the output was cut after {self.output_chars} characters; print less")

    def wall_s(self) -> float:
        return time.monotonic() - self.started_s - self.hosting_s


class MontySandbox:
    """A pool of monty workers."""

    def __init__(self, config: SandboxConfig) -> None:
        """Start the pool.

        Raises:
            MissingExtraError: pydantic-monty is not installed.
        """
        try:
            import pydantic_monty
        except ImportError:
            raise MissingExtraError(
                'env.sandbox.backend = "monty" needs the package pydantic-monty: pip install "seekling[monty]"'
            ) from None
        self._config = config
        self._module = pydantic_monty
        self._lock = threading.Lock()
        self._sessions: set[MontySession] = set()
        self._is_closed = False
        self._pool = pydantic_monty.Monty(
            min_processes=1,
            max_processes=_MAX_SESSIONS,
            checkout_timeout=30.0,
            feed_duration_limit_grace=5.0,
        )
        self._pool.__enter__()

    @property
    def layers(self) -> tuple[str, ...]:
        """One wall: the interpreter itself."""
        return ("monty",)

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        """Start a session on a worker of its own."""
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox is closed")
            session = MontySession(self, self._config, functions)
            self._sessions.add(session)
        return session

    def close(self) -> None:
        """End every session and the workers."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        self._pool.__exit__(None, None, None)

    def __enter__(self) -> MontySandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self, session: MontySession) -> None:
        with self._lock:
            self._sessions.discard(session)

    def _check_out(self) -> tuple[_Worker, Process | None]:
        """Take a worker, and its process where its processor time can be had; the caller ends and closes them."""
        limits = {
            "max_feed_duration_secs": self._config.wall_limit_s if _COUNTS_CPU else self._config.soft_limit_s,
            "max_memory": self._config.memory_bytes,
            "max_suspensions": _NO_LIMIT,  # counted by the session, per program
        }
        policy = {"sleep": "zero", "random_start": {"seed": 0}}
        try:
            worker = cast(_Worker, self._pool.checkout(limits=limits, os_policy=policy))  # type: ignore[arg-type,unused-ignore]
            worker.__enter__()
            try:
                pid = worker.worker_pid if _COUNTS_CPU else None
                return worker, Process(os.pidfd_open(pid)) if pid is not None else None
            except OSError:  # out of descriptors, or it has ended
                worker.__exit__(None, None, None)
                raise
        except (self._module.MontyError, TimeoutError, OSError, RuntimeError) as error:
            raise InfrastructureError(f"the sandbox cannot open another session: {error}") from None


class MontySession:
    """One interpreter of the dialect."""

    def __init__(self, sandbox: MontySandbox, config: SandboxConfig, functions: Mapping[str, HostFunction]) -> None:
        self._sandbox = sandbox
        self._config = config
        self._functions = dict(functions)
        self._lock = threading.Lock()
        self._is_closed = False
        self._worker: _Worker | None = None
        self._process: Process | None = None
        self._program_of_feed: dict[int, int] = {}
        self._num_feeds = 0
        self._num_programs = 0

    def run(self, code: str) -> Result:
        """Run one program; see `SandboxSession.run`."""
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox session is closed")
            if self._worker is None:
                self._worker, self._process = self._sandbox._check_out()
                self._num_feeds = self._num_programs = 0
            turn = _Turn(self._config.output_chars, self._process.cpu_s() if self._process is not None else 0.0)
            self._num_programs += 1
            result: Result | None = None
            try:
                result = self._feed(self._worker, turn, code)
                if turn.is_time_up and not result.state_lost:  # it ended as the worker was killed
                    result = self._result(turn, "timeout", self._time_limit_text(turn), state_lost=True)
            finally:
                if result is None or result.state_lost or turn.failure is not None:
                    self._give_back()
            if turn.failure is not None:
                raise turn.failure
            return result

    def close(self) -> None:
        """Give the worker back; waits for a program that runs in another thread."""
        with self._lock:
            self._is_closed = True
            self._give_back()
        self._sandbox._forget(self)

    def _give_back(self) -> None:
        worker, self._worker = self._worker, None
        process, self._process = self._process, None
        if process is not None:
            process.close()
        if worker is not None:
            worker.__exit__(None, None, None)

    def _feed(self, worker: _Worker, turn: _Turn, code: str) -> Result:
        module = self._sandbox._module
        provided = {name: self._host_function(turn, name) for name in self._functions}
        lookup: dict[str, object] = {**provided, **{_BACKUP + name: f for name, f in provided.items()}}
        programs = [clean_text(code)]
        if self._num_programs > 1:  # an earlier program may have redefined what is looked up only when undefined
            programs.insert(0, "\n".join(f"{name} = {_BACKUP}{name}" for name in provided))
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(turn, over), daemon=True)
        watcher.start()
        try:
            for program in programs:
                self._program_of_feed[self._num_feeds] = self._num_programs
                self._num_feeds += 1
                worker.feed_run(program, external_lookup=lookup, print_callback=turn.take)
        except module.MontyCrashedError as error:
            if turn.is_time_up or error.timed_out:
                return self._result(turn, "timeout", self._time_limit_text(turn), state_lost=True)
            if any(name in str(error) for name in _FROM_OUTSIDE):
                raise InfrastructureError(
                    f"a program's worker was ended from outside ({error}), most likely because the machine ran out of "
                    "memory; the episode cannot go on"
                ) from None
            return self._result(turn, "crashed", f"The program crashed its interpreter. {_LOST}", state_lost=True)
        except (module.MontySyntaxError, module.MontyRuntimeError) as error:
            return self._explain(turn, error.exception(), error.display())
        finally:
            over.set()
            watcher.join()
        return self._result(turn, "ok", "", state_lost=False)

    def _watch(self, turn: _Turn, over: threading.Event) -> None:
        """Kill the worker when its program has computed for longer than it may."""
        if (process := self._process) is None:
            return
        while (left_s := self._config.soft_limit_s - (process.cpu_s() - turn.cpu_before_s)) > 0:
            if over.wait(seconds_to_look(left_s)):
                return
        turn.is_time_up = True
        process.signal(signal.SIGKILL)

    def _time_limit_text(self, turn: _Turn) -> str:
        limit_s, clock = self._config.soft_limit_s, "processor time"
        if not turn.is_time_up:
            limit_s, clock = (self._config.wall_limit_s if _COUNTS_CPU else limit_s), "time by the clock"
        return f"TimeLimitExceeded: stopped after {limit_s:g} s of {clock}. {_LOST}"

    def _explain(self, turn: _Turn, error: BaseException, display: str) -> Result:
        text = _INPUT_NAME.sub(lambda match: f"<program {self._program_of_feed.get(int(match[1]), 0)}>", display)
        has_frames = "\n  File " in text
        if turn.num_chars > turn.output_chars:
            return self._result(turn, "output_limit", text, state_lost=False)
        if turn.host_calls > self._config.max_host_calls + _SPARE_CALLS:
            text = f"Killed: more than {self._config.max_host_calls} calls of provided functions. {_LOST}"
            return self._result(turn, "protocol", text, state_lost=True)
        if isinstance(error, TimeoutError) and not has_frames:  # the limit's own; it stops anywhere, without a line
            return self._result(turn, "timeout", self._time_limit_text(turn), state_lost=True)
        if isinstance(error, MemoryError):
            return self._result(turn, "memory", f"{text}\n{_LOST}", state_lost=True)
        return self._result(turn, "error", text, state_lost=False)

    def _host_function(self, turn: _Turn, name: str) -> HostFunction:
        def function(*args: Json, **kwargs: Json) -> Json:
            turn.host_calls += 1
            if turn.host_calls > self._config.max_host_calls:
                if turn.host_calls > self._config.max_host_calls + _SPARE_CALLS:
                    raise _TooManyCalls
                raise RuntimeError(
                    f"more than {self._config.max_host_calls} calls of provided functions in one program"
                )
            started_s = time.monotonic()
            try:
                raise_if_too_slow(turn.hosting_s, self._config)
                arguments = json.loads(json.dumps([args, kwargs]))  # what the other back end passes, and nothing else
                value = call_host_function(self._functions, name, *arguments)
                result: Json = json.loads(json.dumps(value))
                return result
            except HostCallError as error:
                raise _EXCEPTIONS.get(error.kind, ValueError)(error.text) from None
            except BaseException as error:
                if isinstance(error, TypeError | ValueError | RecursionError):
                    raise
                turn.failure = error  # raised again once the program has ended
                raise RuntimeError("this function is out of order") from None
            finally:
                turn.hosting_s += time.monotonic() - started_s

        return function

    def _result(self, turn: _Turn, outcome: Outcome, error_text: str, *, state_lost: bool) -> Result:
        error_text = clean_text(error_text)[: min(_MAX_ERROR_CHARS, turn.output_chars)]
        stdout = clean_text("".join(turn.pieces))
        room = turn.output_chars - len(error_text)
        wall_s = turn.wall_s()
        return Result(
            stdout=stdout[:room],
            error_text=error_text,
            outcome=outcome,
            wall_s=wall_s,
            cpu_s=wall_s if self._process is None else self._process.cpu_s() - turn.cpu_before_s,
            host_calls=turn.host_calls,
            truncated=turn.num_chars > room,
            state_lost=state_lost,
        )
