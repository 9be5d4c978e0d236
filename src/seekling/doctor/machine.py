"""Looks at the machine: what it has, what of it this process may use, and how fast it multiplies matrices.

Limits of a container (CPU affinity, cgroup quotas) count, because they are what a run will meet. torch is imported only
to measure speed and to ask for a GPU.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seekling.cores import cores_here, use_cores_here
from seekling.errors import MissingExtraError

_WANTED_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "bf16", "asimd")
_CGROUP = Path("/sys/fs/cgroup")
_STAT = Path("/proc/stat")
BUSY_SHARE = 0.15
"""Of the cores in use: below it, others are the system's own small work."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is; numbers of None could not be found out."""

    system: str
    python: str
    processor: str
    num_cores: float
    """Cores this process may use; a container's quota can be a fraction."""
    memory_bytes: int | None
    """What this process may use at most: the machine's memory or the container's limit."""
    available_bytes: int | None
    """What is free right now."""
    processor_features: tuple[str, ...]
    """The instruction sets that matter for matrix products."""
    cache_folder: str
    cache_free_bytes: int
    """Disk space left where models are cached."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured on this machine just now."""

    float32_flops: float
    """Floating-point operations per second in a float32 matrix product."""
    bfloat16_flops: float
    memory_bytes_per_s: float
    """Of reading a large array: what bounds generating one token at a time."""
    gpus: tuple[str, ...]
    torch: str
    num_threads: int = 1
    """That torch measured with, and will run with."""
    cores_of_others: float = 0.0
    """Cores that other processes kept busy meanwhile, of those that this one may use."""

    @property
    def is_bfloat16_faster(self) -> bool:
        """Whether bfloat16 is worth its rounding here."""
        return self.bfloat16_flops > self.float32_flops

    @property
    def is_machine_busy(self) -> bool:
        """Whether others took so much that everything here may be faster than it was measured."""
        return self.cores_of_others > BUSY_SHARE * self.num_threads


def look_at_machine(cache_folder: Path) -> Machine:
    """Collect what can be known without measuring; the folder, of whose disk the room is told, need not exist yet."""
    cpu_info = _read(Path("/proc/cpuinfo"))
    total, available = memory_of(_read(Path("/proc/meminfo")))
    limit = number_or_none(_read(_CGROUP / "memory.max"))
    if limit is not None and total is not None and limit < total:
        total = limit
        used = used_of(_read(_CGROUP / "memory.current"), _read(_CGROUP / "memory.stat"))
        available = min(available or limit, max(0, limit - used))
    existing = next(path for path in (cache_folder, *cache_folder.absolute().parents) if path.exists())
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        processor=processor_name(cpu_info) or platform.processor() or platform.machine(),
        num_cores=cores_here(),
        memory_bytes=total if total is not None else _memory_by_sysconf(),
        available_bytes=available,
        processor_features=processor_features(cpu_info),
        cache_folder=str(cache_folder),
        cache_free_bytes=shutil.disk_usage(existing).free,
    )


def free_bytes(device: Literal["cpu", "cuda"], cache_folder: Path) -> int | None:
    """Memory that is free right now where a model is to be, on torch's current GPU for cuda; None where unknown."""
    if device == "cpu":
        return look_at_machine(cache_folder).available_bytes
    import torch

    return int(torch.cuda.mem_get_info()[0])


def measure_speed(*, rows: int = 1024, inner: int = 1536, columns: int = 1536, seconds: float = 0.4) -> Speed:
    """Time matrix products of the size that a small language model needs, and a read of a large array.

    Args:
        rows: of the left matrix.
        inner: columns of the left matrix and rows of the right one.
        columns: of the right matrix.
        seconds: time given to each of the three measurements; the best repetition counts.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("measuring speed needs torch: pip install 'seekling[train]'") from None
    use_cores_here()

    def product_flops(dtype: torch.dtype) -> float:
        left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(columns, inner, dtype=dtype)
        return 2.0 * rows * inner * columns / _best_time(lambda: torch.nn.functional.linear(left, right), seconds)

    big = torch.ones(64 * 1024 * 1024 // 4)
    cores = os.sched_getaffinity(0) if platform.system() == "Linux" else set[int]()
    stat, started, own_s = _read(_STAT), time.perf_counter(), time.process_time()
    float32, bfloat16 = product_flops(torch.float32), product_flops(torch.bfloat16)
    memory = big.numel() * 4 / _best_time(lambda: big.sum(), seconds)
    wall_s, own_s = time.perf_counter() - started, time.process_time() - own_s
    all_s = busy_seconds(_read(_STAT), cores) - busy_seconds(stat, cores)
    return Speed(
        float32_flops=float32,
        bfloat16_flops=bfloat16,
        memory_bytes_per_s=memory,
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
        torch=torch.__version__,
        num_threads=torch.get_num_threads(),
        cores_of_others=max(0.0, all_s - own_s) / wall_s,
    )


def busy_seconds(stat: str, cores: Iterable[int]) -> float:
    """Return how long some cores have been busy since the machine started, by the text of /proc/stat; 0 if it is empty.

    Time that a hypervisor gave to other machines counts: it is as lost as that of other processes.
    """
    wanted = {f"cpu{core}" for core in cores}
    rows = [line.split() for line in stat.splitlines() if line.split(" ", 1)[0] in wanted]
    # user nice system idle iowait irq softirq steal; what guests use is in user already
    ticks = sum(int(number) for row in rows for place, number in enumerate(row[1:9]) if place not in (3, 4))
    return ticks / os.sysconf("SC_CLK_TCK") if rows else 0.0


def memory_of(meminfo: str) -> tuple[int | None, int | None]:
    """Return total and available bytes from the text of /proc/meminfo."""
    values: Mapping[str, str] = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)

    def in_bytes(name: str) -> int | None:
        words = values.get(name, "").split()
        return int(words[0]) * 1024 if words and words[0].isdigit() else None

    return in_bytes("MemTotal"), in_bytes("MemAvailable")


def used_of(current: str, stat: str) -> int:
    """Return what a cgroup uses and would not give up, in bytes; 0 where it does not say.

    Args:
        current: text of memory.current, in which pages of files that were read count as used.
        stat: text of memory.stat; the pages that it calls inactive are dropped when memory is short.
    """
    values = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
    cached = number_or_none(values.get("inactive_file", "")) or 0
    return max(0, (number_or_none(current) or 0) - cached)


def processor_name(cpu_info: str) -> str:
    """Return the model name from the text of /proc/cpuinfo, or an empty string."""
    names = [line.split(":", 1)[1].strip() for line in cpu_info.splitlines() if line.startswith("model name")]
    return names[0] if names else ""


def processor_features(cpu_info: str) -> tuple[str, ...]:
    """Return those instruction sets of /proc/cpuinfo that matter for matrix products."""
    for line in cpu_info.splitlines():
        if line.lower().startswith(("flags", "features")):
            words = set(line.split(":", 1)[1].split())
            return tuple(flag for flag in _WANTED_FLAGS if flag in words)
    return ()


def number_or_none(text: str) -> int | None:
    """Return a whole number written in a file, or None for anything else, such as cgroup's "max"."""
    return int(text) if text.strip().isdigit() else None


def _best_time(work: Callable[[], object], seconds: float) -> float:
    work()  # the first call allocates
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _memory_by_sysconf() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
