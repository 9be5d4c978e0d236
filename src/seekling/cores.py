"""How many processors this process may use: a container's limits count, since they are what a run meets."""

from __future__ import annotations

import math
import os
import platform
from functools import cache
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")


@cache
def cores_here() -> float:
    """Cores that this process may use; a container's quota can be a fraction."""
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    try:
        mine = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return float(cores)
    return usable_cores(cores, mine, _CGROUPS)


def usable_cores(affinity: int, mine: str, cgroups: Path) -> float:
    """How many cores a process may use: its affinity, or less where a control group of it has a quota.

    `mine` is the text of /proc/self/cgroup: lines of "number:controllers:path", of version 2 "0::path". Inside a
    container the mount `cgroups` may be the process's own group, whatever its path says, so the groups above count too.
    """
    cores = float(affinity)
    for line in mine.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        below = PurePosixPath(path.lstrip("/"))
        for folder in (cgroups / controllers / group for group in (below, *below.parents)):
            quota, period = _read(folder / "cpu.max").partition(" ")[::2]
            if controllers:
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                cores = min(cores, int(quota) / int(period))
    return cores


def use_cores_here() -> None:
    """Keep torch from starting a thread for every core of a machine of which a container may use a few."""
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), math.ceil(cores_here())))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
