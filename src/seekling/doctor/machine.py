"""Looks at the machine: what it has, what of it this process may use, and how fast it multiplies matrices.

Limits of a container (CPU affinity, cgroup quotas) count, because they are what a run will meet. torch is imported only
to measure speed and to ask for a GPU.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seekling.cores import cores_here, use_cores_here
from seekling.errors import MissingExtraError

_WANTED_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "bf16", "asimd")
_CGROUP = Path("/sys/fs/cgroup")
_WIDTH = 1536
"""Of the matrices that are multiplied."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is; a number of None could not be found out."""

    system: str
    python: str
    processor: str
    num_cores: float
    """Cores this process may use; a container's quota can be a fraction."""
    memory_bytes: int
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

    @property
    def is_bfloat16_faster(self) -> bool:
        """Whether bfloat16 is worth its rounding here."""
        return self.bfloat16_flops > self.float32_flops


def look_at_machine(cache_folder: Path) -> Machine:
    """Collect what can be known without measuring; the folder, of whose disk the room is told, need not exist yet."""
    cpu_info = _read(Path("/proc/cpuinfo"))
    features = _named(cpu_info, "flags|features").split()
    meminfo = _read(Path("/proc/meminfo"))  # in kB
    total, available = (1024 * (_number(_named(meminfo, name)) or 0) or None for name in ("MemTotal", "MemAvailable"))
    limit = _number(_read(_CGROUP / "memory.max"))
    if limit is not None and total is not None and limit < total:
        # Of what the container uses it gives up pages of files that were read when memory is short.
        cached = _number(_named(_read(_CGROUP / "memory.stat"), "inactive_file")) or 0
        used = max(0, (_number(_read(_CGROUP / "memory.current")) or 0) - cached)
        total, available = limit, min(available or limit, max(0, limit - used))
    existing = next(path for path in (cache_folder, *cache_folder.absolute().parents) if path.exists())
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        processor=_named(cpu_info, "model name") or platform.processor() or platform.machine(),
        num_cores=cores_here(),
        memory_bytes=total if total is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=available,
        processor_features=tuple(flag for flag in _WANTED_FLAGS if flag in features),
        cache_folder=str(cache_folder),
        cache_free_bytes=shutil.disk_usage(existing).free,
    )


def free_bytes(device: Literal["cpu", "cuda"], cache_folder: Path) -> int | None:
    """Memory that is free right now where a model is to be, on torch's current GPU for cuda; None where unknown."""
    if device == "cpu":
        return look_at_machine(cache_folder).available_bytes
    import torch

    return int(torch.cuda.mem_get_info()[0])


def measure_speed(*, rows: int = 1024, seconds: float = 0.4) -> Speed:
    """Time matrix products of the size that a small language model needs, and a read of a large array.

    Of each of the three measurements, which take so many seconds, the best repetition counts.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("measuring speed needs torch: pip install 'seekling[train]'") from None
    use_cores_here()

    def product_flops(dtype: torch.dtype) -> float:
        left, right = torch.ones(rows, _WIDTH, dtype=dtype), torch.ones(_WIDTH, _WIDTH, dtype=dtype)
        return 2.0 * rows * _WIDTH**2 / _best_time(lambda: torch.nn.functional.linear(left, right), seconds)

    big = torch.ones(64 * 1024 * 1024 // 4)
    return Speed(
        float32_flops=product_flops(torch.float32),
        bfloat16_flops=product_flops(torch.bfloat16),
        memory_bytes_per_s=big.numel() * 4 / _best_time(lambda: big.sum(), seconds),
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
        torch=torch.__version__,
    )


def _number(text: str) -> int | None:
    """The whole number that a text begins with; None for anything else, such as a cgroup's "max"."""
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) if found else None


def _named(text: str, name: str) -> str:
    """What stands behind a name in a text of /proc or of a cgroup, the first time; empty when it does not."""
    found = re.search(rf"^(?:{name})[\s:]+(.*)$", text, flags=re.MULTILINE | re.IGNORECASE)
    return found[1] if found else ""


def _best_time(work: Callable[[], object], seconds: float) -> float:
    work()  # the first call allocates
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
