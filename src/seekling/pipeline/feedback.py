"""What people said of a served agent's answers, as questions to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seekling.corpus.questions import write_questions
from seekling.errors import DataError
from seekling.evaluate.evidence import is_abstention
from seekling.serve.episodes import SERVED, Episodes, Judged
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

    def __str__(self) -> str:
        return (
            f"{self.questions} questions ({self.corrected} corrected, {self.unanswerable} unanswerable); "
            f"{self.without_answer} answers are wrong and nobody said what is right"
        )


def export_feedback(run: Path, out: Path) -> FeedbackReport:
    """Write the questions of a run whose right answer is known by now, for data.train or beside it.

    A correction is the answer; an answer that somebody called right is one too, with the pages it quotes; "not found"
    that is right, and a correction that says unknown, make an unanswerable question. Of a question that was asked more
    than once the newest feedback counts. A server may be running meanwhile.

    Raises:
        DataError: the run was never served, or nobody said anything that a question can be made of.
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
    made = [(each, _question_of(each)) for each in newest.values()]
    questions = [question for _, question in made if question is not None]
    if not questions:
        raise DataError(
            f"{run / SERVED}: of {len(made)} judged answers none has a right answer; expected thumbs up or a correction"
        )
    write_questions(out, questions)
    return FeedbackReport(
        len(questions),
        sum(bool(each.correction) for each, question in made if question is not None),
        sum(question.kind == UNANSWERABLE for question in questions),
        len(made) - len(questions),
    )


def _question_of(judged: Judged) -> Question | None:
    name, text = f"feedback-{judged.id.removeprefix('chatcmpl-')}", judged.question
    is_right = judged.thumbs == "up" and not judged.correction
    if is_abstention(judged.correction) if judged.correction else is_right and not judged.is_found:
        return Question(name, text, UNKNOWN_ANSWERS, kind=UNANSWERABLE, source="feedback")
    if judged.correction:
        return Question(name, text, (judged.correction,), source="feedback")
    if is_right and judged.answer:
        return Question(name, text, (judged.answer,), supporting_ids=judged.document_ids, source="feedback")
    return None
