"""Dense retrieval: passages and queries become unit vectors of one encoder; the best are found by inner product.

A small index is searched exactly (`vectors.py`), a large one through compressed codes (`compressed.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from seekling.errors import IndexMismatchError
from seekling.retrieval import compressed
from seekling.retrieval.encoders import Encoder, encoder_changes, load_encoder
from seekling.retrieval.index_record import EncoderRecord
from seekling.retrieval.interface import EMPTY_RANKING, Ranking
from seekling.retrieval.store import load_array
from seekling.retrieval.vectors import EXACT, HALF, ExactVectors, KnownVectors, RowWriter

COMPRESS_FROM = 250_000
"""Passages from which on "auto" compresses: at 768 dimensions exact search then reads 0.8 GB per batch of queries."""

_SORTED_TEXTS = 256
_QUERIES_AT_ONCE = 64
# A sum of products depends in its last bits on how many queries were asked together. Rounding hides that, and makes
# equal passages tie, so that a ranking does not hang on it.
_SCORE_DECIMALS = 5


class DenseRanker:
    """Ranks passages by the inner product of their vectors with the query's."""

    def __init__(self, encoder: Encoder, vectors: ExactVectors | compressed.CompressedVectors) -> None:
        self._encoder, self._vectors = encoder, vectors

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank positions for each query; see `Ranker`."""
        rankings = [EMPTY_RANKING] * len(queries)
        asked = [place for place, query in enumerate(queries) if query.strip()]
        for start in range(0, len(asked), _QUERIES_AT_ONCE):
            places = asked[start : start + _QUERIES_AT_ONCE]
            queries_BD = self._encoder.queries([queries[place] for place in places])
            found = self._vectors.nearest(queries_BD, top_k, decimals=_SCORE_DECIMALS)
            for place, ranking in zip(places, found, strict=True):
                rankings[place] = ranking
        return rankings


def build_dense(
    texts: Iterable[str],
    num_texts: int,
    folder: Path,
    record: EncoderRecord,
    *,
    vectors: Literal["auto", "exact", "compressed"] = "auto",
    known: KnownVectors | None = None,
    report: Callable[[str, int], None] = lambda stage, done: None,
) -> Literal["exact", "compressed"]:
    """Encode texts into the files of a folder, a text per row, in order.

    Blocks of rows that an interrupted build has left in the folder are kept: whoever comes back must bring the same
    texts and encoder, and gets the files of a build that was not interrupted. Texts that an earlier index has vectors
    of (`known`) are not encoded either. `report` is told the stage and how many rows it has done.

    Returns:
        How the vectors will be searched; "auto" decides by their number.

    Raises:
        MissingExtraError: they are to be compressed and faiss is not installed; before anything is encoded.
    """
    if vectors == "auto":
        vectors = "compressed" if num_texts >= COMPRESS_FROM else "exact"
    if vectors == "compressed":
        compressed.import_faiss()
    name, dtype = (HALF, "<f2") if vectors == "compressed" else (EXACT, "<f4")
    with RowWriter(folder / name, (num_texts, record.dimension), np.dtype(dtype), _SORTED_TEXTS) as rows:
        encoder = load_encoder(record)
        remaining = islice(texts, rows.done, None)
        while chunk := list(islice(remaining, _SORTED_TEXTS)):
            rows.append(known.passages(chunk, encoder) if known is not None else encoder.passages(chunk))
            report("encode", rows.done)
    if vectors == "compressed":
        compressed.build_codes(folder, report=lambda done: report("compress", done))
    return vectors


def open_dense(folder: Path, record: EncoderRecord, spec: str, *, rebuild: str) -> DenseRanker:
    """Open the vectors of an index with the encoder that made them.

    Args:
        folder: of the index.
        record: the encoder as it was when the index was made.
        spec: where that encoder is found now.
        rebuild: the command to name when it is another one.

    Raises:
        IndexMismatchError: the encoder's files are not the ones that made the vectors, or it would be used otherwise.
    """
    changed = encoder_changes(record, spec)
    if changed:
        raise IndexMismatchError(
            f"index {folder} was made with another encoder than {spec} is now:\n  " + "\n  ".join(changed) + "\n"
            f"Name the encoder that made it, or rebuild it with: {rebuild}"
        )
    is_compressed = (folder / HALF).exists()
    vectors = compressed.CompressedVectors(folder) if is_compressed else ExactVectors(load_array(folder / EXACT))
    return DenseRanker(load_encoder(record.model_copy(update={"spec": spec})), vectors)
