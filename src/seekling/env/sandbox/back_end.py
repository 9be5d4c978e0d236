"""What every sandbox back end offers, and the result of one program."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self, get_args

from seekling.errors import InfrastructureError

Outcome = Literal["ok", "error", "timeout", "memory", "output_limit", "crashed", "protocol"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
STATE_LOST = "Its variables are lost."

HostFunction = Callable[..., object]
"""A function of the trainer that programs may call; it takes and returns JSON values. May be a coroutine function."""


class KillProgram(Exception):
    """The program must be killed; the message says so and why."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


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


class SandboxSession(Protocol):
    """One episode's interpreter: variables live from one `run` to the next."""

    def run(self, code: str) -> Result:
        """Run one program.

        Raises:
            InfrastructureError: the sandbox itself failed, or a host function raised InfrastructureError. Nothing is
                ever raised for what the program did.
        """
        ...

    def close(self) -> None:
        """End the session and its process. Safe to call twice."""
        ...


class Sandbox(abc.ABC):
    """A source of sessions and a context manager. Every method may be called from any thread."""

    layers: tuple[str, ...]
    """The walls that stand, for the log and the run record; for instance seccomp, landlock, rlimits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: set[SandboxSession] = set()
        self._is_closed = False

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        """Start a session in which these functions can be called.

        Raises:
            InfrastructureError: no session could be started.
        """
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("this sandbox is closed")
            session = self._new_session(functions)
            self._sessions.add(session)
        return session

    def close(self) -> None:
        """End all sessions. Safe to call twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        self._close_back_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abc.abstractmethod
    def _new_session(self, functions: Mapping[str, HostFunction]) -> SandboxSession: ...

    @abc.abstractmethod
    def _close_back_end(self) -> None: ...

    def _forget(self, session: SandboxSession) -> None:
        with self._lock:
            self._sessions.discard(session)
