"""Loops that numba compiles at first use, and keeps compiled where a folder can be written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Loop = TypeVar("Loop", bound=Callable[..., object])


def compile_loop(function: Loop, *, parallel: bool = False, **options: object) -> Loop:
    """Compile a function of numbers and numpy arrays.

    Args:
        function: that numba can compile. What its closure holds is part of its name in the cache: numbers only, since
            other compiled functions are named anew in every process. Those that it calls must be globals.
        parallel: share `prange` between threads.
        options: of `numba.njit`.

    Raises:
        ImportError: numba is not installed.
    """
    from numba import njit

    # Numba's cache takes the two for one.
    function.__qualname__ += ".parallel" if parallel else ".serial"
    options["parallel"] = parallel
    jit: Callable[..., Callable[[Loop], Loop]] = njit
    try:
        return jit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the compiled code can be written to
        return jit(**options)(function)
