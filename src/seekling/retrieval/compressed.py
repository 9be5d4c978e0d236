"""Dense search over millions of passages on a small machine: short codes in memory, int8 rows on disk.

There are two files beside a rotation. `vectors.rows.npy` holds every vector in int8 with a scale, turned so that no
dimension is larger than others, and stays on disk. `codes.faiss` is read into memory: an inverted file over
4 sqrt(N) centroids whose lists hold 64 times 4 bits a passage. A query looks at the lists of the best centroids, 32
passages at a time in registers, and the best by their codes are scored again from their rows. Which
passages are looked at is a guess; the scores of those that come back are not.

Codes are product quantisation after a turn to principal components, dealt out so that every part of the code gets as
much variance as the others. They are of what a vector has beside its centroid, and scores are inner products: the
tables of a query then serve all lists, where distances need new ones for every list.

Source: Product quantisation (Jegou et al., TPAMI 2011), its parametric rotation (Ge et al., CVPR 2013) and the scan in
registers (arXiv:1704.07355), as faiss implements them (PCAMatrix, IndexIVFPQFastScan). Ours are the tree of centroids
(two levels of k-means, so that training grows as N instead of N^1.5) and the second scoring.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from seekling.errors import IndexMismatchError, MissingExtraError
from seekling.retrieval.exact import nearest_in_blocks
from seekling.retrieval.interface import Ranking, best_of
from seekling.retrieval.packed_rows import ROTATION, ROWS, PackedRows
from seekling.retrieval.store import load_array

if TYPE_CHECKING:
    from faiss import IndexIVFPQFastScan, IndexPreTransform, LinearTransform

CODES = "codes.faiss"

_LISTS_PER_ROOT = 4
_SAMPLES_PER_LIST = 32
_MAX_SAMPLES = 1 << 17
"""Vectors that centroids and codes are fitted to: 0.4 GB at 768 dimensions, whatever the size of the index."""
_MIN_SAMPLES_PER_DIMENSION = 2
"""Of fewer passages some are taken twice: principal components need more vectors than there are dimensions."""
_BLOCK_ROWS = 16_384
_PARTS = 64
_MAX_CODED_DIMENSIONS = 768
_MIN_PROBES = 64
_PROBED_POWER = 1 / 10
"""Of N passages a share of N^-0.1 of the lists is looked at: .31 of 125,000, .23 of 2 million, .18 of 21 million."""
_SPREAD_BONUS = 1 / 5
"""Vectors of a list lie around its centroid, the further the shorter it is, since they are unit vectors: what a list
may hold is rated by the centroid's score and this share of the variance. Without it twice as many lists do less."""
_ONE_QUERY_ON_ALL_CORES = 15
"""Of faiss's ways to search lists the one that shares those of a single query between threads. Which of several
passages with equal codes is the last candidate then hangs on the threads; scores do not."""
_MIN_CANDIDATES = 256
_CANDIDATES_PER_HIT = 16
_CANDIDATES_PER_ROOT = 24
_MAX_CANDIDATES = 3072
"""24 N^(1/3) passages are scored again, but no more than can be read in 5 ms, which is what 2 million have."""
_LISTS_FOR_DEPTH = 8
_SHARE_TO_READ_ALL = 1 / 8
_SEED = 0


def build_codes(folder: Path, *, report: Callable[[int], None] = lambda done: None) -> None:
    """Make `codes.faiss` of the finished rows in a folder, reading them block by block.

    Args:
        folder: with a complete `vectors.rows.npy`.
        report: told how many passages have their code.

    Raises:
        MissingExtraError: faiss is not installed.
        IndexMismatchError: the rows are missing or cut.
    """
    faiss = import_faiss()
    rows = PackedRows(folder / ROWS)
    num_lists = count_lists(len(rows))
    turn, sample_SD = _fit_turn(rows, min(len(rows), _SAMPLES_PER_LIST * num_lists, _MAX_SAMPLES))
    lists = _fit_lists(sample_SD, num_lists, code_shape(rows.dimension)[0])
    del sample_SD
    # A graph finds the one list of a passage fast; for the many lists that a query wants it is no help.
    flat, graph = lists.quantizer, faiss.IndexHNSWFlat(lists.d, 32)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = 80, 32
    graph.add(flat.reconstruct_n(0, lists.nlist))
    lists.quantizer = graph
    for start in range(0, len(rows), _BLOCK_ROWS):
        lists.add(turn.apply(rows.block(start, start + _BLOCK_ROWS)))
        report(lists.ntotal)
    lists.quantizer = flat
    partial = folder / f".{CODES}.partial"
    faiss.write_index(faiss.IndexPreTransform(turn, lists), str(partial))
    partial.replace(folder / CODES)


def _fit_turn(rows: PackedRows, num_samples: int) -> tuple[LinearTransform, np.ndarray]:
    """The turn to principal components, fitted to some rows, and (S, C) these rows turned."""
    faiss = import_faiss()
    chosen = np.sort(np.random.default_rng(_SEED).choice(len(rows), num_samples, replace=False))
    sample_SD = rows.some(np.resize(chosen, max(num_samples, _MIN_SAMPLES_PER_DIMENSION * rows.dimension)))
    num_parts, part_size = code_shape(rows.dimension)
    turn = faiss.PCAMatrix(rows.dimension, num_parts * part_size)
    turn.balanced_bins = num_parts
    turn.train(sample_SD)
    turn.have_bias = False  # Inner products are wanted of the vectors, not of what they are beside their mean.
    return turn, turn.apply(sample_SD)


def _fit_lists(sample_SD: np.ndarray, num_lists: int, num_parts: int) -> IndexIVFPQFastScan:
    """Empty lists, their centroids and codes fitted to turned vectors."""
    faiss = import_faiss()
    dimension = sample_SD.shape[1]
    centroids = faiss.IndexFlatIP(dimension)
    centroids.add(fit_centroids(sample_SD, num_lists))
    lists: IndexIVFPQFastScan = faiss.IndexIVFPQFastScan(
        centroids, dimension, num_lists, num_parts, 4, faiss.METRIC_INNER_PRODUCT
    )
    lists.by_residual = True
    lists.pq.cp.max_points_per_centroid, lists.pq.cp.min_points_per_centroid = 1024, 1
    lists.train(sample_SD)
    return lists


def count_lists(num_rows: int) -> int:
    """How many lists an index has: 4 sqrt(N)."""
    return max(1, min(math.isqrt(_LISTS_PER_ROOT**2 * num_rows), num_rows // 8))


def code_shape(dimension: int) -> tuple[int, int]:
    """How many parts a code has, and of how many dimensions each is; what is left over is the least of them."""
    part_size = max(1, min(dimension, _MAX_CODED_DIMENSIONS) // _PARTS)
    return min(dimension, _MAX_CODED_DIMENSIONS) // part_size, part_size


def fit_centroids(vectors_BD: np.ndarray, num_centroids: int) -> np.ndarray:
    """(C, D) centres of vectors: k-means into sqrt(C) groups, then within each group by its share of the vectors."""
    faiss = import_faiss()

    def fit(part_BD: np.ndarray, count: int) -> np.ndarray:
        means = faiss.Kmeans(part_BD.shape[1], count, niter=8, seed=_SEED, min_points_per_centroid=1)
        means.train(part_BD)
        centres_CD: np.ndarray = means.centroids
        return centres_CD

    groups_GD = fit(vectors_BD, max(1, math.isqrt(num_centroids)))
    nearest = faiss.IndexFlatL2(vectors_BD.shape[1])
    nearest.add(groups_GD)
    group_B = nearest.search(vectors_BD, 1)[1][:, 0]
    # Cumulated shares, rounded: the counts add up to what was asked for.
    ends_G = np.rint(np.cumsum(np.bincount(group_B, minlength=len(groups_GD))) * num_centroids / len(vectors_BD))
    counts_G = np.diff(ends_G, prepend=0).astype(int)
    parts = [fit(vectors_BD[group_B == group], int(count)) for group, count in enumerate(counts_G) if count]
    return np.concatenate(parts)


class CompressedVectors:
    """Nearest rows to query vectors. Safe to share between threads.

    Args:
        folder: of an index that `build_codes` has finished.

    Raises:
        IndexMismatchError: a file is missing or damaged, or the two do not belong together.
        MissingExtraError: faiss is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._rows = PackedRows(folder / ROWS)
        self._codes, self._turn, self._lists = _read_codes(folder / CODES)
        self._lists.nprobe, self._lists.implem = self._lists.nlist, _ONE_QUERY_ON_ALL_CORES
        self._centroids_LC = self._lists.quantizer.reconstruct_n(0, self._lists.nlist)
        self._bonus_L = _SPREAD_BONUS * (1 - np.square(self._centroids_LC).sum(axis=1))
        self._rotated_DD = np.ascontiguousarray(load_array(folder / ROTATION).T)
        if (self._lists.ntotal, self._turn.d_in) != (len(self._rows), self._rows.dimension):
            raise IndexMismatchError(
                f"{folder / CODES} holds {self._lists.ntotal:,} vectors of {self._turn.d_in} dimensions, {ROWS} "
                f"{len(self._rows):,} of {self._rows.dimension}: they are of different builds; rebuild the index"
            )
        if self._rotated_DD.shape != (self._turn.d_in, self._turn.d_in):
            raise IndexMismatchError(f"{folder / ROTATION} is the rotation of another index; rebuild the index")

    def __len__(self) -> int:
        return len(self._rows)

    def nearest(self, queries_BD: np.ndarray, top_k: int, *, decimals: int) -> list[Ranking]:
        """Rank rows by inner product with each query.

        Args:
            queries_BD: (B, D) float32 unit vectors.
            top_k: at least 1.
            decimals: that scores are rounded to.

        Returns:
            Per query `top_k`, or all rows where there are fewer.
        """
        depth = math.ceil(_CANDIDATES_PER_ROOT * len(self._rows) ** (1 / 3))
        depth = max(_MIN_CANDIDATES, _CANDIDATES_PER_HIT * top_k, min(_MAX_CANDIDATES, depth))
        queries_BD = _products(queries_BD, self._rotated_DD)
        if depth >= len(self._rows) * _SHARE_TO_READ_ALL:
            blocks = (self._rows.block(start, start + _BLOCK_ROWS) for start in range(0, len(self._rows), _BLOCK_ROWS))
            return nearest_in_blocks(blocks, queries_BD, top_k, decimals=decimals)
        rankings = []
        for query_D, positions_M in zip(queries_BD, self._candidates(queries_BD, depth), strict=True):
            positions_M = np.sort(positions_M[positions_M >= 0])
            scores_M = np.round(self._rows.scores(positions_M, query_D), decimals)
            rankings.append(best_of(positions_M, scores_M, top_k))
        return rankings

    def _candidates(self, queries_BD: np.ndarray, depth: int) -> np.ndarray:
        """(B, M) positions of the best by their codes, in the lists that promise most; -1 where these hold fewer."""
        num_lists = self._lists.nlist
        lists_for_depth = math.ceil(_LISTS_FOR_DEPTH * depth / len(self._rows) * num_lists)
        num_probes = min(
            max(_MIN_PROBES, math.ceil(num_lists * len(self._rows) ** -_PROBED_POWER), lists_for_depth), num_lists
        )
        turned_BC = self._turn.apply(queries_BD)
        scores_BL = _products(turned_BC, self._centroids_LC)
        promise_BL = scores_BL + self._bonus_L
        is_probed_BL = promise_BL >= np.partition(promise_BL, num_lists - num_probes)[:, num_lists - num_probes, None]
        lists_BL = np.where(is_probed_BL, np.arange(num_lists), -1)
        # What faiss declares are the arguments of C++, not those of its Python.
        search: Callable[..., tuple[np.ndarray, np.ndarray]] = self._lists.search_preassigned  # type: ignore[assignment]
        return search(turned_BC, depth, lists_BL, scores_BL)[1]


def _products(queries_BD: np.ndarray, rows_ND: np.ndarray) -> np.ndarray:
    """(B, N) float32 inner products by numpy's own loop, which takes one core.

    Its matrix library shares even one query between threads, and these then wait for more by spinning for 26 ms: on two
    cores they take one of them from the search that follows. One query with 5,793 centroids takes .48 ms, not .42.
    """
    return np.asarray(np.einsum("bd,nd->bn", queries_BD, rows_ND, dtype=np.float32))


def _read_codes(path: Path) -> tuple[IndexPreTransform, LinearTransform, IndexIVFPQFastScan]:
    """The codes, and their turn and lists, which are parts of them and live as long as they do."""
    faiss = import_faiss()
    try:
        codes = faiss.read_index(str(path))
        return codes, faiss.downcast_VectorTransform(codes.chain.at(0)), faiss.downcast_index(codes.index)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise IndexMismatchError(f"{path} is missing or damaged ({reason}); rebuild the index") from None


def import_faiss() -> ModuleType:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    # Read when faiss's own OpenMP is loaded: its threads would wait for work by spinning, on the core that has some.
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        import faiss
    except ImportError:
        raise MissingExtraError(
            "a compressed dense index needs faiss: pip install 'seekling[big]', or choose the exact one with "
            "retrieval.index.vectors=exact (--vectors exact)"
        ) from None
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]
        else:
            os.environ["OMP_WAIT_POLICY"] = before
    return faiss
