"""How often episodes show each behaviour: per evaluation, and per step of training.

Episodes that ended in an infrastructure failure are left out of the rates, as they are of every figure; among the
causes of errors they have a name of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from seekling.evaluate.behaviours import BEHAVIOURS
from seekling.evaluate.intervals import Rate, rate_of

PROGRAM_BEHAVIOURS = frozenset({"loop", "helper_function", "programmatic_extraction", "silent_execution"})
"""Only programs show these."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A behaviour's rate among the episodes of a few steps."""

    step: int
    """The last of the steps."""
    rate: Rate


def behaviour_rates(shown: Sequence[Collection[str]], *, has_programs: bool = True) -> dict[str, Rate]:
    """The share of episodes that show each behaviour, with its interval, in the order of `BEHAVIOURS`.

    Args:
        shown: behaviours of each episode that did not fail.
        has_programs: whether any of them could write a program; where none could, what only programs show is left out.
    """
    counts = Counter(name for names in shown for name in names)
    possible = (name for name in BEHAVIOURS if has_programs or name not in PROGRAM_BEHAVIOURS)
    return {name: rate_of(counts[name], len(shown)) for name in possible}


def behaviour_curves(
    shown: Iterable[tuple[int, Collection[str]]], *, max_points: int = 40
) -> dict[str, list[CurvePoint]]:
    """How often each behaviour is shown as training goes on.

    Args:
        shown: step and behaviours of every episode that did not fail, in any order.
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
        some = steps[start : start + window]
        for name, rate in behaviour_rates([names for step in some for names in by_step[step]]).items():
            curves[name].append(CurvePoint(some[-1], rate))
    return {name: points for name, points in curves.items() if any(point.rate.k for point in points)}


def first_change(curve: Sequence[CurvePoint]) -> CurvePoint | None:
    """When a behaviour appears or goes: the first point whose interval lies wholly above or below the first point's."""
    return next(
        (point for point in curve if point.rate.low > curve[0].rate.high or point.rate.high < curve[0].rate.low), None
    )
