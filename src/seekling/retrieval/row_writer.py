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
    Blocks are whole or absent: a part of one at the end, left by a crash, is cut off. Every block is thus computed at
    once: the last bits of a row of a matrix product depend on which rows are multiplied with it.

    Args:
        path: of the .npy file.
        shape: of the finished array.
        dtype: of its elements.
        block_rows: how many rows every `append` brings, the last one excepted.

    Raises:
        IndexMismatchError: the file that is there is another array.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic], block_rows: int) -> None:
        self._dtype, self._shape, self._block_rows = dtype, shape, block_rows
        header = _header(shape, dtype)
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        self._file = path.open("r+b" if path.exists() else "w+b")
        begin, size = self._file.read(len(header)), os.fstat(self._file.fileno()).st_size
        self.done: int = max(size - len(header), 0) // row_bytes
        if not header.startswith(begin) or self.done > shape[0]:
            self._file.close()
            raise IndexMismatchError(f"{path} was begun for another array; delete it and build again")
        if self.done < shape[0]:
            self.done -= self.done % block_rows
        self._file.seek(0)
        self._file.write(header)
        self._file.seek(len(header) + self.done * row_bytes)
        self._file.truncate()

    def append(self, rows: np.ndarray) -> None:
        """Write the next block; it is in the hands of the operating system when this returns."""
        assert rows.shape[1:] == self._shape[1:], f"rows of shape {rows.shape[1:]} instead of {self._shape[1:]}"
        wanted = min(self._block_rows, self._shape[0] - self.done)
        assert len(rows) == wanted, f"{len(rows)} rows instead of the next {wanted}"
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
