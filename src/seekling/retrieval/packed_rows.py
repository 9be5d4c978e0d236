"""Vectors on disk in int8 with a scale each, turned so that no dimension is larger than others.

Shape letters: B or C rows, D dimensions.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from seekling.errors import IndexMismatchError
from seekling.retrieval.store import load_array

ROWS, ROTATION = "vectors.rows.npy", "rotation.npy"
_CAN_ADVISE = sys.platform == "linux"
"""Whether the system can be told what will be read."""
_SEED = 0


def row_dtype(dimension: int) -> np.dtype[np.void]:
    """One row of the file: a scale, and the vector in whole steps of it."""
    return np.dtype([("scale", "<f4"), ("steps", "i1", (dimension,))])


def row_packer(folder: Path, dimension: int) -> Callable[[np.ndarray], np.ndarray]:
    """What makes rows of (B, D) vectors, by the rotation that lies in a folder; an empty folder gets one."""
    if not (folder / ROTATION).exists():
        normal_DD = np.random.default_rng(_SEED).normal(size=(dimension, dimension))
        rotation_DD = np.linalg.qr(normal_DD)[0].astype(np.float32)
        with (folder / f".{ROTATION}.partial").open("wb") as file:
            np.save(file, rotation_DD)
        (folder / f".{ROTATION}.partial").replace(folder / ROTATION)
    rotation_DD = load_array(folder / ROTATION)
    return lambda vectors_BD: pack_rows(vectors_BD @ rotation_DD)


def pack_rows(vectors_BD: np.ndarray) -> np.ndarray:
    """Round vectors to int8, each with its own scale; of rotated vectors this keeps inner products to about 3e-4."""
    rows_B = np.empty(len(vectors_BD), dtype=row_dtype(vectors_BD.shape[1]))
    scales_B = np.maximum(np.abs(vectors_BD).max(axis=1), np.finfo(np.float32).tiny) / 127
    rows_B["scale"] = scales_B
    rows_B["steps"] = np.rint(vectors_BD / scales_B[:, None])
    return rows_B


def unpack_rows(rows_B: np.ndarray) -> np.ndarray:
    """(B, D) float32 vectors of packed rows."""
    vectors_BD: np.ndarray = rows_B["steps"].astype(np.float32)
    vectors_BD *= rows_B["scale"][:, None]
    return vectors_BD


class PackedRows:
    """Packed rows of a file, read a few at a time. Safe to share between threads.

    Rows are read, not mapped: scattered ones of a map cost a fault each, and keep 64 KiB of the file in memory.

    Args:
        path: of the file.

    Raises:
        IndexMismatchError: it is missing or damaged; from the methods too, when it was cut meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                if version != (1, 0) or dtype.names != ("scale", "steps") or len(shape) != 1:
                    raise ValueError("these are no rows of a compressed index")
                self._start, size = file.tell(), file.seek(0, os.SEEK_END)
                if size != self._start + shape[0] * dtype.itemsize:
                    raise ValueError(f"{size} bytes, expected {self._start + shape[0] * dtype.itemsize}")
                self._file = os.dup(file.fileno())
        except (OSError, ValueError, EOFError) as error:
            raise IndexMismatchError(f"{path} is missing or damaged ({error}); rebuild the index") from None
        weakref.finalize(self, os.close, self._file)
        self._num_rows, self._dtype = int(shape[0]), dtype
        self.dimension: int = dtype["steps"].shape[0]

    def __len__(self) -> int:
        return self._num_rows

    def some(self, positions_C: np.ndarray) -> np.ndarray:
        """(C, D) float32 vectors at scattered positions, best given in rising order."""
        size, file = self._dtype.itemsize, self._file
        places = (self._start + positions_C.astype(np.int64) * size).tolist()
        if _CAN_ADVISE:
            for place in places:  # so that the disk fetches all of them at once, instead of one after the other
                os.posix_fadvise(file, place, size, os.POSIX_FADV_WILLNEED)
        return self._vectors(b"".join([os.pread(file, size, place) for place in places]), len(places))

    def scores(self, positions_C: np.ndarray, query_D: np.ndarray) -> np.ndarray:
        """(C,) float32 inner products with rows at scattered positions, best given in rising order."""
        score_rows = compiled_scores()
        if score_rows is None:
            products_C: np.ndarray = self.some(positions_C) @ query_D
            return products_C
        scores_C = np.empty(len(positions_C), dtype=np.float32)
        places_C = self._start + positions_C.astype(np.int64) * self._dtype.itemsize
        if score_rows(self._file, places_C, self._dtype.itemsize, query_D, scores_C) < len(places_C):
            raise self._cut()
        return scores_C

    def block(self, start: int, stop: int) -> np.ndarray:
        """(B, D) float32 vectors from one position to before another, or to the end."""
        num_rows, size = max(0, min(stop, len(self)) - start), self._dtype.itemsize
        return self._vectors(os.pread(self._file, num_rows * size, self._start + start * size), num_rows)

    def _vectors(self, raw: bytes, num_rows: int) -> np.ndarray:
        if len(raw) != num_rows * self._dtype.itemsize:
            raise self._cut()
        return unpack_rows(np.frombuffer(raw, dtype=self._dtype))

    def _cut(self) -> IndexMismatchError:
        return IndexMismatchError(f"{self._path} was cut while it was in use; rebuild the index")


@cache
def compiled_scores() -> Callable[..., int] | None:
    """`row_scores.score_rows`; None where numba is not installed, or the system lacks what it calls."""
    if not _CAN_ADVISE:
        return None
    try:
        from seekling.retrieval.row_scores import score_rows
    except ImportError:
        return None
    return score_rows
