"""The time limits of one program.

What counts is what its process computes, by the kernel's clock of that process: how busy the machine is makes no
difference. Time by the wall's clock has a limit too, a generous one, because a program that sleeps computes nothing.
"""

from __future__ import annotations

import os
import signal

from seekling.env.sandbox.back_end import KillProgram
from seekling.env.sandbox.child import Child
from seekling.env.sandbox.hosting import ProgramRun

_SHORTEST_WAIT_S = 0.01
_REPEAT_CPU_S = 0.05
_REPEAT_WALL_S = 2.0
_GRACE_S = 5.0
"""By the wall's clock, for a program that was told to stop."""
_WHY = "the program did not stop at its time limit."
_CORES = os.cpu_count() or 1
"""How many seconds a process can compute in one, at most. A quota does not count: it may be used up in bursts."""


def seconds_to_check(left_cpu_s: float) -> float:
    """When to read a process's clock again that may compute for this many seconds yet."""
    return max(_SHORTEST_WAIT_S, left_cpu_s / _CORES)


class ProgramClock:
    """Watches one program: tells it to stop, by a signal that becomes an exception in it, and says when to kill it."""

    def __init__(self, run: ProgramRun, child: Child, cpu_before_s: float) -> None:
        """Watch a program that has just started.

        Args:
            run: the program.
            child: its process.
            cpu_before_s: what that had computed before.
        """
        self._run = run
        self._child = child
        self._cpu_before_s = cpu_before_s
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
        """Do what the time demands.

        Returns:
            Seconds until the next check, at most.

        Raises:
            KillProgram: the program was told to stop, and did not.
        """
        config, cpu_s, wall_s = self._run.config, self.cpu_s(), self._run.wall_s()
        if self._first_s is None:
            left_cpu_s, left_wall_s = config.soft_limit_s - cpu_s, config.wall_limit_s - wall_s
            if min(left_cpu_s, left_wall_s) > 0:
                return min(seconds_to_check(left_cpu_s), max(_SHORTEST_WAIT_S, left_wall_s))
            self._signal = signal.SIGXCPU if left_cpu_s <= 0 else signal.SIGALRM
            self._first_s = (cpu_s, wall_s)
        elif cpu_s - self._first_s[0] >= config.hard_limit_s - config.soft_limit_s:
            raise KillProgram("timeout", f"Killed after {config.hard_limit_s:g} s of processor time: {_WHY}")
        elif wall_s - self._first_s[1] >= _GRACE_S:
            raise KillProgram("timeout", f"Killed after {wall_s:.0f} s by the clock, sleeping included: {_WHY}")
        # Again and again, because a program can catch the exception, or sit in a call of ours that must not be cut.
        elif cpu_s - self._last_s[0] < _REPEAT_CPU_S and wall_s - self._last_s[1] < _REPEAT_WALL_S:
            return _SHORTEST_WAIT_S
        self._last_s = (cpu_s, wall_s)
        self._child.signal(self._signal)
        return _SHORTEST_WAIT_S
