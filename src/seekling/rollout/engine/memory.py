"""Giving freed memory back to the system.

Sampling and learning take turns; each leaves behind gigabytes of freed blocks in sizes that the other does not want.
The C library keeps them; without a nudge the process grows to the sum of both.
"""

from __future__ import annotations

import ctypes


def release_free_memory() -> None:
    """Return freed memory to the system, where the C library offers that; a few milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc: macOS, musl and Windows manage without
        return
