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
from collections.abc import Mapping
from typing import Protocol, cast

from seekling.config import SandboxConfig
from seekling.env.sandbox.back_end import HostFunction, KillProgram, Result, Sandbox, SandboxSession
from seekling.env.sandbox.child import Process
from seekling.env.sandbox.clock import seconds_to_check
from seekling.env.sandbox.frames import clean_text
from seekling.env.sandbox.hosting import HostCallError, ProgramRun
from seekling.errors import InfrastructureError, MissingExtraError
from seekling.types import Json

_MAX_ERROR_CHARS = 4000
_MAX_SESSIONS = 256
_NO_LIMIT = 2**31
_COUNTS_CPU = sys.platform == "linux"
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
_INPUT_NAME = re.compile(r"<python-input-(\d+)>")
_BACKUP = "_provided_"
# fmt: off
_EXCEPTIONS = {cls.__name__: cls for cls in (
    ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, LookupError, NameError, OSError,
    OverflowError, RuntimeError, TypeError, ValueError, ZeroDivisionError,
)}
# fmt: on


class _Worker(Protocol):
    """The part of a monty session that is used here."""

    @property
    def worker_pid(self) -> int | None: ...

    def feed_run(self, code: str, *, external_lookup: dict[str, object], print_callback: object) -> object: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...


class _TooMuchOutput(Exception):
    pass


class MontySandbox(Sandbox):
    """A pool of monty workers."""

    layers = ("monty",)

    def __init__(self, config: SandboxConfig) -> None:
        """Start the pool.

        Raises:
            MissingExtraError: pydantic-monty is not installed.
        """
        super().__init__()
        try:
            import pydantic_monty
        except ImportError:
            raise MissingExtraError(
                'env.sandbox.backend = "monty" needs the package pydantic-monty: pip install "seekling[monty]"'
            ) from None
        self._config = config
        self._module = pydantic_monty
        self._pool = pydantic_monty.Monty(
            min_processes=1, max_processes=_MAX_SESSIONS, checkout_timeout=30.0, feed_duration_limit_grace=5.0
        )
        self._pool.__enter__()

    def _new_session(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        return MontySession(self, self._config, functions)

    def _close_back_end(self) -> None:
        self._pool.__exit__(None, None, None)

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


class _MontyRun(ProgramRun):
    """One program, and the processor time of the worker that runs it."""

    def __init__(self, config: SandboxConfig, functions: Mapping[str, HostFunction], process: Process | None) -> None:
        super().__init__(config, functions)
        self.process = process
        self.cpu_before_s = process.cpu_s() if process is not None else 0.0
        self.failure: BaseException | None = None
        """What a host function raised that is not the program's business."""
        self.kill: KillProgram | None = None
        self.is_time_up = False
        """The worker was killed, because the program had computed for too long."""

    def take_output(self, stream: str, text: str) -> None:
        self.add_output(clean_text(text))
        if self.num_chars > self.config.output_chars:
            raise _TooMuchOutput(f"the output was cut after {self.config.output_chars} characters; print less")

    def cpu_s(self) -> float:
        return self.wall_s() if self.process is None else self.process.cpu_s() - self.cpu_before_s

    def watch(self, over: threading.Event) -> None:
        """Kill the worker when its program has computed for longer than it may."""
        if self.process is None:
            return
        while (left_s := self.config.soft_limit_s - self.cpu_s()) > 0:
            if over.wait(seconds_to_check(left_s)):
                return
        self.is_time_up = True
        self.process.signal(signal.SIGKILL)

    def timeout(self) -> Result:
        limit_s, clock = self.config.soft_limit_s, "processor time"
        if not self.is_time_up:
            limit_s, clock = (self.config.wall_limit_s if _COUNTS_CPU else limit_s), "time by the clock"
        text = f"TimeLimitExceeded: stopped after {limit_s:g} s of {clock}."
        return self.result("timeout", text, self.cpu_s(), state_lost=True)

    def host_function(self, name: str) -> HostFunction:
        def function(*args: Json, **kwargs: Json) -> Json:
            arguments = json.loads(json.dumps([args, kwargs]))  # what the other back end passes, and nothing else
            try:
                return cast(Json, json.loads(self.call(name, *arguments)))
            except HostCallError as error:
                raise _EXCEPTIONS.get(error.kind, ValueError)(error.text) from None
            except KillProgram as error:
                self.kill = error
                raise
            except BaseException as error:
                self.failure = error  # raised again once the program has ended
                raise RuntimeError("this function is out of order") from None

        return function


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
        self._program_of_feed: list[int] = []
        """Monty numbers what it is fed, which is sometimes two a program."""
        self._num_programs = 0

    def run(self, code: str) -> Result:
        """Run one program; see `SandboxSession.run`."""
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox session is closed")
            if self._worker is None:
                self._worker, self._process = self._sandbox._check_out()
                self._program_of_feed, self._num_programs = [], 0
            run = _MontyRun(self._config, self._functions, self._process)
            self._num_programs += 1
            result: Result | None = None
            try:
                result = self._feed(self._worker, run, code)
                if run.is_time_up and not result.state_lost:  # it ended as the worker was killed
                    result = run.timeout()
            finally:
                if result is None or result.state_lost or run.failure is not None:
                    self._give_back()
            if run.failure is not None:
                raise run.failure
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

    def _feed(self, worker: _Worker, run: _MontyRun, code: str) -> Result:
        module = self._sandbox._module
        provided = {name: run.host_function(name) for name in self._functions}
        lookup: dict[str, object] = {**provided, **{_BACKUP + name: f for name, f in provided.items()}}
        programs = [clean_text(code)]
        if self._num_programs > 1:  # an earlier program may have redefined what is looked up only when undefined
            programs.insert(0, "\n".join(f"{name} = {_BACKUP}{name}" for name in provided))
        over = threading.Event()
        watcher = threading.Thread(target=run.watch, args=(over,), daemon=True)
        watcher.start()
        try:
            for program in programs:
                self._program_of_feed.append(self._num_programs)
                worker.feed_run(program, external_lookup=lookup, print_callback=run.take_output)
        except module.MontyCrashedError as error:
            if run.is_time_up or error.timed_out:
                return run.timeout()
            if any(name in str(error) for name in _FROM_OUTSIDE):
                raise InfrastructureError(
                    f"a program's worker was ended from outside ({error}), most likely because the machine ran out of "
                    "memory; the episode cannot go on"
                ) from None
            return run.result("crashed", "The program crashed its interpreter.", run.cpu_s(), state_lost=True)
        except (module.MontySyntaxError, module.MontyRuntimeError) as error:
            return self._explain(run, error.exception(), error.display())
        finally:
            over.set()
            watcher.join()
        return run.result("ok", "", run.cpu_s(), state_lost=False)

    def _explain(self, run: _MontyRun, error: BaseException, display: str) -> Result:
        text = _INPUT_NAME.sub(lambda match: f"<program {self._program_of_feed[int(match[1])]}>", display)
        text = clean_text(text)[:_MAX_ERROR_CHARS]
        if run.num_chars > self._config.output_chars:
            return run.result("output_limit", text, run.cpu_s(), state_lost=False)
        if run.kill is not None:
            return run.result(run.kill.outcome, str(run.kill), run.cpu_s(), state_lost=True)
        if (
            isinstance(error, TimeoutError) and "\n  File " not in text
        ):  # the limit's own stops anywhere, without a line
            return run.timeout()
        is_lost = isinstance(error, MemoryError)
        return run.result("memory" if is_lost else "error", text, run.cpu_s(), state_lost=is_lost)
