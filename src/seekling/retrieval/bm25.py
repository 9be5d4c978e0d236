"""BM25 over passages, in bm25s's own files, mapped into memory.

`bm25s.BM25.index` wants every token of the corpus as Python objects at once. The same arrays are computed here chunk by
chunk (a test compares the two), so that the memory of a build does not grow with the corpus, apart from 4 bytes a
passage and the vocabulary. Queries are scored here too: bm25s orders equal scores by chance, and importing it takes
longer than a search.

Shape letters: N passages, M postings, V terms.

Source: BM25 with Lucene's idf: Kamphuis et al., "Which BM25 Do You Mean?" (ECIR 2020), table 1, row "Lucene
(accurate)"; eager scoring: bm25s (arXiv:2407.03618).
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from seekling.errors import DataError, IndexMismatchError
from seekling.retrieval.interface import Ranking, best_of
from seekling.retrieval.store import load_array, new_array
from seekling.retrieval.terms import ENGLISH, TermMaker, TermRules

K1 = 1.2
B = 0.75
FILES = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "vocab.index.json", "params.index.json")

_DATA, _INDICES, _INDPTR, _VOCABULARY, _PARAMS = FILES
_CHUNK_TOKENS = 2_000_000
_LOW_32_BITS = 0xFFFFFFFF
_FEW_POSTINGS = 16
"""With fewer postings than one in so many passages, sorting them is faster than a sum for every passage."""


class Bm25Ranker:
    """Ranks passages by BM25. Passages that share no term with the query are never returned."""

    def __init__(self, folder: Path, rules: TermRules = ENGLISH) -> None:
        # Not np.memmap, whose slices are slow.
        self._data_M, self._indices_M, self._indptr_V = (
            load_array(folder / name) for name in (_DATA, _INDICES, _INDPTR)
        )
        try:
            params, self._vocabulary = (json.loads((folder / name).read_bytes()) for name in (_PARAMS, _VOCABULARY))
            self._num_passages = int(params["num_docs"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexMismatchError(f"{folder}: the BM25 files are damaged ({error}); rebuild the index") from None
        self._maker = TermMaker(rules)

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank positions for each query; see `Ranker`."""
        return [self._best(Counter(self.numbers(query)), top_k) for query in queries]

    def numbers(self, query: str) -> list[int]:
        """Numbers of a query's terms in the vocabulary, repeats kept; unknown words are left out."""
        numbers = map(self._vocabulary.get, self._maker.terms(query))
        return [number for number in numbers if number is not None]

    def _best(self, times_of: Counter[int], top_k: int) -> Ranking:
        starts_V = self._indptr_V
        stretches = [slice(starts_V[term], starts_V[term + 1]) for term in times_of]
        places = [self._indices_M[stretch] for stretch in stretches]
        num_sums = self._num_passages
        positions_M: np.ndarray | None = None
        if sum(map(len, places)) * _FEW_POSTINGS < num_sums:  # no sum for the passages that hold none of the terms
            positions_M = np.unique(np.concatenate([*places, np.empty(0, np.int32)]))
            num_sums, places = len(positions_M), [np.searchsorted(positions_M, each) for each in places]
        sums_N = np.zeros(num_sums, dtype=np.float32)
        for place, stretch, times in zip(places, stretches, times_of.values(), strict=True):
            sums_N[place] += self._data_M[stretch] * np.float32(times)
        # Lucene's idf is above zero for every term, so a score of zero means that no term matched.
        found_K = np.flatnonzero(sums_N)
        return best_of(found_K if positions_M is None else positions_M[found_K], sums_N[found_K], top_k)


def build_bm25(
    texts: Iterable[str],
    folder: Path,
    *,
    rules: TermRules = ENGLISH,
    report: Callable[[int], None] = lambda done: None,
) -> int:
    """Index texts, one per passage in position order and read once, into `FILES` of a folder that exists already.

    `report` is told the number of texts read so far, now and then.

    Returns:
        The number of distinct terms.

    Raises:
        DataError: no text holds a single term.
    """
    postings_path = folder / "postings.tmp"
    vocabulary: dict[str, int] = {}
    lengths = array("i")
    chunk_sizes: list[int] = []
    try:
        with postings_path.open("wb") as postings:
            for numbers, chunk_lengths in _token_chunks(texts, vocabulary, TermMaker(rules)):
                chunk_sizes.append(_write_postings(postings, numbers, chunk_lengths, first=len(lengths)))
                lengths.extend(chunk_lengths)
                report(len(lengths))
        if not vocabulary:
            raise DataError(f"nothing to index: {len(lengths)} passages hold no word besides stop words")
        _write_scores(folder, postings_path, chunk_sizes, np.frombuffer(lengths, dtype=np.int32), len(vocabulary))
    finally:
        postings_path.unlink(missing_ok=True)
    (folder / _VOCABULARY).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    params = {
        "k1": K1, "b": B, "delta": 0.5, "method": "lucene", "idf_method": "lucene", "dtype": "float32",
        "int_dtype": "int32", "num_docs": len(lengths), "backend": "numpy",
        "version": importlib.metadata.version("bm25s"),
    }  # fmt: skip
    (folder / _PARAMS).write_text(json.dumps(params, indent=4), encoding="utf-8")
    return len(vocabulary)


def _token_chunks(
    texts: Iterable[str], vocabulary: dict[str, int], maker: TermMaker
) -> Iterator[tuple[array[int], array[int]]]:
    """Term numbers of many texts in a row, and how many belong to each; adds new terms to the vocabulary."""
    numbers, lengths = array("i"), array("i")
    for text in texts:
        terms = maker.terms(text)
        numbers.extend([vocabulary.setdefault(term, len(vocabulary)) for term in terms])
        lengths.append(len(terms))
        if len(numbers) >= _CHUNK_TOKENS:
            yield numbers, lengths
            numbers, lengths = array("i"), array("i")
    if lengths:
        yield numbers, lengths


def _write_postings(file: BinaryIO, numbers: array[int], lengths: array[int], *, first: int) -> int:
    """Append a chunk's postings by term, then position, as (term << 32 | position, count); returns how many."""
    positions_T = first + np.repeat(np.arange(len(lengths), dtype=np.int64), np.frombuffer(lengths, dtype=np.int32))
    keys_T = (np.frombuffer(numbers, dtype=np.int32).astype(np.int64) << 32) | positions_T
    keys, counts = np.unique(keys_T, return_counts=True)
    np.stack([keys, counts.astype(np.int64)], axis=1).tofile(file)
    return len(keys)


def _write_scores(
    folder: Path, postings_path: Path, chunk_sizes: list[int], lengths_N: np.ndarray, num_terms: int
) -> None:
    """Turn postings into bm25s's matrix: for each term the positions that hold it and what it adds to their score."""
    num_postings, num_passages = sum(chunk_sizes), len(lengths_N)
    postings = np.memmap(postings_path, dtype=np.int64, mode="r", shape=(num_postings, 2))
    chunks = np.cumsum([0, *chunk_sizes])
    frequency_V = np.zeros(num_terms, dtype=np.int64)
    for start, end in itertools.pairwise(chunks):
        frequency_V += np.bincount(postings[start:end, 0] >> 32, minlength=num_terms)
    indptr = np.concatenate([[0], np.cumsum(frequency_V)])
    idf_V = np.log(1 + (num_passages - frequency_V + 0.5) / (frequency_V + 0.5))
    norm_N = K1 * ((1 - B) + B * lengths_N / lengths_N.mean())

    data = new_array(folder / _DATA, np.float32, (num_postings,))
    indices = new_array(folder / _INDICES, np.int32, (num_postings,))
    next_V = indptr[:-1].copy()
    for start, end in itertools.pairwise(chunks):
        keys, counts = np.asarray(postings[start:end]).T
        terms, positions = keys >> 32, keys & _LOW_32_BITS
        # Chunks come in ascending position, so appending to each term's own stretch keeps it sorted by position.
        in_chunk_V = np.bincount(terms, minlength=num_terms)
        begin_V = np.concatenate([[0], np.cumsum(in_chunk_V)[:-1]])
        slots = next_V[terms] + np.arange(len(terms)) - begin_V[terms]
        data[slots] = idf_V[terms] * counts / (norm_N[positions] + counts)
        indices[slots] = positions
        next_V += in_chunk_V
    data.flush()
    indices.flush()
    np.save(folder / _INDPTR, indptr)
