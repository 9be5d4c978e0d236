"""What people said of a served agent's answers, as questions to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seekling.corpus.making.checks import SPOKEN
from seekling.corpus.questions import write_questions
from seekling.errors import DataError
from seekling.evaluate.evidence import documents_found, is_abstention
from seekling.retrieval.library import Library, open_library
from seekling.serve.episodes import SERVED, Episodes, Judged
from seekling.serve.local_model import recipe_of_run
from seekling.serve.quotes import page_that_states
from seekling.text import counted, holds_words
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWERS, Question


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """What became of the feedback on a run's answers."""

    questions: int
    """Written."""
    corrected: int
    """Of these, with an answer that somebody gave."""
    unanswerable: int
    """Of these, that the documents do not answer."""
    without_answer: int
    """Thumbs down without a correction: nobody said what is right."""

    without_page: int
    """Of the questions, that name no page: the split by page cannot keep them apart from others of theirs."""

    def __str__(self) -> str:
        told = f"{counted(self.questions, 'question')} ({self.corrected} corrected, {self.unanswerable} unanswerable)"
        if self.without_page:
            told += f"; for {self.without_page} of them no page is known: name it in supporting_ids"
        if self.without_answer:
            verb = "is" if self.without_answer == 1 else "are"
            told += f"; {counted(self.without_answer, 'answer')} {verb} wrong and nobody said what is right"
        return told


def export_feedback(run: Path, out: Path) -> FeedbackReport:
    """Write the questions of a run whose right answer is known by now, for data.train or beside it.

    A correction is the answer; an answer that somebody called right is one too; "not found" that is right, and a
    correction that says unknown, make an unanswerable question. Of a question that was asked more than once the newest
    feedback counts. The pages that a question is about are named: see `_pages_of`. A server may be running meanwhile.

    Raises:
        DataError: the run was never served, or nobody said anything that a question can be made of.
        IndexMismatchError: the run's index, in which its pages are looked up, is missing or damaged.
    """
    if not (run / SERVED).is_file():
        raise DataError(f"{run} has no {SERVED}: it was never served; serve it with: seekling serve {run}")
    episodes = Episodes(run / SERVED)
    try:
        newest: dict[str, Judged] = {}
        for each in episodes.judged():
            key = " ".join(each.question.casefold().split())
            is_told = key in newest and newest[key].correction  # which thumbs down do not take back
            if not is_told or each.correction or each.thumbs == "up":
                newest[key] = each
    finally:
        episodes.close()
    retrieval = recipe_of_run(run).retrieval
    library = open_library(retrieval.folder(run), retrieval)
    made = [(each, _question_of(each, library)) for each in newest.values()]
    questions = [question for _, question in made if question is not None]
    if not questions:
        what = f"{run / SERVED}: nobody said what is right of {counted(len(made), 'judged answer')}"
        raise DataError(f"{what}; expected thumbs up or a correction, of one answer at least")
    write_questions(out, questions)
    return FeedbackReport(
        questions=len(questions),
        corrected=sum(bool(each.correction) for each, question in made if question is not None),
        unanswerable=sum(question.kind == UNANSWERABLE for question in questions),
        without_answer=len(made) - len(questions),
        without_page=sum(not question.supporting_ids for question in questions),
    )


def _question_of(judged: Judged, library: Library) -> Question | None:
    """The question with its right answer and pages; None where nobody said what is right."""
    name, text = f"feedback-{judged.id.removeprefix('chatcmpl-')}", judged.question
    is_right = judged.thumbs == "up" and not judged.correction
    if is_abstention(judged.correction) if judged.correction else is_right and not judged.is_found:
        pages = judged.document_ids or _named_pages(judged, library)
        return Question(name, text, UNKNOWN_ANSWERS, pages, kind=UNANSWERABLE, source="feedback")
    answer = judged.correction or (judged.answer if is_right else "")
    return Question(name, text, (answer,), _pages_of(judged, answer, library), source="feedback") if answer else None


def _pages_of(judged: Judged, answer: str, library: Library) -> tuple[str, ...]:
    """The pages that a question with this answer is about; the one that states the answer is the last.

    Those that the agent quoted, if one of them states it, or none that it found does: a count stands nowhere. Else the
    one that it found and that states it: what it quoted is about something else.
    """
    quoted, is_word = judged.document_ids, answer.casefold() in SPOKEN
    if quoted and (is_word or not judged.correction):
        return quoted
    page = page_that_states(answer, judged.episode, judged.question, library.find, library.title_of)
    if page is None or is_word:
        return quoted
    return (*(each for each in quoted if each != page), page) if page in quoted else (page,)


def _named_pages(judged: Judged, library: Library) -> tuple[str, ...]:
    """The pages that came back and whose titles the question names."""
    found = documents_found(judged.episode.turns)
    return tuple(page for page in found if holds_words(judged.question, library.title_of(page)))
