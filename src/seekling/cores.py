"""How many processors this process may use: a container's limits count, since they are what a run meets."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def cores_here() -> float:
    """Cores that this process may use; a container's quota can be a fraction."""
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    try:
        return usable_cores(cores, _CPU_MAX.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return float(cores)


def usable_cores(affinity: int, cpu_max: str) -> float:
    """Return how many cores a process may use: its affinity, or less where a cgroup has a quota.

    Args:
        affinity: cores the scheduler may put it on.
        cpu_max: text of cgroup's cpu.max, "quota period" in microseconds or "max period"; empty where there is none.
    """
    quota, _, period = cpu_max.strip().partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return min(float(affinity), int(quota) / int(period))
    return float(affinity)
