"""Appends rows to an .npy file whose length is known in advance, and goes on where an interrupted run stopped."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from types import TracebackType

import numpy as np

from seekling.errors import IndexMismatchError


class RowWriter:
    """Writes one array from its first row to its last. Use as a context manager.

    What lies in the file already counts as done: whoever continues must bring the same rows again, from `done` on.
    Rows are whole or absent: half a row at the end, left by a crash, is cut off.

    Args:
        path: of the .npy file.
        shape: of the finished array.
        dtype: of its elements.

    Raises:
        IndexMismatchError: the file that is there is another array.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._dtype, self._shape = dtype, shape
        header = _header(shape, dtype)
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        self._file = path.open("r+b" if path.exists() else "w+b")
        begin, size = self._file.read(len(header)), os.fstat(self._file.fileno()).st_size
        self.done: int = max(size - len(header), 0) // row_bytes
        if not header.startswith(begin) or self.done > shape[0]:
            self._file.close()
            raise IndexMismatchError(f"{path} was begun for another array; delete it and build again")
        self._file.seek(0)
        self._file.write(header)
        self._file.seek(len(header) + self.done * row_bytes)
        self._file.truncate()

    def append(self, rows: np.ndarray) -> None:
        """Write the next rows; they are in the hands of the operating system when this returns."""
        assert rows.shape[1:] == self._shape[1:], f"rows of shape {rows.shape[1:]} instead of {self._shape[1:]}"
        assert self.done + len(rows) <= self._shape[0], f"more than {self._shape[0]} rows"
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).tobytes())
        self._file.flush()
        self.done += len(rows)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        assert error is not None or self.done == self._shape[0], f"{self.done} rows came instead of {self._shape[0]}"


def _header(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> bytes:
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()
