"""What torch keeps in memory on a CPU, and what it does not.

The C library hands large freed blocks back to the system at once and asks for them again a moment later, each time with
pages full of zeros: a quarter of all CPU time in training (docs/LOG.md). So freed memory is kept between steps; where
learning ends, or when it has grown to gigabytes of ever new sizes, it goes back. And oneDNN compiles a kernel for every
new shape of a product, in some milliseconds and up to a megabyte: so sizes come in steps, and fewer are kept.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Names of glibc's malloc parameters (mallopt(3))."""
_NEVER_APART, _MOST_APART, _APART = 1 << 30, 1 << 25, 1 << 19
"""Bytes from which a block is mapped by itself: usually, in older C libraries, and where memory is short."""
KERNELS_KEPT = 256
"""Compiled matrix products of oneDNN: enough for the sizes of several packed rows in a row."""

STEP = 64
"""Tokens of a block of keys, and the step in which a path's lengths come: a kernel is compiled and kept for each."""


def up_to_step(num_tokens: int) -> int:
    """The next multiple of `STEP`."""
    return -(-num_tokens // STEP) * STEP


def in_steps(num_tokens: int) -> int:
    """The next larger size of a packed sequence: a power of two up to 16, then in steps of 16 to 64 tokens."""
    if num_tokens <= 16:
        return 1 << max(num_tokens - 1, 0).bit_length()
    step = 16 if num_tokens <= 256 else 32 if num_tokens <= 512 else 64
    return -(-num_tokens // step) * step


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks, where it offers that, and oneDNN fewer kernels; for the whole process.

    The second only before the process's first matrix product.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS_KEPT))
    _map_apart(_NEVER_APART)
    _libc("mallopt", _TRIM_THRESHOLD, (1 << 31) - 1)
    _libc("mallopt", _TOP_PAD, 64 << 20)


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Within, large blocks are mapped one by one and go back to the system at once, where the C library offers that.

    In the heap, what stays of each layer lies in holes that larger blocks have left, which then need new room.
    """
    _map_apart(_APART)
    try:
        yield
    finally:
        _map_apart(_NEVER_APART)


def _map_apart(num_bytes: int) -> None:
    if not _libc("mallopt", _MMAP_THRESHOLD, num_bytes):
        _libc("mallopt", _MMAP_THRESHOLD, _MOST_APART)


def release_free_memory() -> None:
    """Return freed memory to the system, where the C library offers that; using it again costs a second a gigabyte."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # blocks of other sizes can be made of it
    _libc("malloc_trim", 0)


def _libc(name: str, *numbers: int) -> int:
    try:
        return int(getattr(ctypes.CDLL(None), name)(*numbers))
    except (OSError, AttributeError, TypeError):  # not glibc: macOS, musl and Windows manage without
        return 0


def resident_bytes() -> int:
    """Memory of this process that is in use, freed blocks included; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
