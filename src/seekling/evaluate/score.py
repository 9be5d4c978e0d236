"""Anyone's answers to a question file -> the same figures that evaluations print.

Knows nothing of episodes: a prediction is a string, so the answers of any system can be scored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.intervals import Mean, Rate, mean_of, rate_of
from seekling.evaluate.judging import Judge, JudgeDetails
from seekling.reward.compat import CompatibleScorer
from seekling.reward.functions import score_answer
from seekling.reward.match import is_vacuous
from seekling.types import Json, Question

Predictions = Mapping[str | tuple[str, str], str | None]
"""By question id, or by (source, id) where the rows carry a source."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of one set of answers, or of one kind of question in it."""

    em: Rate
    f1: Mean
    substring: Rate
    rouge_l: Mean
    judge: Rate | None = None


@dataclass(frozen=True, slots=True)
class PredictionScores:
    """The figures of a predictions file against a question file."""

    em: Rate
    f1: Mean
    substring: Rate
    rouge_l: Mean
    judge: Rate | None
    """Of the predictions that the judge gave a verdict on; None when no judge was asked."""
    answered: Rate
    """Rows whose prediction is neither null nor blank."""
    num_vacuous_golds: int
    """Golds that SQuAD's rule empties. Matched under a milder rule, unless `compat` says otherwise."""
    vacuous_golds: tuple[str, ...]
    """Up to five of them, as `id: gold`."""
    question_set_hash: str
    compat: str
    """Whose scorer was reproduced; empty is our own."""
    judge_details: JudgeDetails | None
    by_kind: Mapping[str, Scores]
    by_source: Mapping[str, Scores]

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object."""
        return asdict(self)


def read_predictions(path: Path | str) -> dict[str | tuple[str, str], str | None]:
    """Read JSONL rows {id, prediction}, with an optional source where ids restart per data set.

    Raises:
        DataError: the file is missing, a row is malformed, or an id appears twice; names file and line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read predictions from {path}: {error}") from None
    predictions: dict[str | tuple[str, str], str | None] = {}
    first_line: dict[str | tuple[str, str], int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        key, prediction = _parse_row(line, f"{path}:{number}")
        if key in predictions:
            raise DataError(
                f"{path}:{number}: id {key!r} was already on line {first_line[key]}; keep one row per question"
            )
        predictions[key], first_line[key] = prediction, number
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
    vacuous = [f"{question.id}: {gold}" for question in questions for gold in question.answers if is_vacuous(gold)]
    total = _scores(rows)
    return PredictionScores(
        em=total.em,
        f1=total.f1,
        substring=total.substring,
        rouge_l=total.rouge_l,
        judge=None if judge is None else total.judge or rate_of(0, 0),
        answered=rate_of(sum(bool(answer and answer.strip()) for answer in answers), len(answers)),
        num_vacuous_golds=len(vacuous),
        vacuous_golds=tuple(vacuous[:5]),
        question_set_hash=question_set_hash(questions),
        compat=scorer.name if scorer is not None else "",
        judge_details=details,
        by_kind=_groups(rows, [question.kind for question in questions]),
        by_source=_groups(rows, [question.source for question in questions]),
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


def _parse_row(line: str, where: str) -> tuple[str | tuple[str, str], str | None]:
    expected = 'expected {"id": ..., "prediction": "text" or null}'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); {expected}") from None
    if not isinstance(row, dict) or "id" not in row or "prediction" not in row:
        raise DataError(f"{where}: got {line.strip()[:80]!r}; {expected}")
    identifier, prediction, source = row["id"], row["prediction"], row.get("source")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise DataError(f"{where}: the id is {identifier!r}; expected a string or a whole number")
    if not (prediction is None or isinstance(prediction, str)):
        raise DataError(f"{where}: the prediction is {prediction!r}; {expected}")
    if source is not None and not isinstance(source, str):
        raise DataError(f"{where}: the source is {source!r}; expected a string")
    return (str(identifier) if source is None else (source, str(identifier))), prediction


def _match_up(predictions: Predictions, questions: Sequence[Question]) -> list[str | None]:
    """The predictions in the order of the questions."""
    repeated = [identifier for identifier, count in Counter(q.id for q in questions).items() if count > 1]
    needs_source = bool(repeated)
    if needs_source and any(isinstance(key, str) for key in predictions):
        raise DataError(
            f"{len(repeated)} id(s), such as {repeated[0]!r}, appear more than once among the questions; "
            'give every prediction row the "source" of its question'
        )
    keys = [_key_in(predictions, question) for question in questions]
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


def _key_in(predictions: Predictions, question: Question) -> str | tuple[str, str]:
    return question.key if question.key in predictions else question.id


def _scores(rows: Sequence[Mapping[str, float]]) -> Scores:
    verdicts = [row["judge"] for row in rows if "judge" in row]
    return Scores(
        em=rate_of(round(sum(row["em"] for row in rows)), len(rows)),
        f1=mean_of([row["f1"] for row in rows]),
        substring=rate_of(round(sum(row["substring"] for row in rows)), len(rows)),
        rouge_l=mean_of([row["rouge_l"] for row in rows]),
        judge=rate_of(round(sum(verdicts)), len(verdicts)) if verdicts else None,
    )


def _groups(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, Scores]:
    if set(names) <= {""}:
        return {}
    return {
        name: _scores([row for row, other in zip(rows, names, strict=True) if other == name])
        for name in sorted(set(names))
    }
