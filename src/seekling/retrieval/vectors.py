"""Unit vectors on disk: written block by block, read back, found again by their texts, and searched exactly.

Shape letters: B queries or texts, N rows, M some of them, D dimensions.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from seekling.errors import IndexMismatchError
from seekling.retrieval.encoders import Encoder
from seekling.retrieval.interface import EMPTY_RANKING, Ranking, best_of
from seekling.retrieval.store import load_array

EXACT = "vectors.npy"
"""float32, of an index that is searched exactly."""
HALF = "vectors.half.npy"
"""float16, of a compressed one."""
_BLOCK_ROWS = 4_096


class ExactVectors:
    """Ranks every row of an array, so that a missing passage is never the index's fault."""

    def __init__(self, vectors_ND: np.ndarray) -> None:
        self._vectors_ND = vectors_ND

    def nearest(self, queries_BD: np.ndarray, top_k: int, *, decimals: int) -> list[Ranking]:
        """Rank rows by inner product with each query; scores are rounded to `decimals`."""
        starts = range(0, len(self._vectors_ND), _BLOCK_ROWS)
        blocks = (self._vectors_ND[start : start + _BLOCK_ROWS] for start in starts)
        return nearest_in_blocks(blocks, queries_BD, top_k, decimals=decimals)


def nearest_in_blocks(
    blocks: Iterable[np.ndarray], queries_BD: np.ndarray, top_k: int, *, decimals: int
) -> list[Ranking]:
    """Rank the rows of all blocks, (N, D) each and numbered through, by inner product with each query.

    Scores are rounded to `decimals`. Per query `top_k`, or all rows where there are fewer.
    """
    best: list[Ranking] = [EMPTY_RANKING] * len(queries_BD)
    floor_B = np.full(len(queries_BD), -np.inf, np.float32)
    start = 0
    for block_ND in blocks:
        scores_NB = products(block_ND, queries_BD)
        # Rounding lifts a score by half a unit at most: whatever is a whole one below the k-th best stays out.
        rows, columns = np.nonzero(scores_NB >= floor_B - 10.0**-decimals)
        for query in np.unique(columns).tolist():
            rows_M = rows[columns == query]
            best[query] = best_of(
                np.concatenate([best[query].positions_K, rows_M + start]),
                np.concatenate([best[query].scores_K, np.round(scores_NB[rows_M, query], decimals)]),
                top_k,
            )
            if len(best[query].scores_K) >= top_k:
                floor_B[query] = best[query].scores_K[top_k - 1]
        start += len(block_ND)
    return best


def products(rows_ND: np.ndarray, queries_BD: np.ndarray) -> np.ndarray:
    """(N, B) float32 inner products of float32 rows and queries, by the library whose threads are at work already.

    That is torch where something has loaded it, such as the encoder of the queries: numpy's threads wait for more work
    by spinning on the cores that the encoder wants next, and a query took 105 ms instead of 7. torch takes no array
    that may not be written to.
    """
    torch = sys.modules.get("torch")
    if torch is None or not rows_ND.flags.writeable:
        return np.asarray(rows_ND @ queries_BD.T)
    found: np.ndarray = torch.mm(torch.from_numpy(rows_ND), torch.from_numpy(queries_BD).T).numpy()
    return found


class StoredVectors:
    """Vectors by the position of their passages, in the file of an exact index or of a compressed one."""

    def __init__(self, folder: Path) -> None:
        self._vectors_ND = load_array(folder / (HALF if (folder / HALF).exists() else EXACT))

    def blocks(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """The position of the first, and (B, D) float32, for all of them."""
        for start in range(0, len(self._vectors_ND), size):
            yield start, self._vectors_ND[start : start + size].astype(np.float32)

    def some(self, rows_B: np.ndarray) -> np.ndarray:
        """(B, D) float32 at scattered positions."""
        return np.asarray(self._vectors_ND[rows_B], np.float32)


class KnownVectors:
    """The vectors of an index by the texts that were encoded, one per row in order. Memory: 16 bytes a passage."""

    def __init__(self, folder: Path, texts: Iterable[str], num_texts: int) -> None:
        keys_N = np.fromiter((_key(text) for text in texts), dtype=np.uint64, count=num_texts)
        self._rows_N = np.argsort(keys_N, kind="stable")
        self._keys_N = keys_N[self._rows_N]
        self._vectors = StoredVectors(folder)

    def passages(self, texts: Sequence[str], encoder: Encoder) -> np.ndarray:
        """(B, D) float32 unit vectors of passages; only those that are not known are encoded."""
        keys_B = np.array([_key(text) for text in texts], dtype=np.uint64)
        places_B = np.minimum(np.searchsorted(self._keys_N, keys_B), len(self._keys_N) - 1)
        is_known_B = self._keys_N[places_B] == keys_B
        known_BD = self._vectors.some(self._rows_N[places_B[is_known_B]])
        vectors_BD = np.empty((len(texts), known_BD.shape[1]), dtype=np.float32)
        vectors_BD[is_known_B] = known_BD
        if not is_known_B.all():
            new = [text for text, is_known in zip(texts, is_known_B, strict=True) if not is_known]
            vectors_BD[~is_known_B] = encoder.passages(new)
        return vectors_BD


def _key(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class RowWriter:
    """Writes an .npy array of known shape from its first row to its last. Use as a context manager.

    What lies in the file already counts as done: whoever continues must bring the same rows again, from `done` on.
    Blocks of `block_rows` are whole or absent: a part of one, left by a crash, is cut off. Every block is thus computed
    at once: the last bits of a row of a matrix product depend on which rows are multiplied with it.

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
        """Write the next block, only the last of which may be shorter than the others."""
        wanted = min(self._block_rows, self._shape[0] - self.done)
        assert rows.shape == (wanted, *self._shape[1:]), f"rows {rows.shape} instead of the next {wanted}"
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
