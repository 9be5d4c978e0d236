"""Searching only in documents that fulfil conditions on their title, id or columns.

A condition is a column, a sign and a value: `kind=pdf`, `kind!=pdf`, `title~castle` (contains), `year>=1990`,
`date<=2020-12-31`. Letter case plays no part. Two numbers are compared as numbers, anything else as text. A document
without a value in the column fulfils `!=` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from seekling.errors import ConfigError
from seekling.retrieval.index_record import IndexRecord
from seekling.retrieval.interface import Ranker, Ranking
from seekling.retrieval.store import DocumentStore, PassageStore

_CONDITION = re.compile(r"\s*([^=!~<>]*[^=!~<>\s])\s*(!=|>=|<=|=|~)\s*(.*?)\s*", re.DOTALL)
_Value = TypeVar("_Value", str, float)
_FIRST_DEPTH = 64
_DEEPER = 8


@dataclass(frozen=True, slots=True)
class Condition:
    """What a document must fulfil."""

    column: str
    sign: str
    value: str

    def holds(self, columns: Mapping[str, str]) -> bool:
        """Whether a document with these columns fulfils it."""
        value = columns.get(self.column)
        if value is None:
            return self.sign == "!="
        texts = value.casefold(), self.value.casefold()
        if self.sign == "~":
            return texts[1] in texts[0]
        numbers = _number(value), _number(self.value)
        if numbers[0] is not None and numbers[1] is not None:
            return _compare(numbers[0], self.sign, numbers[1])
        return _compare(texts[0], self.sign, texts[1])


class FilteredRanker:
    """Ranks only some passages, by asking another ranker for more until enough of them have come.

    Exact where the other is exact; where that one looks at a part of the passages only, so does this.
    """

    def __init__(self, ranker: Ranker, is_allowed_N: np.ndarray) -> None:
        """Wrap a ranker.

        Args:
            ranker: of all passages.
            is_allowed_N: (N,) bool, a value per passage.
        """
        self._ranker = ranker
        self._is_allowed_N = is_allowed_N

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank positions for each query; see `Ranker`."""
        depth = max(_FIRST_DEPTH, _DEEPER * top_k)
        while True:
            rankings = self._ranker.rank(queries, depth)
            kept = [self._kept(ranking) for ranking in rankings]
            pairs = zip(rankings, kept, strict=True)
            if all(len(few.scores_K) >= top_k or len(every.scores_K) < depth for every, few in pairs):
                return [Ranking(few.positions_K[:top_k], few.scores_K[:top_k]) for few in kept]
            depth *= _DEEPER

    def _kept(self, ranking: Ranking) -> Ranking:
        is_kept_K = self._is_allowed_N[ranking.positions_K]
        return Ranking(ranking.positions_K[is_kept_K], ranking.scores_K[is_kept_K])


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        ConfigError: it is none.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is no condition; expected a column, one of = != ~ >= <=, and a value, "
            "such as kind=pdf or year>=1990"
        )
    return Condition(found[1], found[2], found[3])


def allowed_passages(
    where: Sequence[str], record: IndexRecord, documents: DocumentStore, passages: PassageStore
) -> np.ndarray:
    """(N,) bool: whether the document of each passage fulfils all conditions.

    Raises:
        ConfigError: one is no condition, names a column that no document has, or no document fulfils them all.
    """
    conditions = [parse_condition(text) for text in where]
    columns = ["id", "title", *record.columns]
    for condition in conditions:
        if condition.column not in columns:
            raise ConfigError(f"no document has the column {condition.column!r}; there are: {', '.join(columns)}")
    is_allowed_D = np.fromiter(
        (
            all(condition.holds({"id": page, "title": title, **values}) for condition in conditions)
            for page, title, values in documents.heads()
        ),
        dtype=bool,
        count=len(documents),
    )
    if not is_allowed_D.any():
        raise ConfigError(
            f"no document fulfils {' and '.join(where)}, so nothing can be found; `seekling search` without --where "
            "finds documents, `seekling index --inspect` lists the columns"
        )
    return np.asarray(is_allowed_D[passages.document_rows_N])


def _compare(has: _Value, sign: str, wanted: _Value) -> bool:
    if sign in {"=", "!="}:
        return (has == wanted) == (sign == "=")
    return has >= wanted if sign == ">=" else has <= wanted


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
