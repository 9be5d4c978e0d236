"""Figures of runs for a paper: learning curves and bars, each as PNG and SVG.

Curves are those of the page (`curves`), bars and stacks the figures of the summaries. matplotlib is imported when the
first figure is drawn, so that nothing else needs it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from seekling.errors import DataError, MissingExtraError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES, detect_behaviours
from seekling.evaluate.intervals import Rate
from seekling.files import replacing
from seekling.report.curves import Chart, charts_of
from seekling.report.read import RunFolder
from seekling.report.results import Policy, policies_of
from seekling.types import StopReason

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = ("png", "svg")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
_COLUMNS = 3
_ACCURACY = "training accuracy (exact match)"
_CURVES: Mapping[str, tuple[str, ...]] = {
    # What SLM-RL-Search shows as its figures 1 and 2.
    "sft_loss": ("SFT loss",),
    "rl_accuracy": (_ACCURACY,),
    "sft": ("SFT loss", "SFT entropy", "SFT grad norm"),
    "rl_reward": ("Reward", "Answered"),
    "rl_effort": ("Searches", "Turns", "Action length"),
    "rl_health": ("Entropy", "Sampler against learner", "Gradient norm", "RL loss", "RL kl", "Unreadable actions"),
    "rl_updates": ("Clipped tokens", "Ratio to the old policy", "Sampler's correction"),
}
"""Name of a file -> titles of its charts."""
_NONE = Rate(0, 0, None, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """Charts side by side."""

    name: str
    """Of the file, without its suffix."""
    charts: tuple[Chart, ...]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        columns = min(_COLUMNS, len(self.charts))
        return 3.2 * columns, 2.4 * math.ceil(len(self.charts) / columns) + 0.4

    def draw(self, figure: Figure) -> None:
        """Draw the charts, a name in one colour in all of them, also where another has no curve."""
        columns = min(_COLUMNS, len(self.charts))
        grid = figure.subplots(math.ceil(len(self.charts) / columns), columns, squeeze=False).flat
        names = list(dict.fromkeys(line.name for chart in self.charts for line in chart.lines))
        shown: dict[str, Line2D] = {}
        for axes, chart in zip(grid, self.charts, strict=False):
            shown |= _draw_chart(axes, chart, names)
        for axes in grid[len(self.charts) :]:
            axes.set_axis_off()
        if len(names) > 1:
            handles, labels = [shown[name] for name in names], [_label(name) for name in names]
            figure.legend(handles, labels, loc="outside lower center", ncols=_COLUMNS, fontsize=8)


@dataclass(frozen=True, slots=True)
class BarFigure:
    """Rates, one group of bars per name."""

    name: str
    x_label: str
    names: tuple[str, ...]
    series: tuple[tuple[str, tuple[Rate | None, ...]], ...]
    """Bars of one colour: their name, and a rate per name."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return 6.4, 1.2 + 0.16 * len(self.names) * (len(self.series) + 1)

    def draw(self, figure: Figure) -> None:
        """Draw the bars with their intervals."""
        axes, width = figure.subplots(), 0.8 / len(self.series)
        for number, (name, rates) in enumerate(self.series):
            values, ends = [each.value or 0.0 if each else 0.0 for each in rates], [each or _NONE for each in rates]
            places = [row + (number + 0.5) * width - 0.4 for row in range(len(self.names))]
            axes.barh(places, values, height=width * 0.9, color=COLOURS[number % len(COLOURS)], label=_label(name))
            # Subtraction leaves a hair below 0 where value and end are the same; an error bar may not be negative.
            below = [max(0.0, value - end.low) for value, end in zip(values, ends, strict=True)]
            above = [max(0.0, end.high - value) for value, end in zip(values, ends, strict=True)]
            axes.errorbar(values, places, xerr=[below, above], fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
        axes.set_xlim(0, 1)
        _finish_bars(axes, self.names, self.x_label, has_legend=len(self.series) > 1)


@dataclass(frozen=True, slots=True)
class StackFigure:
    """Counts that add up, one stack per name."""

    name: str
    x_label: str
    names: tuple[str, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return 6.4, 1.4 + 0.35 * len(self.names)

    def draw(self, figure: Figure) -> None:
        """Draw the stacks."""
        axes, ends = figure.subplots(), [0.0] * len(self.names)
        for number, (part, counts) in enumerate(self.parts):
            colour = COLOURS[number % len(COLOURS)]
            axes.barh(range(len(ends)), counts, left=ends, color=colour, label=_label(part))
            ends = [end + count for end, count in zip(ends, counts, strict=True)]
        _finish_bars(axes, self.names, self.x_label, has_legend=True)


def figures_of(runs: Sequence[RunFolder]) -> list[CurveFigure | BarFigure | StackFigure]:
    """Every figure that some runs hold numbers for.

    Raises:
        DataError: there is none.
    """
    figures: list[CurveFigure | BarFigure | StackFigure] = list(_curve_figures(runs))
    policies = policies_of(runs)
    if policies:
        figures += _bars(policies)
    if not figures:
        names = ", ".join(str(run.path) for run in runs)
        raise DataError(f"nothing to draw in {names}; expected metrics.jsonl, eval/*.json or episodes/*.jsonl")
    return figures


def _curve_figures(runs: Sequence[RunFolder]) -> Iterator[CurveFigure]:
    found: dict[str, list[tuple[str, Chart]]] = {}
    behaviours = []
    seen = Counter[str]()
    for run in runs:
        seen[run.name] += 1  # runs in folders of one name, such as a/demo and b/demo, are told apart by a number
        name = run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})"
        shown = (
            (record.step, detect_behaviours(record.question, record.episode))
            for record in run.episodes
            if record.stage == "rl" and record.episode.stop_reason is not StopReason.INFRA_FAILURE
        )
        charts = charts_of(run, shown)
        for chart in (*charts.learning, *charts.more):
            found.setdefault(chart.title, []).append((name, chart))
            accuracy = tuple(line for line in chart.lines if chart.title == "Reward" and "EM" in line.name)
            if accuracy:
                found.setdefault(_ACCURACY, []).append((name, replace(chart, title=_ACCURACY, lines=accuracy)))
        if charts.behaviours:
            own = re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "run"
            behaviours.append(
                CurveFigure(f"rl_behaviours-{own}" if len(runs) > 1 else "rl_behaviours", charts.behaviours)
            )
    for name, titles in _CURVES.items():
        if any(title in found for title in titles):
            yield CurveFigure(name, tuple(_on_shared_axes(found[title]) for title in titles if title in found))
    yield from behaviours


def _on_shared_axes(charts: Sequence[tuple[str, Chart]]) -> Chart:
    """One chart with the lines of several runs."""
    first = charts[0][1]
    if len(charts) == 1:
        return first
    lines = [
        replace(line, name=run if len(chart.lines) == 1 else f"{run}: {line.name}")
        for run, chart in charts
        for line in chart.lines
    ]
    epochs = {chart.steps_per_epoch for _, chart in charts}
    return replace(first, lines=tuple(lines), steps_per_epoch=epochs.pop() if len(epochs) == 1 else None)


def _bars(policies: Sequence[Policy]) -> Iterator[BarFigure | StackFigure]:
    has_runs = len({each.place for each in policies}) > 1
    titles = [f"{each.place} {each.name}" if has_runs else each.name for each in policies]
    scores = [each.summary.em for each in policies]
    names = tuple(f"{title} ({em.k}/{em.n})" for title, em in zip(titles, scores, strict=True))
    yield BarFigure("accuracy", "exact match", names, (("EM", tuple(scores)),))
    rates = [each.summary.behaviours for each in policies]
    shown = tuple(name for name in BEHAVIOURS if any(name in each and each[name].k for each in rates))
    if shown:
        series = zip(titles, (tuple(each.get(name) for name in shown) for each in rates), strict=True)
        yield BarFigure("behaviours", "share of episodes", shown, tuple(series))
    told = [(title, each.summary) for title, each in zip(titles, policies, strict=True) if each.summary.error_causes]
    if told:
        parts = [("right", tuple(summary.em.k for _, summary in told))]
        parts += [(cause, tuple(summary.error_causes.get(cause, 0) for _, summary in told)) for cause in ERROR_CAUSES]
        kept = tuple(part for part in parts if any(part[1]))
        yield StackFigure("errors", "episodes", tuple(title for title, _ in told), kept)


def write_figures(runs: Sequence[RunFolder], out: Path) -> list[Path]:
    """Draw everything that the runs hold figures for.

    Args:
        runs: several share the axes of each curve.
        out: folder to write into; made when it is not there.

    Returns:
        The files, two per figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        DataError: the runs hold nothing that could be drawn.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("figures need matplotlib: pip install 'seekling[figures]'") from None
    wanted = figures_of(runs)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    style = matplotlib.rc_context(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "svg.hashsalt": "seekling",  # the same figure is the same file
            "svg.fonttype": "none",
            "text.parse_math": False,  # names of runs are text: a $ in one is a $
        }
    )
    with style:
        for each in wanted:
            figure = Figure(figsize=each.size, layout="constrained")
            each.draw(figure)
            written += [_save(figure, out / f"{each.name}.{suffix}") for suffix in FORMATS]
    return written


def _draw_chart(axes: Axes, chart: Chart, names: Sequence[str]) -> dict[str, Line2D]:
    axes.set_title(chart.title, loc="left")
    axes.set_xlabel("step")
    axes.set_ylabel(chart.y_label)
    shown: dict[str, Line2D] = {}
    for line in chart.lines:
        colour = COLOURS[names.index(line.name) % len(COLOURS)]
        marker = "o" if len(line.xs) <= 20 else ""
        ys = [math.nan if value is None else value for value in line.ys]
        (shown[line.name],) = axes.plot(line.xs, ys, color=colour, marker=marker, markersize=3)
        if line.low and line.high:
            axes.fill_between(line.xs, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if chart.steps_per_epoch is not None:
        _add_epochs(axes, chart.steps_per_epoch)
    if chart.changes_at is not None:
        axes.axvline(chart.changes_at, color="#888888", linestyle=":", linewidth=1)
    if chart.top == 1:
        axes.set_ylim(-0.03, 1.03)
    return shown


def _add_epochs(axes: Axes, steps_per_epoch: float) -> None:
    epochs = (lambda step: step / steps_per_epoch, lambda epoch: epoch * steps_per_epoch)
    axes.secondary_xaxis("top", functions=epochs).set_xlabel("epoch", loc="right")


def _finish_bars(axes: Axes, names: Sequence[str], x_label: str, *, has_legend: bool) -> None:
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    if has_legend:  # outside the axes: looking for the best place inside takes seconds on a busy machine
        axes.legend(fontsize=8, ncols=_COLUMNS, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _label(name: str) -> str:
    """A name as a label; one that begins with _ would be left out of legends, and control characters are no text."""
    text = "".join(character if character.isprintable() else " " for character in name)
    return f" {text}" if text.startswith("_") else text


def _save(figure: Figure, path: Path) -> Path:
    with replacing(path) as temporary:
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(temporary, format=path.suffix[1:], dpi=200, metadata=metadata)
    return path
