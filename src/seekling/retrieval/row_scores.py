"""Scores of packed rows that are scattered over a file, in a compiled loop; only for where numba is installed.

They are read and multiplied in one loop: a Python call for each would take longer than reading it.

Shape letters: C rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba.core import types

from seekling.compiled import compile_loop

_WILL_NEED = 3
"""Linux's POSIX_FADV_WILLNEED: the disk fetches all rows at once, instead of one after the other."""
# Both are libc's. A pointer is passed as the whole number it is.
_READ_TYPES = types.intp(types.intc, types.uintp, types.uintp, types.int64)
_ADVISE_TYPES = types.intc(types.intc, types.int64, types.int64, types.intc)
_pread: Callable[..., int] = types.ExternalFunction("pread", _READ_TYPES)
_posix_fadvise: Callable[..., int] = types.ExternalFunction("posix_fadvise", _ADVISE_TYPES)


def _score_rows(  # type: ignore[no-untyped-def]
    file, places_C, row_bytes, query_D, scores_C
):  # pragma: no cover - compiled
    for place in places_C:
        _posix_fadvise(file, place, row_bytes, _WILL_NEED)
    raw = np.empty(row_bytes, np.uint8)
    scale, steps = raw[:4].view(np.float32), raw[4:].view(np.int8)
    for c in range(len(places_C)):
        if _pread(file, raw.ctypes.data, row_bytes, places_C[c]) != row_bytes:
            return c
        total = np.float32(0)
        for d in range(row_bytes - 4):
            total += np.float32(steps[d]) * query_D[d]
        scores_C[c] = total * scale[0]
    return len(places_C)


score_rows: Callable[[int, np.ndarray, int, np.ndarray, np.ndarray], int] = compile_loop(
    _score_rows, nogil=True, fastmath={"reassoc", "contract"}
)
"""Score rows by a query.

Args:
    file: descriptor.
    places_C: (C,) int64, where rows begin.
    row_bytes: of a row: a float32 scale and D int8 steps.
    query_D: (D,) float32, contiguous.
    scores_C: (C,) float32, room for the scores.

Returns:
    How many rows could be read.
"""
