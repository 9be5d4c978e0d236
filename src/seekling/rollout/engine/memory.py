"""What happens to memory that torch frees on a CPU.

The C library hands large freed blocks back to the system at once and asks for them again a moment later; each time the
kernel fills every page with zeros. In training that is a quarter of all CPU time (docs/LOG.md). So freed memory is kept
between steps. But sampling and learning take turns, and each leaves behind gigabytes in sizes that the other does not
want: where they change over, what is free goes back.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Names of glibc's malloc parameters (mallopt(3))."""


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks for the next allocation; for the whole process, where it offers that."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        libc.mallopt(_TOP_PAD, 64 << 20)
    except (OSError, AttributeError, TypeError):  # not glibc: macOS, musl and Windows manage without
        return


def release_free_memory() -> None:
    """Return freed memory to the system, where the C library offers that; a few milliseconds, and the next use pays."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return
