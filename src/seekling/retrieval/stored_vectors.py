"""The vectors that an index has on disk, as its encoder made them: read in order, or found by their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from seekling.retrieval.compressed import HALF
from seekling.retrieval.encoders import Encoder
from seekling.retrieval.store import load_array

EXACT = "vectors.npy"


class StoredVectors:
    """Unit vectors by the position of their passages, in the file of an exact index or of a compressed one."""

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
    """The vectors of an index whose encoder is the one that would encode now. Memory: 16 bytes a passage.

    Args:
        folder: of the index.
        texts: what was encoded, a text per row, in order.
        num_texts: how many there are.
    """

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
        new = [text for text, is_known in zip(texts, is_known_B, strict=True) if not is_known]
        known_BD = self._vectors.some(self._rows_N[places_B[is_known_B]])
        vectors_BD = np.empty((len(texts), known_BD.shape[1]), dtype=np.float32)
        vectors_BD[is_known_B] = known_BD
        if new:
            vectors_BD[~is_known_B] = encoder.passages(new)
        return vectors_BD


def _key(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
