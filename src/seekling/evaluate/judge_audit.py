"""How far a judge can be trusted: beside exact match, beside labels of people, and whether its ratings mean something.

Every figure has an interval over cases. Cases that the judge could not decide are counted and left out of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from seekling.errors import DataError
from seekling.evaluate.intervals import Rate, rate_of
from seekling.evaluate.judging import Judge
from seekling.reward.judge import Judgement
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
    """PairAgreement beyond chance: 1 is perfect, 0 what chance gives; None when one opinion is always the same."""
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
    judge: Judge,
    records: Sequence[EpisodeRecord],
    labels: Labels,
    *,
    in_flight: int = 8,
    on_verdict: Callable[[], None] = lambda: None,
) -> JudgeReport:
    """Judge answer and approach of episodes, and hold the verdicts against exact match and labels.

    Args:
        judge: the one that would give rewards.
        records: episodes; those that infrastructure failures ended are left out.
        labels: for some of them, or empty.
        in_flight: episodes judged at once.
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
    verdicts: list[tuple[Judgement | None, str]] = []
    pool = ThreadPoolExecutor(max_workers=in_flight)
    try:
        for outcome in pool.map(lambda each: judge.judge_episode(each.question, each.episode), cases):
            verdicts.append(outcome)
            on_verdict()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    notes = [note for verdict, note in verdicts if verdict is None]
    judged = [(record, verdict) for record, (verdict, _) in zip(cases, verdicts, strict=True) if verdict is not None]
    return _report(judge.model, judged, labels, {cause: notes.count(cause) for cause in sorted(set(notes))})


def read_labels(path: Path | str) -> dict[tuple[str, str], bool]:
    """Read labels: JSONL rows {"source", "id", "correct"}; source may be left out.

    Raises:
        DataError: the file is missing, or a row is damaged or there twice; names file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"no labels at {path} ({error})") from None
    labels: dict[tuple[str, str], bool] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            key, correct = (str(row.get("source", "")), str(row["id"])), row["correct"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            key, correct = ("", ""), None
        if not isinstance(correct, bool):
            raise DataError(f'{path}:{number}: expected {{"source": "...", "id": "...", "correct": true or false}}')
        if key in labels:
            raise DataError(f"{path}:{number}: {key} has a label already; one answer per question can be labelled")
        labels[key] = correct
    return labels


def agreement_of(first: str, second: str, pairs: Sequence[tuple[bool, bool]]) -> PairAgreement:
    """How far two opinions of the same cases agree.

    Args:
        first: name of the first opinion.
        second: of the second.
        pairs: both, for each case.

    Source: Cohen's kappa (Educational and Psychological Measurement 20, 1960); percentile bootstrap over cases.

    Example:
        >>> agreement_of("a", "b", [(True, True)] * 4 + [(False, False)] * 4 + [(True, False)] * 2).kappa
        0.6153846153846154
    """
    counts_4 = np.array([sum(pair == cell for pair in pairs) for cell in _CELLS], dtype=np.int64)
    both, only_first, only_second, neither = counts_4.tolist()
    kappa, low, high = None, -1.0, 1.0
    if pairs:
        found_1 = _kappas(counts_4[None].astype(float))
        kappa = float(found_1[0]) if np.isfinite(found_1[0]) else None
        draws_R4 = np.random.default_rng(0).multinomial(len(pairs), counts_4 / len(pairs), size=_RESAMPLES)
        kappas_R = _kappas(draws_R4.astype(float))
        known = kappas_R[np.isfinite(kappas_R)]
        if kappa is not None and len(known):
            low, high = (float(bound) for bound in np.percentile(known, [2.5, 97.5]))
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


def _report(
    model: str, judged: Sequence[tuple[EpisodeRecord, Judgement]], labels: Labels, errors: Mapping[str, int]
) -> JudgeReport:
    ems = [bool(exact_match(record.episode.answer, record.question.answers)) for record, _ in judged]
    says = [verdict.is_correct for _, verdict in judged]
    agreements = [agreement_of("judge", "em", list(zip(says, ems, strict=True)))]
    labelled = [(labels.get(record.question.key), says[n], ems[n], n) for n, (record, _) in enumerate(judged)]
    known = [(label, said, em, n) for label, said, em, n in labelled if label is not None]
    truth, rated = "em", [(judged[n][1], em) for n, em in enumerate(ems)]
    if labels:
        agreements.append(agreement_of("judge", "label", [(said, label) for label, said, _, _ in known]))
        agreements.append(agreement_of("em", "label", [(em, label) for label, _, em, _ in known]))
        truth, rated = "label", [(judged[n][1], label) for label, _, _, n in known]
    bins = _calibration([((verdict.approach or 0) / 100, is_right) for verdict, is_right in rated])
    return JudgeReport(
        model=model,
        num_cases=len(judged) + sum(errors.values()),
        num_labelled=len(known),
        errors=errors,
        agreements=tuple(agreements),
        truth=truth,
        calibration=bins,
        calibration_error=_calibration_error(bins),
    )


def _calibration(cases: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    bins = []
    for number in range(BINS):
        mine = [(rating, right) for rating, right in cases if min(int(rating * BINS), BINS - 1) == number]
        mean = float(np.mean([rating for rating, _ in mine])) if mine else None
        bins.append(Bin(number / BINS, (number + 1) / BINS, mean, rate_of(sum(r for _, r in mine), len(mine))))
    return tuple(bins)


def _calibration_error(bins: Sequence[Bin]) -> float | None:
    total = sum(each.correct.n for each in bins)
    if not total:
        return None
    return sum(
        each.correct.n / total * abs(each.mean_rating - each.correct.value)
        for each in bins
        if each.mean_rating is not None and each.correct.value is not None
    )
