"""Facts that are kept from a policy, so that it meets questions whose answer is not to be found.

The twin of a question is the same question, for which no passage and no sentence that says its answer is shown: all
else is as it was, and the right end is to say so. Beside its original it teaches to tell the two apart (a minimal
pair).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, Hit, Question

MIN_CHARS = 3
"""A shorter answer stands in too many sentences that do not say it."""
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?=\n)")


def with_twins(questions: Iterable[Question], share: float) -> list[Question]:
    """The questions, and after each of a share of them, chosen by their ids alone, its twin.

    Args:
        questions: those without an answer, whose answer is too short, or is one of the things asked about, have none.
        share: of the questions, in [0, 1].
    """
    found = []
    for question in questions:
        found.append(question)
        if _can_be_withheld(question) and _draw(question) < share:
            found.append(_twin(question))
    return found


def says(text: str, withheld: Sequence[str]) -> bool:
    """Whether a text holds one of the texts, as whole words, whatever their case."""
    return any(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", text, re.IGNORECASE) for each in withheld)


def without(text: str, withheld: Sequence[str]) -> str:
    """A text without the sentences that hold one of the texts; headings and all other sentences stay."""
    if not withheld:
        return text
    return "".join(
        part for part in _SENTENCE_END.split(text) if not says(part, withheld) or part.lstrip().startswith("#")
    )


def search(find: Callable[[str, int], list[Hit]], query: str, top_k: int, withheld: Sequence[str]) -> list[Hit]:
    """The best `top_k` passages that hold none of the texts: as many as ever, so that their number tells nothing."""
    if not withheld:
        return find(query, top_k)
    wanted = 4 * top_k
    while True:
        hits = find(query, wanted)
        kept = [hit for hit in hits if not says(hit.passage.text, withheld)]
        if len(kept) >= top_k or len(hits) < wanted:
            return [replace(hit, rank=rank) for rank, hit in enumerate(kept[:top_k])]
        wanted *= 4


def _twin(question: Question) -> Question:
    return replace(
        question,
        id=f"{question.id}-withheld",
        answers=(UNKNOWN_ANSWER, "not found"),
        supporting_ids=(),
        kind=UNANSWERABLE,
        labels=("withheld", *question.labels),
        withheld=question.answers,
    )


def _can_be_withheld(question: Question) -> bool:
    is_known = question.kind != UNANSWERABLE and not question.is_side_by_side
    asked = question.question.lower()
    return is_known and all(len(each) >= MIN_CHARS and each.lower() not in asked for each in question.answers)


def _draw(question: Question) -> float:
    digest = hashlib.sha256(repr(("withheld", question.key)).encode("utf-8", "replace")).digest()
    return float(int.from_bytes(digest[:8], "big") / 2**64)
