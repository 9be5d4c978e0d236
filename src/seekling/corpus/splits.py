"""Split a set of questions, and find what two sets share.

By page: questions that share a page, or a text, are one group, and a group is never divided, so nothing that a policy
read in training is asked of it on a page that it knows. Texts are compared folded: case, punctuation and white space do
not count. Which groups are held out hangs on a hash of their texts alone, so the order of the rows does not matter.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Sequence

from seekling.types import Question


def fold_text(text: str) -> str:
    """A question without case, punctuation and differences of white space; the text itself where nothing is left."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(" " if unicodedata.category(each)[0] in "PZC" else each for each in plain).split()
    return " ".join(words) or text


def pages_of(question: Question) -> set[str]:
    """The pages that a question is about: those that support its answer, and those of its hops."""
    return {*question.supporting_ids, *(hop.document_id for hop in question.hops if hop.document_id)}


def split_questions(questions: Sequence[Question], test_fraction: float) -> tuple[list[Question], list[Question]]:
    """Split in file order: the last part is the test set.

    The test set has `test_fraction` (0 to 1) of the questions, rounded up, so that a small set is never left without a
    test: 478 questions at 0.2 are 382 for training and 96 for the test.
    """
    # The rounding error of 100 * 0.07 (7.000000000000001) must not cost a question.
    num_train = len(questions) - math.ceil(round(len(questions) * test_fraction, 9))
    return list(questions[:num_train]), list(questions[num_train:])


def split_by_page(questions: Sequence[Question], fraction: float) -> tuple[list[Question], list[Question]]:
    """Hold out about a share of the questions, in whole groups.

    Groups of about the same size and of the same kinds form a stratum, and of each stratum the share is taken, in the
    order of the groups' hashes; what one stratum takes too much or too little counts in the next, smaller one, as far
    as one of its groups. So the held-out questions are of the kinds of the others, and where no page is shared their
    number is exact.

    Returns (rest, held out), both in the order given.
    """
    wanted = round(len(questions) * fraction)
    if not wanted:
        return list(questions), []
    strata: dict[tuple[int, tuple[str, ...]], list[list[int]]] = {}
    for group in sorted(_groups(questions), key=lambda group: _hash_of([questions[each] for each in group])):
        kinds = tuple(sorted({questions[each].kind for each in group}))
        strata.setdefault((len(group).bit_length(), kinds), []).append(group)
    held, owed = set[int](), 0.0
    for _, stratum in sorted(strata.items(), reverse=True):
        largest = max(map(len, stratum))
        owed = min(max(owed, -largest), largest) + wanted / len(questions) * sum(map(len, stratum))
        for group in stratum:
            if len(group) <= 2 * owed + 1e-9:  # nearer to the share with it than without
                held.update(group)
                owed -= len(group)
    rest = [question for number, question in enumerate(questions) if number not in held]
    return rest, [question for number, question in enumerate(questions) if number in held]


def with_shared_text(questions: Sequence[Question], others: Sequence[Question]) -> list[Question]:
    """Those of the questions whose folded text is also that of one of the others."""
    texts = {fold_text(other.question) for other in others}
    return [question for question in questions if fold_text(question.question) in texts]


def with_shared_page(questions: Sequence[Question], others: Sequence[Question]) -> list[Question]:
    """Those of the questions that are about a page which one of the others is about too."""
    pages = {page for other in others for page in pages_of(other)}
    return [question for question in questions if pages_of(question) & pages]


def _groups(questions: Sequence[Question]) -> list[list[int]]:
    """Numbers of the questions that hang together by a page or a text (union-find)."""
    parents = list(range(len(questions)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    first: dict[tuple[str, str], int] = {}
    for number, question in enumerate(questions):
        for name in (("text", fold_text(question.question)), *(("page", page) for page in pages_of(question))):
            parents[root(number)] = root(first.setdefault(name, number))
    groups: dict[int, list[int]] = {}
    for number in range(len(questions)):
        groups.setdefault(root(number), []).append(number)
    return list(groups.values())


def _hash_of(members: Sequence[Question]) -> str:
    """Places a group among the others: of its first text in alphabetical order."""
    return hashlib.sha256(min(fold_text(each.question) for each in members).encode("utf-8", "replace")).hexdigest()
