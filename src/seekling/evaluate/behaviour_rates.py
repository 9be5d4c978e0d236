"""How often episodes show each behaviour: per evaluation, and per step of training.

Episodes that ended in an infrastructure failure are left out of the rates, as they are of every figure; among the
causes of errors they have a name of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES, detect_behaviours, error_cause
from seekling.evaluate.intervals import Rate, rate_of
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, StopReason

PROGRAM_BEHAVIOURS = frozenset({"loop", "helper_function", "programmatic_extraction", "silent_execution"})
"""Only programs show these; their rates are left out where no episode could write one."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A behaviour's rate among the episodes of a few steps."""

    step: int
    """The last of the steps."""
    rate: Rate


def behaviour_rates(records: Iterable[EpisodeRecord]) -> dict[str, Rate]:
    """The share of episodes that show each behaviour, with its interval, in the order of `BEHAVIOURS`."""
    kept = _kept(records)
    counts = _count(kept)
    return {name: rate_of(counts[name], len(kept)) for name in _possible(kept)}


def error_causes(records: Iterable[EpisodeRecord]) -> dict[str, int]:
    """How many episodes went wrong for which cause, every cause of `ERROR_CAUSES` named.

    Returns:
        Counts that sum to the episodes that are not right, those that ended in an infrastructure failure included.
    """
    counts = Counter(
        error_cause(record.question, record.episode, exact_match(record.episode.answer, record.question.answers))
        for record in records
    )
    return {cause: counts[cause] for cause in ERROR_CAUSES}


def behaviour_curves(records: Iterable[EpisodeRecord], *, window: int = 1) -> dict[str, list[CurvePoint]]:
    """How often each behaviour is shown as training goes on.

    Args:
        records: of `episodes/rl.jsonl`, in any order.
        window: neighbouring steps that share one point; more of them narrow the interval.

    Returns:
        Points in the order of steps, per behaviour in the order of `BEHAVIOURS`. Episodes of one question are not
        independent, so the intervals are a little narrow.
    """
    kept = _kept(records)
    steps = sorted({record.step for record in kept})
    windows = [steps[start : start + max(1, window)] for start in range(0, len(steps), max(1, window))]
    place = {step: number for number, some in enumerate(windows) for step in some}
    members: list[list[EpisodeRecord]] = [[] for _ in windows]
    for record in kept:
        members[place[record.step]].append(record)
    counts = [_count(some) for some in members]
    return {
        name: [
            CurvePoint(some[-1], rate_of(count[name], len(of)))
            for some, count, of in zip(windows, counts, members, strict=True)
        ]
        for name in _possible(kept)
    }


def first_change(curve: Sequence[CurvePoint]) -> CurvePoint | None:
    """When a behaviour appears or goes: the first point whose interval lies wholly above or below the first point's."""
    return next(
        (point for point in curve if point.rate.low > curve[0].rate.high or point.rate.high < curve[0].rate.low), None
    )


def _kept(records: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    return [record for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]


def _count(records: Sequence[EpisodeRecord]) -> Mapping[str, int]:
    return Counter(name for record in records for name in detect_behaviours(record.question, record.episode))


def _possible(records: Sequence[EpisodeRecord]) -> list[str]:
    has_programs = any(record.episode.protocol == "code" for record in records)
    return [name for name in BEHAVIOURS if has_programs or name not in PROGRAM_BEHAVIOURS]
