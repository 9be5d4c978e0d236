"""Dense search over millions of passages on a small machine: short codes in memory, all vectors on disk.

`vectors.half.npy` holds every vector in float16 and stays on disk. `codes.faiss` is read into memory: an inverted file
whose lists hold 64 times 4 bits a passage, the product quantisation of a vector's residual to its list's centroid,
after a rotation to principal components. A query looks at some of the lists, and the best by their codes are scored
again from their vectors: which passages are looked at is approximate, their scores are not.

Source: product quantisation (Jegou et al., TPAMI 2011), its parametric rotation (Ge et al., CVPR 2013) and the scan in
registers (arXiv:1704.07355), as faiss implements them (PCAMatrix, IndexIVFPQFastScan).
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from seekling.errors import IndexMismatchError, MissingExtraError
from seekling.retrieval.interface import Ranking, best_of
from seekling.retrieval.store import load_array
from seekling.retrieval.vectors import HALF, nearest_in_blocks, products

CODES = "codes.faiss"

_LISTS_PER_ROOT = 2
_SAMPLES_PER_LIST = 40
_MAX_SAMPLES = 1 << 17
"""Vectors that centroids and codes are fitted to: 0.4 GB at 768 dimensions, whatever the size of the index."""
_MIN_SAMPLES_PER_DIMENSION = 2
"""Of fewer passages some are taken twice: principal components need more vectors than there are dimensions."""
_BLOCK_ROWS = 16_384
_PARTS = 64
_PROBED_SHARE = 0.5
"""Of the lists."""
_CANDIDATES_PER_HIT = 16
_CANDIDATES_PER_ROOT = 24
_MAX_CANDIDATES = 3072
"""24 N^(1/3) passages are scored again, but no more than this."""
_SHARE_TO_READ_ALL = 1 / 8
_SEED = 0


def build_codes(folder: Path, *, report: Callable[[int], None] = lambda done: None) -> None:
    """Make `codes.faiss` of the finished vectors in a folder, block by block; `report` is told how many are done.

    Raises:
        MissingExtraError: faiss is not installed.
        IndexMismatchError: the vectors are missing or cut.
    """
    faiss = import_faiss()
    rows_ND = load_array(folder / HALF)
    num_rows, dimension = rows_ND.shape
    num_lists = max(1, min(math.isqrt(_LISTS_PER_ROOT**2 * num_rows), num_rows // _SAMPLES_PER_LIST))
    num_samples = min(num_rows, _MAX_SAMPLES, max(_SAMPLES_PER_LIST * num_lists, 1024))
    chosen = np.sort(np.random.default_rng(_SEED).choice(num_rows, num_samples, replace=False))
    chosen = np.resize(chosen, max(num_samples, _MIN_SAMPLES_PER_DIMENSION * dimension))
    sample_SD = rows_ND[chosen].astype(np.float32)
    part_size = max(1, dimension // _PARTS)
    turn = faiss.PCAMatrix(dimension, dimension // part_size * part_size)
    turn.balanced_bins = dimension // part_size
    turn.train(sample_SD)
    turn.have_bias = False  # Inner products are wanted of the vectors, not of what they are beside their mean.
    lists = faiss.IndexIVFPQFastScan(
        faiss.IndexFlatIP(turn.d_out), turn.d_out, num_lists, turn.balanced_bins, 4, faiss.METRIC_INNER_PRODUCT
    )
    lists.by_residual = True
    lists.cp.min_points_per_centroid = lists.pq.cp.min_points_per_centroid = 1
    lists.train(turn.apply(sample_SD))
    codes = faiss.IndexPreTransform(turn, lists)
    for start in range(0, num_rows, _BLOCK_ROWS):
        codes.add(rows_ND[start : start + _BLOCK_ROWS].astype(np.float32))
        report(codes.ntotal)
    partial = folder / f".{CODES}.partial"
    faiss.write_index(codes, str(partial))
    partial.replace(folder / CODES)


class _Codes(Protocol):
    """The part of faiss's index that is used here, as its Python has it."""

    ntotal: int
    d: int

    def search(self, queries_BD: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]: ...


class CompressedVectors:
    """Nearest rows to query vectors, of an index that `build_codes` has finished. Safe to share between threads.

    Raises:
        IndexMismatchError: a file is missing or damaged, or the two do not belong together.
        MissingExtraError: faiss is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / HALF
        self._rows_ND = load_array(self._path)
        # Scattered rows are read, not mapped: of a map each costs a page fault, 5 us and more.
        self._file = os.open(self._path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._row_bytes = self._rows_ND.dtype.itemsize * self._rows_ND.shape[-1]
        self._start = os.fstat(self._file).st_size - self._row_bytes * len(self._rows_ND)
        self._codes = _read_codes(folder / CODES)
        if (self._codes.ntotal, self._codes.d) != self._rows_ND.shape:
            raise IndexMismatchError(
                f"{folder / CODES} holds {self._codes.ntotal:,} vectors of {self._codes.d} dimensions, {HALF} is "
                f"{self._rows_ND.shape}: they are of different builds; rebuild the index"
            )

    def nearest(self, queries_BD: np.ndarray, top_k: int, *, decimals: int) -> list[Ranking]:
        """Rank rows by inner product with each of (B, D) float32 unit vectors; scores are rounded to `decimals`.

        Per query `top_k`, or all rows where there are fewer.
        """
        num_rows = len(self._rows_ND)
        depth = min(_MAX_CANDIDATES, math.ceil(_CANDIDATES_PER_ROOT * num_rows ** (1 / 3)))
        depth = max(depth, _CANDIDATES_PER_HIT * top_k)
        if depth >= num_rows * _SHARE_TO_READ_ALL:
            starts = range(0, num_rows, _BLOCK_ROWS)
            blocks = (self._rows_ND[start : start + _BLOCK_ROWS].astype(np.float32) for start in starts)
            return nearest_in_blocks(blocks, queries_BD, top_k, decimals=decimals)
        rankings = []
        for query_D, positions_M in zip(queries_BD, self._codes.search(queries_BD, depth)[1], strict=True):
            positions_M = np.sort(positions_M[positions_M >= 0])
            scores_M1 = products(self._some(positions_M), query_D[None])
            rankings.append(best_of(positions_M, np.round(scores_M1[:, 0], decimals), top_k))
        return rankings

    def _some(self, positions_M: np.ndarray) -> np.ndarray:
        """(M, D) float32 vectors at scattered positions."""
        places = (self._start + positions_M * self._row_bytes).tolist()
        raw = b"".join([os.pread(self._file, self._row_bytes, place) for place in places])
        if len(raw) != len(places) * self._row_bytes:
            raise IndexMismatchError(f"{self._path} was cut while it was in use; rebuild the index")
        rows_MD = np.frombuffer(raw, self._rows_ND.dtype).reshape(len(places), -1)
        return np.asarray(rows_MD.astype(np.float32))


def _read_codes(path: Path) -> _Codes:
    faiss = import_faiss()
    try:
        codes: _Codes = faiss.read_index(str(path))
        lists = faiss.extract_index_ivf(codes)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise IndexMismatchError(f"{path} is missing or damaged ({reason}); rebuild the index") from None
    lists.nprobe = max(1, math.ceil(lists.nlist * _PROBED_SHARE))
    return codes


def import_faiss() -> ModuleType:
    """The module; a MissingExtraError where it is not installed."""
    # Read when faiss's own OpenMP is loaded: its threads would wait for work by spinning, on the core that has some.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import faiss
    except ImportError:
        raise MissingExtraError(
            "a compressed dense index needs faiss: pip install 'seekling[big]', or choose the exact one with "
            "retrieval.index.vectors=exact (--vectors exact)"
        ) from None
    return faiss
