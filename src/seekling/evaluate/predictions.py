"""Anyone's answers to a question file -> the same figures that evaluations print.

Knows nothing of episodes: a prediction is a string, so the answers of any system can be scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pydantic

from seekling.errors import DataError
from seekling.evaluate.intervals import Rate, rate_of
from seekling.evaluate.judging import Judge, JudgeDetails
from seekling.evaluate.result_files import read_rows
from seekling.evaluate.scores import QuestionSet, Scores, by_name, question_set_of, scores_of
from seekling.reward.compat import CompatibleScorer
from seekling.reward.functions import score_answer
from seekling.types import Json, Question

Key = str | tuple[str, str]
"""Id of a question, or (source, id) where the rows carry a source."""
Predictions = Mapping[Key, str | None]


@dataclass(frozen=True, kw_only=True)
class PredictionScores(QuestionSet, Scores):
    """The figures of a predictions file against a question file."""

    answered: Rate
    """Rows whose prediction is neither null nor blank."""
    compat: str
    """Whose scorer was reproduced; empty is our own."""
    judge_details: JudgeDetails | None
    by_kind: Mapping[str, Scores]
    by_source: Mapping[str, Scores]

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Row:
    id: pydantic.StrictStr | pydantic.StrictInt
    prediction: str | None
    source: str | None = None


def read_predictions(path: Path | str) -> dict[Key, str | None]:
    """Read JSONL rows {id, prediction}, with an optional source where ids restart per data set.

    Raises:
        DataError: the file is missing, a row is malformed, or an id appears twice; names file and line.
    """
    what = '{"id": ..., "prediction": "text" or null}'
    predictions: dict[Key, str | None] = {}
    for where, row in read_rows(path, pydantic.TypeAdapter(_Row).validate_python, what, "correct the row"):
        key: Key = str(row.id) if row.source is None else (row.source, str(row.id))
        if key in predictions:
            raise DataError(f"{where}: id {key!r} was on an earlier line already; keep one row per question")
        predictions[key] = row.prediction
    return predictions


def score_predictions(
    predictions: Predictions,
    questions: Sequence[Question],
    *,
    scorer: CompatibleScorer | None = None,
    judge: Judge | None = None,
) -> PredictionScores:
    """Score one prediction per question.

    Args:
        predictions: keyed by id, or by (source, id); exactly the questions' keys. None or blank is a wrong answer.
        questions: with their golds.
        scorer: another system's; its predictions are whole responses with their marks, not answers.
        judge: also asks for a verdict on each prediction.

    Returns:
        Figures over all questions.

    Raises:
        DataError: no question, a question without a prediction, or a prediction without a question, all counted; or
            predictions that the other system's scorer could find no answer in at all.
    """
    if not questions:
        raise DataError("the question file holds no question; nothing can be scored")
    answers = _match_up(predictions, questions)
    if scorer is not None:
        _check_marks(scorer, answers)
    rows = [
        score_answer(answer, question.answers) if scorer is None else scorer.score(answer, question.answers)
        for answer, question in zip(answers, questions, strict=True)
    ]
    details = _judge(judge, scorer, answers, questions, rows) if judge is not None else None
    scores = scores_of(rows)
    if judge is not None and scores.judge is None:
        scores = replace(scores, judge=rate_of(0, 0))
    return PredictionScores(
        answered=rate_of(sum(bool(answer and answer.strip()) for answer in answers), len(answers)),
        compat=scorer.name if scorer is not None else "",
        judge_details=details,
        by_kind=_groups((question.kind for question in questions), rows),
        by_source=_groups((question.source for question in questions), rows),
        **vars(scores),
        **vars(question_set_of(questions)),
    )


def _check_marks(scorer: CompatibleScorer, answers: Sequence[str | None]) -> None:
    if not any(answer and scorer.mark in answer for answer in answers):
        raise DataError(
            f"none of the {len(answers)} predictions holds {scorer.mark!r}. {scorer.name}'s scorer looks for "
            "the answer in whole responses; give those as predictions, or score extracted answers without --compat"
        )


def _judge(
    judge: Judge,
    scorer: CompatibleScorer | None,
    answers: Sequence[str | None],
    questions: Sequence[Question],
    rows: Sequence[dict[str, float]],
) -> JudgeDetails:
    """Add the verdicts to the rows."""
    said = [scorer.answer(each or "") if scorer is not None else each for each in answers]
    judged = judge.judge(list(zip(questions, said, strict=True)), exact=[row["em"] for row in rows])
    for row, verdict in zip(rows, judged.verdicts, strict=True):
        if verdict is not None:
            row["judge"] = float(verdict)
    return judged.details


def _match_up(predictions: Predictions, questions: Sequence[Question]) -> list[str | None]:
    """The predictions in the order of the questions."""
    repeated = [identifier for identifier, count in Counter(q.id for q in questions).items() if count > 1]
    if repeated and any(isinstance(key, str) for key in predictions):
        raise DataError(
            f"{len(repeated)} id(s), such as {repeated[0]!r}, appear more than once among the questions; "
            'give every prediction row the "source" of its question'
        )
    keys = [question.key if question.key in predictions else question.id for question in questions]
    missing = [question.id for key, question in zip(keys, questions, strict=True) if key not in predictions]
    extra = sorted(map(str, predictions.keys() - set(keys)))
    if missing or extra:
        parts = [f"{len(missing)} question(s) have no prediction, such as {missing[0]!r}"] if missing else []
        parts += [f"{len(extra)} prediction(s) have no question, such as {extra[0]!r}"] if extra else []
        raise DataError(
            f"{'; '.join(parts)}. Expected exactly one row per question ({len(questions)} of them); "
            "write null for a question that was not answered"
        )
    return [predictions[key] for key in keys]


def _groups(names: Iterable[str], rows: Sequence[Mapping[str, float]]) -> dict[str, Scores]:
    return {name: scores_of(members) for name, members in by_name(zip(names, rows, strict=True)).items()}
