"""First searches that are made to fail, so that a policy meets failures it can recover from.

Of some questions, the first action that searches finds everything but the pages that the question needs; later ones
find what there is. The policy did nothing wrong, so expert episodes made this way can be learned from whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from seekling.env.tools import SearchResult, Tool
from seekling.types import Question


def needed_pages(question: Question) -> frozenset[str]:
    """The pages that a question is known to be about."""
    return frozenset({*question.supporting_ids, *(hop.document_id for hop in question.hops if hop.document_id)})


def is_made_to_fail(question: Question, share: float) -> bool:
    """Whether a question is among the share whose first search fails: a function of its id alone.

    Args:
        question: one that names no page is never chosen.
        share: of the questions, in [0, 1].
    """
    digest = hashlib.sha256(repr(question.key).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64 and bool(needed_pages(question))


def failing_tools(tools: Mapping[str, Tool], hidden: frozenset[str], is_failing: Callable[[], bool]) -> dict[str, Tool]:
    """The same tools, whose searches leave some pages out for a while.

    Args:
        tools: by name.
        hidden: ids of the pages.
        is_failing: asked at each call.
    """

    def filtered(search: Callable[..., object]) -> Callable[..., object]:
        def function(**arguments: object) -> object:
            found = search(**arguments)
            return _without(found, hidden) if is_failing() else found

        return function

    return {
        name: replace(tool, function=filtered(tool.function)) if tool.is_retrieval else tool
        for name, tool in tools.items()
    }


def _without(found: object, hidden: frozenset[str]) -> object:
    """What a search found, as passages or as a list of pages, without the hidden ones."""
    if not isinstance(found, list):
        return found
    kept: list[object] = []
    for each in found:
        if isinstance(each, SearchResult):
            kept.append(replace(each, hits=tuple(hit for hit in each.hits if hit.passage.document_id not in hidden)))
        elif not (isinstance(each, dict) and each.get("page_id") in hidden):
            kept.append(each)
    return kept
