"""What every set of answers is scored by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from seekling.corpus.questions import question_set_hash
from seekling.evaluate.intervals import Mean, Rate, mean_of, rate_of
from seekling.reward.match import is_vacuous
from seekling.types import Question

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The figures of some answers. What is None was not asked for, or an older version wrote the file."""

    em: Rate
    f1: Mean
    substring: Rate | None = None
    rouge_l: Mean | None = None
    judge: Rate | None = None
    """Answers that a judging model called correct, of those it gave a verdict on."""


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """Which questions were asked, and the odd ones among their golds."""

    question_set_hash: str
    """Of all questions asked."""
    num_vacuous_golds: int
    """Gold answers that SQuAD's normalisation empties; they are matched under a milder rule."""
    vacuous_golds: tuple[str, ...] = ()
    """Up to five of them, as `id: gold`."""


def scores_of(rows: Sequence[Mapping[str, float]]) -> Scores:
    """The figures of answers by the scores of each: em, f1, substring, rouge_l, and judge where there is a verdict."""
    verdicts = [row["judge"] for row in rows if "judge" in row]
    return Scores(
        em=rate_of(round(sum(row["em"] for row in rows)), len(rows)),
        f1=mean_of([row["f1"] for row in rows]),
        substring=rate_of(round(sum(row["substring"] for row in rows)), len(rows)),
        rouge_l=mean_of([row["rouge_l"] for row in rows]),
        judge=rate_of(round(sum(verdicts)), len(verdicts)) if verdicts else None,
    )


def question_set_of(questions: Sequence[Question]) -> QuestionSet:
    """Describe the questions that were asked."""
    vacuous = [f"{question.id}: {gold}" for question in questions for gold in question.answers if is_vacuous(gold)]
    return QuestionSet(
        question_set_hash=question_set_hash(questions), num_vacuous_golds=len(vacuous), vacuous_golds=tuple(vacuous[:5])
    )


def by_name(members: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Members by name, the names sorted; nothing where no member has a name."""
    groups: dict[str, list[T]] = {}
    for name, member in members:
        groups.setdefault(name, []).append(member)
    return {} if set(groups) <= {""} else dict(sorted(groups.items()))
