"""What the searches of an episode do not show: answers, passages it has seen, and pages its first search must miss.

The twin of a question is the same question, for which no passage and no sentence that says its answer is shown: all
else is as it was, and the right end is to say so. Beside its original it teaches to tell the two apart (a minimal
pair).

Of some questions, the first action that searches finds everything but the pages that the question needs; later ones
find what there is. So a policy meets failures it can recover from; it did nothing wrong, so expert episodes made this
way can be learned from whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, Hit, Passage, Question

MIN_CHARS = 3
"""A shorter answer stands in too many sentences that do not say it."""
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?=\n)")
_PUNCTUATION = re.compile(r"[^\w\s]|_")


def with_twins(questions: Iterable[Question], share: float) -> list[Question]:
    """The questions, and after each of a share of them, chosen by their ids alone, its twin.

    Args:
        questions: those without an answer, whose answer is too short, or is one of the things asked about, have none.
        share: of the questions, in [0, 1].
    """
    found = []
    for question in questions:
        found.append(question)
        if _can_be_withheld(question) and _is_drawn(("withheld", question.key), share):
            twin = replace(question, id=f"{question.id}-withheld", answers=(UNKNOWN_ANSWER, "not found"))
            labels = ("withheld", *question.labels)
            found.append(replace(twin, kind=UNANSWERABLE, labels=labels, withheld=question.answers))
    return found


def missed_pages(question: Question, share: float) -> frozenset[str]:
    """The pages that a question's first search is to miss, those it is known to be about; none if it is not chosen.

    Args:
        question: whether it is chosen is a function of its id alone.
        share: of the questions, in [0, 1].
    """
    if not _is_drawn(question.key, share):
        return frozenset()
    return frozenset({*question.supporting_ids, *(hop.document_id for hop in question.hops if hop.document_id)})


def says(text: str, withheld: Sequence[str]) -> bool:
    """Whether a text holds one of the texts, as whole words, whatever their case, punctuation and articles."""
    folded = _fold(text)
    return any(f" {wanted} " in folded for each in withheld if (wanted := _fold(each).strip()))


def without(text: str, withheld: Sequence[str]) -> str:
    """A text without the sentences and headings that hold one of the texts."""
    if not withheld or not says(text, withheld):
        return text
    parts = _SENTENCE_END.split(text)
    is_told = [says(part, withheld) for part in parts]
    for number in range(len(parts) - 1):
        # "in St. Louis" is no end of a sentence, though it looks like one.
        if not is_told[number] and not is_told[number + 1] and says(parts[number] + parts[number + 1], withheld):
            is_told[number] = is_told[number + 1] = True
    return "".join(part for part, is_out in zip(parts, is_told, strict=True) if not is_out)


@dataclass(slots=True)
class Withheld:
    """What one episode is not shown."""

    texts: tuple[str, ...] = ()
    """No passage, sentence or name that holds one of them."""
    passages: set[Passage] = field(default_factory=set)
    """None of these; grows where an episode is shown each passage once."""

    def has(self, passage: Passage) -> bool:
        """Whether a passage is not to be shown."""
        return passage in self.passages or says(f"{passage.title}. {passage.text}", self.texts)


def search(find: Callable[[str, int], list[Hit]], query: str, top_k: int, withheld: Withheld) -> list[Hit]:
    """The best `top_k` passages that may be shown: as many as ever, so that their number tells nothing."""
    if not withheld.texts and not withheld.passages:
        return find(query, top_k)
    wanted = 4 * top_k
    while True:
        hits = find(query, wanted)
        kept = [hit for hit in hits if not withheld.has(hit.passage)]
        if len(kept) >= top_k or len(hits) < wanted:
            return [replace(hit, rank=rank) for rank, hit in enumerate(kept[:top_k])]
        wanted *= 4


def pages(found: list[dict[str, str]], withheld: Sequence[str]) -> list[dict[str, str]]:
    """Pages or sections of a list whose names hold none of the texts."""
    return [each for each in found if not any(says(name, withheld) for name in each.values())]


def _fold(text: str) -> str:
    """Words for comparison, with a space before and after: without case, punctuation and articles (SQuAD's rules)."""
    words = _PUNCTUATION.sub("", text.casefold()).split()
    return f" {' '.join(word for word in words if word not in ('a', 'an', 'the'))} "


def _can_be_withheld(question: Question) -> bool:
    is_known = question.kind != UNANSWERABLE and not question.is_side_by_side
    is_long = all(len(each) >= MIN_CHARS for each in question.answers)
    return is_known and is_long and not says(question.question, question.answers)


def _is_drawn(name: object, share: float) -> bool:
    digest = hashlib.sha256(repr(name).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
