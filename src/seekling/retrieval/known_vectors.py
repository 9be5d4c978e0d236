"""Vectors that an index already has, found by the text of their passages: they are not encoded again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from seekling.retrieval import compressed
from seekling.retrieval.dense import EXACT
from seekling.retrieval.encoders import Encoder
from seekling.retrieval.store import load_array


class KnownVectors:
    """The vectors of an index whose encoder is the one that would encode now. Memory: 16 bytes a passage."""

    def __init__(self, folder: Path, texts: Iterable[str], num_texts: int) -> None:
        """Open the vectors of an index.

        Args:
            folder: of the index.
            texts: what was encoded, a text per row, in order.
            num_texts: how many there are.
        """
        keys_N = np.fromiter((_key(text) for text in texts), dtype=np.uint64, count=num_texts)
        self._rows_N = np.argsort(keys_N, kind="stable")
        self._keys_N = keys_N[self._rows_N]
        self._is_compressed = (folder / compressed.ROWS).exists()
        if self._is_compressed:
            self._packed = compressed.RowFile(folder / compressed.ROWS)
            self._rotation_DD = load_array(folder / compressed.ROTATION)
        else:
            self._exact_ND = load_array(folder / EXACT)

    def passages(self, texts: Sequence[str], encoder: Encoder) -> np.ndarray:
        """(B, D) float32 unit vectors of passages; only those that are not known are encoded."""
        keys_B = np.array([_key(text) for text in texts], dtype=np.uint64)
        places_B = np.minimum(np.searchsorted(self._keys_N, keys_B), len(self._keys_N) - 1)
        is_known_B = self._keys_N[places_B] == keys_B
        new = [text for text, is_known in zip(texts, is_known_B, strict=True) if not is_known]
        known_BD = self._at(self._rows_N[places_B[is_known_B]])
        vectors_BD = np.empty((len(texts), known_BD.shape[1]), dtype=np.float32)
        vectors_BD[is_known_B] = known_BD
        if new:
            vectors_BD[~is_known_B] = encoder.passages(new)
        return vectors_BD

    def _at(self, rows_B: np.ndarray) -> np.ndarray:
        if not self._is_compressed:
            return np.asarray(self._exact_ND[rows_B])
        # Packed rows are rotated; the transpose of a rotation is its inverse.
        return np.asarray(self._packed.some(rows_B) @ self._rotation_DD.T)


def _key(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
