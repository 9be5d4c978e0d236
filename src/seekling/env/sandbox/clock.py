"""The time limits of one program.

What counts is what its process computes, by the kernel's clock of that process: how busy the machine is makes no
difference. Time by the wall's clock has a limit too, a generous one, because a program that sleeps computes nothing.
"""

from __future__ import annotations

import os
import signal
import time

from seekling.config import SandboxConfig
from seekling.env.sandbox.child import Child

_SHORTEST_LOOK_S = 0.01
_REPEAT_CPU_S = 0.05
_REPEAT_WALL_S = 2.0
_GRACE_S = 5.0
"""By the wall's clock, for a program that was told to stop."""
_WHY = "the program did not stop at its time limit."
_CORES = os.cpu_count() or 1
"""How many seconds a process can compute in one, at most. A quota does not count: it may be used up in bursts."""


class TimeIsUp(Exception):
    """The program must be killed; the message says why."""


def seconds_to_look(left_cpu_s: float) -> float:
    """When to look at a process's clock again that may compute for so many seconds yet."""
    return max(_SHORTEST_LOOK_S, left_cpu_s / _CORES)


class TurnClock:
    """Watches one program: tells it to stop, by a signal that becomes an exception in it, and says when to kill it."""

    def __init__(self, config: SandboxConfig, child: Child, cpu_before_s: float) -> None:
        """Start the clock.

        Args:
            config: the limits.
            child: runs the program.
            cpu_before_s: what its process had computed before.
        """
        self._config = config
        self._child = child
        self._cpu_before_s = cpu_before_s
        self._started_s = time.monotonic()
        self.hosting_s = 0.0
        """Seconds inside the provided functions, which are not the program's."""
        self.was_told = False
        self._number = signal.SIGXCPU
        self._first_s = self._last_s = (0.0, 0.0)
        """When the program was told to stop, and told again: its CPU time and its wall time."""

    def cpu_s(self, total_s: float | None = None) -> float:
        """CPU seconds of the program; given those of its process over its whole life, where they are known."""
        return max(0.0, (self._child.cpu_s() if total_s is None else total_s) - self._cpu_before_s)

    def wall_s(self) -> float:
        """Seconds since the start, those inside the provided functions left out."""
        return time.monotonic() - self._started_s - self.hosting_s

    def look(self) -> float:
        """Do what the time demands.

        Returns:
            Seconds until the next look, at most.

        Raises:
            TimeIsUp: the program was told to stop, and did not.
        """
        config, now_s = self._config, (self.cpu_s(), self.wall_s())
        if not self.was_told:
            left_cpu_s, left_wall_s = config.soft_limit_s - now_s[0], config.wall_limit_s - now_s[1]
            if min(left_cpu_s, left_wall_s) > 0:
                return min(seconds_to_look(left_cpu_s), max(_SHORTEST_LOOK_S, left_wall_s))
            self.was_told = True
            self._number = signal.SIGXCPU if left_cpu_s <= 0 else signal.SIGALRM
            self._first_s = now_s
            self._tell(now_s)
        elif now_s[0] - self._first_s[0] >= config.hard_limit_s - config.soft_limit_s:
            raise TimeIsUp(f"Killed after {config.hard_limit_s:g} s of processor time: {_WHY}")
        elif now_s[1] - self._first_s[1] >= _GRACE_S:
            raise TimeIsUp(f"Killed after {now_s[1]:.0f} s by the clock, sleeping included: {_WHY}")
        # Again and again, because a program can catch the exception, or sit in a call of ours that must not be cut.
        elif now_s[0] - self._last_s[0] >= _REPEAT_CPU_S or now_s[1] - self._last_s[1] >= _REPEAT_WALL_S:
            self._tell(now_s)
        return _SHORTEST_LOOK_S

    def _tell(self, now_s: tuple[float, float]) -> None:
        self._last_s = now_s
        self._child.signal(self._number)
