"""What the searches of an episode do not show: answers, passages it has seen, and pages its first search must miss.

The twin of a question (a minimal pair) is the same question, for which no passage and no sentence that says its answer
is shown, so that it is right to say so. A question that takes something for granted may have a twin instead that takes
something false for granted.

Of some questions, the first action that searches finds everything but the pages that the question needs, so that a
policy meets failures it can recover from.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, UNKNOWN_ANSWERS, Hit, Hop, Passage, Question

MIN_CHARS = 3
"""A shorter answer stands in too many sentences that do not say it."""
CLAIM_SHARE = 0.5
"""Of the questions that take something for granted, those with a twin."""
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?=\n)")
_PUNCTUATION = re.compile(r"[^\w\s]|_")


def with_twins(questions: Iterable[Question], share: float) -> list[Question]:
    """The questions, and after each of a share of them in [0, 1], chosen by their ids alone, its twin.

    Those without an answer, whose answer is too short, or is one of the things asked about, have none; of those that
    take something for granted half have one, unless the share is 0.
    """
    questions = list(questions)
    claims: dict[str, set[str]] = defaultdict(set)
    for hop in itertools.chain.from_iterable(question.hops for question in questions):
        if hop.claim:
            claims[hop.relation].add(hop.claim)
    found = []
    for question in questions:
        found.append(question)
        drawn = _draw(("withheld", question.key))
        claimed = [hop for hop in question.hops if hop.claim and hop.claim in question.question]
        if claimed and question.kind != UNANSWERABLE and share:
            wrong = sorted(claims[claimed[0].relation] - {claimed[0].claim, claimed[0].answer})
            if wrong and drawn < CLAIM_SHARE:
                claim = wrong[int(_draw(("claim", question.key)) * len(wrong))]
                found.append(_contradicted(question, claimed[0], claim))
        elif _can_be_withheld(question) and drawn < share:
            found.append(_twin(question))
    return found


def missed_pages(question: Question, share: float) -> frozenset[str]:
    """The pages that a question's first search is to miss: those it is known to be about.

    None if it is not one of the share of questions, in [0, 1], that is chosen by their ids alone.
    """
    if _draw(question.key) >= share:
        return frozenset()
    return frozenset({*question.supporting_ids, *(hop.document_id for hop in question.hops if hop.document_id)})


def is_twin(question: Question) -> bool:
    """Whether a question is the twin of another."""
    return question.id.endswith(("-withheld", "-contradicted"))


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
    missed: frozenset[str] = frozenset()
    """Ids of the pages that searches do not find until one action has searched."""

    def has(self, passage: Passage) -> bool:
        """Whether a passage is not to be shown."""
        said = f"{passage.title}. {passage.text}"
        return passage in self.passages or (bool(self.texts) and says(said, self.texts))


def search(find: Callable[[str, int], list[Hit]], query: str, top_k: int, withheld: Withheld) -> list[Hit]:
    """The best `top_k` passages that may be shown: as many as ever, so that their number tells nothing.

    Of these, passages of missed pages are left out.
    """
    wanted = 4 * top_k if withheld.texts or withheld.passages else top_k
    while True:
        hits = find(query, wanted)
        kept = [hit for hit in hits if not withheld.has(hit.passage)]
        if len(kept) >= top_k or len(hits) < wanted:
            best = [replace(hit, rank=rank) for rank, hit in enumerate(kept[:top_k])]
            return [hit for hit in best if hit.passage.document_id not in withheld.missed]
        wanted *= 4


def pages(found: list[dict[str, str]], withheld: Withheld) -> list[dict[str, str]]:
    """Pages or sections of a list that are not missed, and whose names hold none of the texts."""
    found = [each for each in found if each.get("page_id") not in withheld.missed]
    return [each for each in found if not any(says(name, withheld.texts) for name in each.values())]


def _fold(text: str) -> str:
    """Words for comparison, with a space before and after: without case, punctuation and articles (SQuAD's rules)."""
    words = _PUNCTUATION.sub("", text.casefold()).split()
    return f" {' '.join(word for word in words if word not in ('a', 'an', 'the'))} "


def _twin(question: Question) -> Question:
    return replace(
        question,
        id=f"{question.id}-withheld",
        answers=(UNKNOWN_ANSWER, "not found"),
        kind=UNANSWERABLE,
        labels=("withheld", *question.labels),
        withheld=question.answers,
    )


def _contradicted(question: Question, hop: Hop, claim: str) -> Question:
    return replace(
        question,
        id=f"{question.id}-contradicted",
        question=question.question.replace(hop.claim, claim),
        answers=UNKNOWN_ANSWERS,
        supporting_ids=(),
        kind=UNANSWERABLE,
        labels=("false premise", *question.labels),
        hops=tuple(replace(each, claim=claim) if each is hop else each for each in question.hops),
    )


def _can_be_withheld(question: Question) -> bool:
    is_known = question.kind != UNANSWERABLE and not question.is_side_by_side
    is_long = all(len(each) >= MIN_CHARS for each in question.answers)
    return is_known and is_long and not says(question.question, question.answers)


def _draw(name: object) -> float:
    """A number in [0, 1) that is a function of a name alone."""
    digest = hashlib.sha256(repr(name).encode("utf-8", "replace")).digest()
    return float(int.from_bytes(digest[:8], "big") / 2**64)
