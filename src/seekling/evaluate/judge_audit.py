"""How far a judge can be trusted: beside exact match, beside labels of people, and whether its ratings mean something.

Every figure has an interval over cases. Cases that the judge could not decide are counted and left out of all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pydantic

from seekling.errors import DataError
from seekling.evaluate.intervals import Rate, rate_of
from seekling.evaluate.judging import Judge
from seekling.evaluate.result_files import read_rows
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, Json, StopReason

BINS = 5
"""Ratings from 0 to 100 are looked at in so many equal parts."""
_RESAMPLES = 10_000

Labels = Mapping[tuple[str, str], bool]
"""Source and id of a question -> whether the answer is correct, as a person says."""


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Two opinions of the same cases."""

    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    neither: int
    agreement: Rate
    kappa: float | None
    """Agreement beyond chance: 1 is perfect, 0 what chance gives; None when one opinion is always the same."""
    kappa_low: float
    kappa_high: float
    """95 % bootstrap interval; -1 and 1 where nothing is known."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Cases whose approach was rated between two bounds."""

    low: float
    high: float
    mean_rating: float | None
    """In [0, 1]."""
    correct: Rate


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """What an audit finds."""

    model: str
    num_cases: int
    num_labelled: int
    errors: Mapping[str, int]
    """Cases without a verdict, by cause; left out of everything else."""
    agreements: tuple[PairAgreement, ...]
    """Judge and exact match; with labels also judge and label, exact match and label."""
    truth: str
    """What the ratings are held against: label, or em without labels."""
    calibration: tuple[Bin, ...]
    calibration_error: float | None
    """Mean distance between a bin's mean rating and its share of correct answers, weighted by cases."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object."""
        return asdict(self)


def audit_judge(
    judge: Judge, records: Sequence[EpisodeRecord], labels: Labels, *, on_verdict: Callable[[], None] = lambda: None
) -> JudgeReport:
    """Judge answer and approach of episodes, and hold the verdicts against exact match and labels.

    Args:
        judge: the one that would give rewards.
        records: episodes; those that infrastructure failures ended are left out.
        labels: for some of them, or empty.
        on_verdict: called after each.

    Raises:
        DataError: there is no episode to judge, or labels are given and fit none of them.
        ConfigError: the judge refuses us altogether.
    """
    cases = [record for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]
    if not cases:
        raise DataError(f"none of {len(records)} episodes can be judged; name a file of finished episodes")
    if labels and not any(record.question.key in labels for record in cases):
        raise DataError(f"none of the {len(labels)} labels is of these episodes; a label names source and id")
    verdicts = judge.judge_all(lambda each: judge.judge_episode(each.question, each.episode), cases, on_verdict)
    errors = Counter(note for verdict, note in verdicts if verdict is None)
    judged = [(record, verdict) for record, (verdict, _) in zip(cases, verdicts, strict=True) if verdict is not None]
    ems = [bool(exact_match(record.episode.answer, record.question.answers)) for record, _ in judged]
    says = [verdict.is_correct for _, verdict in judged]
    ratings = [(verdict.approach or 0) / 100 for _, verdict in judged]
    known = [
        (number, labels[each.question.key]) for number, (each, _) in enumerate(judged) if each.question.key in labels
    ]
    agreements = [agreement_of("judge", "em", list(zip(says, ems, strict=True)))]
    if labels:
        agreements.append(agreement_of("judge", "label", [(says[number], label) for number, label in known]))
        agreements.append(agreement_of("em", "label", [(ems[number], label) for number, label in known]))
    bins = _calibration([(ratings[number], right) for number, right in (known if labels else list(enumerate(ems)))])
    return JudgeReport(
        model=judge.model,
        num_cases=len(cases),
        num_labelled=len(known),
        errors=dict(sorted(errors.items())),
        agreements=tuple(agreements),
        truth="label" if labels else "em",
        calibration=bins,
        calibration_error=_calibration_error(bins),
    )


@dataclass(frozen=True, slots=True)
class _Label:
    id: pydantic.StrictStr | pydantic.StrictInt
    correct: pydantic.StrictBool
    source: str = ""


def read_labels(path: Path | str) -> dict[tuple[str, str], bool]:
    """Read labels: JSONL rows {"source", "id", "correct"}; source may be left out.

    Raises:
        DataError: the file is missing, or a row is damaged or there twice; names file and line.
    """
    what = '{"source": "...", "id": "...", "correct": true or false}'
    labels: dict[tuple[str, str], bool] = {}
    for where, row in read_rows(path, pydantic.TypeAdapter(_Label).validate_python, what, "correct the row"):
        key = row.source, str(row.id)
        if key in labels:
            raise DataError(f"{where}: {key} has a label already; one answer per question can be labelled")
        labels[key] = row.correct
    return labels


def agreement_of(first: str, second: str, pairs: Sequence[tuple[bool, bool]]) -> PairAgreement:
    """How far two opinions of the same cases agree, both given for each case.

    Source: Cohen's kappa (Educational and Psychological Measurement 20, 1960); percentile bootstrap over cases.

    Example:
        >>> agreement_of("a", "b", [(True, True)] * 4 + [(False, False)] * 4 + [(True, False)] * 2).kappa
        0.6153846153846154
    """
    counts_4 = np.array([sum(pair == cell for pair in pairs) for cell in _CELLS])
    both, only_first, only_second, neither = counts_4.tolist()
    kappa, low, high = None, -1.0, 1.0
    if pairs:
        draws_R4 = np.random.default_rng(0).multinomial(len(pairs), counts_4 / len(pairs), size=_RESAMPLES)
        found, *kappas = _kappas(np.vstack([counts_4, draws_R4]).astype(float)).tolist()
        if math.isfinite(found):
            kappa = found
            low, high = np.nanpercentile(kappas, [2.5, 97.5]).tolist()
    return PairAgreement(
        first, second, both, only_first, only_second, neither, rate_of(both + neither, len(pairs)), kappa, low, high
    )


_CELLS = ((True, True), (True, False), (False, True), (False, False))


def _kappas(counts_R4: np.ndarray) -> np.ndarray:
    n_R = counts_R4.sum(-1)
    observed_R = (counts_R4[:, 0] + counts_R4[:, 3]) / n_R
    first_R, second_R = (counts_R4[:, 0] + counts_R4[:, 1]) / n_R, (counts_R4[:, 0] + counts_R4[:, 2]) / n_R
    chance_R = first_R * second_R + (1 - first_R) * (1 - second_R)
    with np.errstate(divide="ignore", invalid="ignore"):
        kappas_R: np.ndarray = (observed_R - chance_R) / (1 - chance_R)
    return kappas_R


def _calibration(cases: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    bins = []
    for number in range(BINS):
        mine = [(rating, right) for rating, right in cases if min(int(rating * BINS), BINS - 1) == number]
        mean = float(np.mean([rating for rating, _ in mine])) if mine else None
        bins.append(Bin(number / BINS, (number + 1) / BINS, mean, rate_of(sum(r for _, r in mine), len(mine))))
    return tuple(bins)


def _calibration_error(bins: Sequence[Bin]) -> float | None:
    gaps = [
        (each.correct.n, abs(each.mean_rating - each.correct.value))
        for each in bins
        if each.mean_rating is not None and each.correct.value is not None
    ]
    return sum(n * gap for n, gap in gaps) / sum(n for n, _ in gaps) if gaps else None
