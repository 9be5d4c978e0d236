"""More like this: passages of other pages that resemble a passage or a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seekling.errors import DataError
from seekling.retrieval.interface import Retriever
from seekling.retrieval.store import DocumentStore, PassageStore
from seekling.types import Hit, Passage

_DEEPER = 4


def find_passage(folder: Path, wanted: str) -> Passage:
    """The passage with an id, or the first passage of the page with that id.

    Raises:
        DataError: the index has neither.
    """
    documents, passages = DocumentStore(folder), PassageStore(folder)
    page_id, _, number = wanted.rpartition("#")
    for page, offset in ((wanted, 0), (page_id, int(number) if number.isdecimal() else -1)):
        row = documents.row_of(page)
        if row is not None and offset >= 0:
            first, end = np.searchsorted(passages.document_rows_N, [row, row + 1])
            if offset < end - first:
                return passages[int(first) + offset]
            raise DataError(f"page {page!r} has {end - first} passages, so there is no {wanted!r}; they count from #0")
    raise DataError(f"there is no page or passage {wanted!r}; `seekling search` shows the ids there are")


def more_like(retriever: Retriever, passage: Passage, top_k: int) -> list[Hit]:
    """The best passages for the text of a passage, without those of its own page.

    Args:
        retriever: of the passage's index.
        passage: its title and text are the query.
        top_k: most hits.
    """
    depth = _DEEPER * top_k
    while True:
        hits = retriever.search([f"{passage.title}\n{passage.text}"], depth)[0]
        others = [hit for hit in hits if hit.passage.document_id != passage.document_id]
        if len(others) >= top_k or len(hits) < depth:
            return [Hit(hit.passage, hit.score, rank) for rank, hit in enumerate(others[:top_k])]
        depth *= _DEEPER
