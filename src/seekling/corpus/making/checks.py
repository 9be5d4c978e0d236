"""What makes a question worthless, told from its text and its pages; nothing is searched.

The same checks are made of questions that rules or a teacher made, which they drop, and of a user's own, about which
`seekling train` warns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from seekling.corpus.splits import fold_text
from seekling.text import holds_words
from seekling.types import UNANSWERABLE, Document, Question

NO_PAGE = "names no supporting page"
LOST_PAGE = "names a page that is not in the corpus"
NOT_IN_PAGE = "the answer stands in none of its pages"
IN_QUESTION = "the answer stands in the question"
NO_SUBJECT = "the question does not name its subject"
DUPLICATE = "says the same as another question"
LONG_ANSWER = "the answer is long"

_MAX_ANSWER_WORDS = 15
SPOKEN = ("yes", "no", "ja", "nein")
"""Answers that no page needs to hold."""


def problems(question: Question, page_of: Callable[[str], Document | None]) -> list[str]:
    """Why a question is not worth asking; empty: nothing speaks against it. `page_of` gives a page for its id."""
    found = []
    pages = [page_of(page) for page in question.supporting_ids]
    named = question.hops if question.is_side_by_side else question.hops[:1]
    if None in pages:
        found.append(LOST_PAGE)
    if any(hop.query_subject and not holds_words(question.question, hop.query_subject) for hop in named):
        found.append(NO_SUBJECT)
    if question.kind == UNANSWERABLE:
        return found
    if not pages:
        found.append(NO_PAGE)
    told = [answer for answer in question.answers if holds_words(question.question, answer)]
    if told and not question.is_side_by_side and len(told) == len(question.answers):
        found.append(IN_QUESTION)
    texts = [f"{page.title}\n{page.content}" for page in pages if page is not None]
    if texts and not question.is_side_by_side and not _is_said(question.answers, texts):
        found.append(NOT_IN_PAGE)
    if min(len(answer.split()) for answer in question.answers) > _MAX_ANSWER_WORDS:
        found.append(LONG_ANSWER)
    return found


def duplicates(questions: Sequence[Question]) -> set[tuple[str, str]]:
    """Keys of the questions that ask what an earlier one asks, in the same words or of the same fact."""
    seen, found = set[object](), set[tuple[str, str]]()
    for question in questions:
        names: list[object] = [fold_text(question.question)]
        if question.hops and question.kind != UNANSWERABLE:
            names.append(tuple((hop.document_id, hop.query_subject, hop.relation, hop.answer) for hop in question.hops))
        if not seen.isdisjoint(names):
            found.add(question.key)
        seen.update(names)
    return found


def count_problems(questions: Sequence[Question], page_of: Callable[[str], Document | None]) -> Counter[str]:
    """How many questions have which problem."""
    counts = Counter(problem for question in questions for problem in problems(question, page_of))
    return counts + Counter({DUPLICATE: len(duplicates(questions))})


def _is_said(answers: Iterable[str], texts: Sequence[str]) -> bool:
    return any(answer.casefold() in SPOKEN or any(holds_words(text, answer) for text in texts) for answer in answers)
