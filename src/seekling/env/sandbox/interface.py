"""What every sandbox back end offers, and the result of one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, get_args

Outcome = Literal["ok", "error", "timeout", "memory", "output_limit", "crashed", "protocol"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)

HostFunction = Callable[..., object]
"""A function of the trainer that programs may call; it takes and returns JSON values. May be a coroutine function."""


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


class Sandbox(Protocol):
    """A source of sessions. Open it once; every method may be called from any thread."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The walls that stand, for the log and the run record; for instance seccomp, landlock, rlimits."""
        ...

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        """Start a session in which these functions can be called.

        Raises:
            InfrastructureError: no session could be started.
        """
        ...

    def close(self) -> None:
        """End all sessions. Safe to call twice."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
