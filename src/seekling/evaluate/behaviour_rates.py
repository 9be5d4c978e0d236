"""How often episodes show each behaviour: per evaluation, and per step of training.

Episodes that ended in an infrastructure failure are left out of the rates, as they are of every figure; among the
causes of errors they have a name of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
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
    kept = [record for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]
    counts = Counter(name for record in kept for name in detect_behaviours(record.question, record.episode))
    has_programs = any(record.episode.protocol == "code" for record in kept)
    possible = (name for name in BEHAVIOURS if has_programs or name not in PROGRAM_BEHAVIOURS)
    return {name: rate_of(counts[name], len(kept)) for name in possible}


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


def behaviour_curves(
    shown: Iterable[tuple[int, Collection[str]]], *, max_points: int = 40
) -> dict[str, list[CurvePoint]]:
    """How often each behaviour is shown as training goes on.

    Args:
        shown: step and behaviours (`detect_behaviours`) of every episode that did not fail, in any order.
        max_points: neighbouring steps share one point until a curve has no more than this: fewer, with a narrower
            interval.

    Returns:
        Points in the order of steps, per behaviour that was ever shown, in the order of `BEHAVIOURS`. Episodes of one
        question are not independent, so the intervals are a little narrow.
    """
    by_step: dict[int, list[Collection[str]]] = {}
    for step, names in shown:
        by_step.setdefault(step, []).append(names)
    steps = sorted(by_step)
    window = max(1, -(-len(steps) // max_points))
    curves: dict[str, list[CurvePoint]] = {name: [] for name in BEHAVIOURS}
    for start in range(0, len(steps), window):
        members = [names for step in steps[start : start + window] for names in by_step[step]]
        counts = Counter(name for names in members for name in names)
        for name, points in curves.items():
            points.append(CurvePoint(steps[start : start + window][-1], rate_of(counts[name], len(members))))
    return {name: points for name, points in curves.items() if any(point.rate.k for point in points)}


def first_change(curve: Sequence[CurvePoint]) -> CurvePoint | None:
    """When a behaviour appears or goes: the first point whose interval lies wholly above or below the first point's."""
    return next(
        (point for point in curve if point.rate.low > curve[0].rate.high or point.rate.high < curve[0].rate.low), None
    )
