"""What the figures of runs show: lines and bars, worked out of run folders without drawing anything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from seekling.errors import DataError
from seekling.evaluate.behaviour_rates import (
    CurvePoint,
    behaviour_curves,
    behaviour_rates,
    error_causes,
    first_change,
)
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.intervals import Rate
from seekling.report.read import RunFolder
from seekling.types import EpisodeRecord

MAX_POINTS = 40
"""A curve of behaviours pools neighbouring steps until it has no more points than this: fewer, with an interval."""

_THEMES: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    # What SLM-RL-Search shows as its figures 1 and 2.
    ("sft_loss", "sft", (("loss", "SFT loss"),)),
    ("rl_accuracy", "rl", (("em_mean", "training accuracy (exact match)"),)),
    ("sft", "sft", (("loss", "SFT loss"), ("entropy", "entropy"), ("grad_norm", "gradient norm"))),
    ("rl_reward", "rl", (("reward_mean", "reward"), ("em_mean", "exact match"), ("answered_rate", "answered"))),
    (
        "rl_effort",
        "rl",
        (("searches_mean", "searches"), ("turns_mean", "turns"), ("action_tokens_mean", "tokens written")),
    ),
    (
        "rl_health",
        "rl",
        (
            ("entropy", "entropy"),
            ("kl", "KL to the reference"),
            ("kl_reference", "KL to the reference"),
            ("kl_sampler", "KL sampler to learner"),
            ("grad_norm", "gradient norm"),
            ("loss", "loss"),
            ("invalid_rate", "unreadable actions"),
        ),
    ),
    (
        "rl_updates",
        "rl",
        (
            ("clip_fraction", "clipped tokens"),
            ("clip_fraction_low", "clipped low"),
            ("clip_fraction_high", "clipped high"),
            ("ratio_mean", "mean ratio"),
            ("ratio_max", "largest ratio"),
            ("correction_ess", "effective sample of the correction"),
        ),
    ),
)
"""Name of a figure, stage of the metrics, and per panel the metric and its title."""
_RATES = {"em_mean", "answered_rate", "invalid_rate", "correction_ess"}


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; `low` and `high` are empty where there is no interval."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Curves that share axes."""

    title: str
    lines: tuple[Line, ...]
    is_rate: bool = False
    """In [0, 1]."""
    changes_at: int | None = None
    """The first step whose interval no longer touches that of the first; a dotted line stands there."""


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """Panels side by side."""

    name: str
    """Of the file, without its suffix."""
    panels: tuple[CurvePanel, ...]
    steps_per_epoch: float | None = None
    """For a second axis in epochs; None where there are none, or runs differ in it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Bars of one colour: a value and an interval per name."""

    name: str
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BarFigure:
    """Rates, one group of bars per name."""

    name: str
    x_label: str
    names: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class StackFigure:
    """Counts that add up, one stack per name."""

    name: str
    x_label: str
    names: tuple[str, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]


def figures_of(runs: Sequence[RunFolder]) -> list[CurveFigure | BarFigure | StackFigure]:
    """Every figure that some runs hold numbers for.

    Raises:
        DataError: there is none.
    """
    runs = _with_own_names(runs)
    figures: list[CurveFigure | BarFigure | StackFigure] = [*_learning_curves(runs), *_behaviour_curves(runs)]
    evaluated = [(run, name) for run in runs for name in run.evaluations]
    if evaluated:
        figures.append(_accuracy(evaluated, runs))
        records = {_title(run, name, runs): _records(run, f"eval-{name}") for run, name in evaluated}
        figures += _behaviour_bars({title: some for title, some in records.items() if some})
    if not figures:
        names = ", ".join(str(run.path) for run in runs)
        raise DataError(f"nothing to draw in {names}; expected metrics.jsonl, eval/*.json or episodes/*.jsonl")
    return figures


def _with_own_names(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Runs in folders of the same name, such as a/demo and b/demo, are told apart by a number."""
    seen = Counter[str]()
    named = []
    for run in runs:
        seen[run.name] += 1
        named.append(run if seen[run.name] == 1 else replace(run, name=f"{run.name} ({seen[run.name]})"))
    return named


def _learning_curves(runs: Sequence[RunFolder]) -> Iterator[CurveFigure]:
    for name, stage, metrics in _THEMES:
        panels = []
        for metric, title in metrics:
            lines = [line for run in runs if (line := _metric_line(run, stage, metric)) is not None]
            if lines:
                panels.append(CurvePanel(title, tuple(lines), is_rate=metric in _RATES))
        if panels:
            yield CurveFigure(name, tuple(panels), _steps_per_epoch(runs) if stage == "sft" else None)


def _steps_per_epoch(runs: Sequence[RunFolder]) -> float | None:
    """Of SFT; a run that is not through with it does not know."""
    found: set[float] = set()
    for run in runs:
        section, done = run.recipe.get("sft"), run.progress.get("done")
        epochs = section.get("epochs") if isinstance(section, dict) else None
        steps = [step for row in run.metrics.get("sft", []) if isinstance(step := row.get("step"), int)]
        if steps and isinstance(done, list) and "sft" in done and isinstance(epochs, int) and epochs > 0:
            found.add(max(steps) / epochs)
    return found.pop() if len(found) == 1 else None


def _metric_line(run: RunFolder, stage: str, metric: str) -> Line | None:
    points = [
        (step, float(value))
        for row in run.metrics.get(stage, [])
        if isinstance(step := row.get("step"), int) and isinstance(value := row.get(metric), int | float)
    ]
    if not points:
        return None
    return Line(run.name, tuple(step for step, _ in points), tuple(value for _, value in points))


def _behaviour_curves(runs: Sequence[RunFolder]) -> Iterator[CurveFigure]:
    """One figure for each run, since every behaviour has a panel of its own."""
    for run in runs:
        records = _records(run, "rl")
        num_steps = len({record.step for record in records})
        if num_steps < 2:
            continue
        curves = behaviour_curves(records, window=-(-num_steps // MAX_POINTS))
        panels = [_rate_panel(run.name, name, curve) for name, curve in curves.items() if any(p.rate.k for p in curve)]
        if panels:
            suffix = f"-{_file_name(run.name)}" if len(runs) > 1 else ""
            yield CurveFigure(f"rl_behaviours{suffix}", tuple(panels))


def _rate_panel(run: str, behaviour: str, curve: Sequence[CurvePoint]) -> CurvePanel:
    change = first_change(curve)
    line = Line(
        run,
        steps=tuple(point.step for point in curve),
        values=tuple(point.rate.value or 0.0 for point in curve),
        low=tuple(point.rate.low for point in curve),
        high=tuple(point.rate.high for point in curve),
    )
    return CurvePanel(behaviour, (line,), is_rate=True, changes_at=None if change is None else change.step)


def _accuracy(evaluated: Sequence[tuple[RunFolder, str]], runs: Sequence[RunFolder]) -> BarFigure:
    names, values, low, high = [], [], [], []
    for run, name in evaluated:
        em = run.evaluations[name].get("em")
        if not isinstance(em, dict):
            continue
        numbers = [float(number) for key in ("value", "low", "high") if isinstance(number := em.get(key), int | float)]
        if len(numbers) == 3:
            names.append(f"{_title(run, name, runs)} ({em.get('k')}/{em.get('n')})")
            values.append(numbers[0])
            low.append(numbers[1])
            high.append(numbers[2])
    return BarFigure("accuracy", "exact match", tuple(names), (Series("EM", tuple(values), tuple(low), tuple(high)),))


def _behaviour_bars(records: Mapping[str, Sequence[EpisodeRecord]]) -> Iterator[BarFigure | StackFigure]:
    if not records:
        return
    rates = {title: behaviour_rates(some) for title, some in records.items()}
    shown = [name for name in BEHAVIOURS if any(name in each and each[name].k for each in rates.values())]
    if shown:
        series = [
            Series(
                title, *zip(*[_ends(each[name]) if name in each else (0.0, 0.0, 0.0) for name in shown], strict=True)
            )
            for title, each in rates.items()
        ]
        yield BarFigure("behaviours", "share of episodes", tuple(shown), tuple(series))
    causes = [error_causes(some) for some in records.values()]
    right = tuple(len(some) - sum(each.values()) for some, each in zip(records.values(), causes, strict=True))
    parts = [("right", right), *((cause, tuple(each[cause] for each in causes)) for cause in ERROR_CAUSES)]
    yield StackFigure("errors", "episodes", tuple(records), tuple(part for part in parts if any(part[1])))


def _ends(rate: Rate) -> tuple[float, float, float]:
    return rate.value or 0.0, rate.low, rate.high


def _records(run: RunFolder, stage: str) -> list[EpisodeRecord]:
    return [record for record in run.episodes if record.stage == stage]


def _title(run: RunFolder, name: str, runs: Sequence[RunFolder]) -> str:
    return f"{run.name} {name}" if len(runs) > 1 else name


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "run"
