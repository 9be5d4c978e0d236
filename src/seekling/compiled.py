"""Loops that numba compiles at first use, and keeps compiled where a folder can be written to."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import TypeVar, cast

import numpy as np

Loop = TypeVar("Loop", bound=Callable[..., object])


def compile_loop(function: Loop, *, parallel: bool = False, **options: object) -> Loop:
    """Compile a function of numbers and numpy arrays; `parallel` shares `prange` between threads.

    Its closure may hold numbers only, which are part of its name in the cache; functions that it calls must be globals.

    Raises:
        ImportError: numba is not installed.
    """
    from numba import njit

    # Numba's cache key ignores `parallel` and every file but the loop's own.
    function.__qualname__ += (".parallel." if parallel else ".serial.") + _fingerprint(cast(FunctionType, function))
    options["parallel"] = parallel
    jit: Callable[..., Callable[[Loop], Loop]] = njit
    try:
        return jit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the compiled code can be written to
        return jit(**options)(function)


def _fingerprint(function: FunctionType) -> str:
    """Of all that a loop takes from globals: numbers, and the files of what it calls, as they are now."""
    found, seen, waiting = set(), {function}, [function]
    while waiting:
        each = waiting.pop()
        for name in each.__code__.co_names:
            value = each.__globals__.get(name)
            # A compiled function's is `py_func`, an intrinsic's `_defn`.
            called = getattr(value, "py_func", None) or getattr(value, "_defn", None)
            if isinstance(called, FunctionType) and called not in seen:
                state = Path(called.__code__.co_filename).stat()
                found.add(f"{called.__module__}.{called.__qualname__} {state.st_mtime_ns} {state.st_size}")
                seen.add(called)
                waiting.append(called)
            elif isinstance(value, (int, float, np.generic)):
                found.add(f"{name} {value!r}")
    return sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]
