"""Figures of runs for a paper: learning curves and bars, each as PNG and SVG.

What is drawn is worked out in `figure_data`; this module only draws. matplotlib is imported when the first figure is
drawn, so that nothing else needs it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seekling.errors import MissingExtraError
from seekling.report.figure_data import BarFigure, CurveFigure, StackFigure, figures_of
from seekling.report.read import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = ("png", "svg")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
_COLUMNS = 3


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
            figure = Figure(figsize=_size(each), layout="constrained")
            _draw(figure, each)
            written += [_save(figure, out / f"{each.name}.{suffix}") for suffix in FORMATS]
    return written


def _size(each: CurveFigure | BarFigure | StackFigure) -> tuple[float, float]:
    if isinstance(each, CurveFigure):
        columns = min(_COLUMNS, len(each.panels))
        return 3.2 * columns, 2.4 * math.ceil(len(each.panels) / columns) + 0.4
    if isinstance(each, BarFigure):
        return 6.4, 1.2 + 0.16 * len(each.names) * (len(each.series) + 1)
    return 6.4, 1.4 + 0.35 * len(each.names)


def _draw(figure: Figure, each: CurveFigure | BarFigure | StackFigure) -> None:
    if isinstance(each, CurveFigure):
        _draw_curves(figure, each)
    elif isinstance(each, BarFigure):
        _draw_bars(figure.subplots(), each)
    else:
        _draw_stacks(figure.subplots(), each)


def _draw_curves(figure: Figure, curves: CurveFigure) -> None:
    columns = min(_COLUMNS, len(curves.panels))
    rows = math.ceil(len(curves.panels) / columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    # A run has one colour in all panels, also where another run has no curve.
    names = list(dict.fromkeys(line.name for panel in curves.panels for line in panel.lines))
    shown: dict[str, Line2D] = {}
    for number, panel in enumerate(curves.panels):
        axes = grid[number // columns][number % columns]
        axes.set_title(panel.title, loc="left")
        axes.set_xlabel("step")
        for line in panel.lines:
            colour = COLOURS[names.index(line.name) % len(COLOURS)]
            marker = "o" if len(line.steps) <= 20 else ""
            (shown[line.name],) = axes.plot(line.steps, line.values, color=colour, marker=marker, markersize=3)
            if line.low and line.high:
                axes.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        if curves.steps_per_epoch is not None:
            _add_epochs(axes, curves.steps_per_epoch)
        if panel.changes_at is not None:
            axes.axvline(panel.changes_at, color="#888888", linestyle=":", linewidth=1)
        if panel.is_rate:
            axes.set_ylim(-0.03, 1.03)
    for number in range(len(curves.panels), rows * columns):
        grid[number // columns][number % columns].set_axis_off()
    if len(names) > 1:
        labels = [_label(name) for name in names]
        figure.legend([shown[name] for name in names], labels, loc="outside lower center", ncols=_COLUMNS, fontsize=8)


def _add_epochs(axes: Axes, steps_per_epoch: float) -> None:
    epochs = (lambda step: step / steps_per_epoch, lambda epoch: epoch * steps_per_epoch)
    axes.secondary_xaxis("top", functions=epochs).set_xlabel("epoch", loc="right")


def _draw_bars(axes: Axes, bars: BarFigure) -> None:
    width = 0.8 / len(bars.series)
    for number, series in enumerate(bars.series):
        places = [row + (number + 0.5) * width - 0.4 for row in range(len(bars.names))]
        axes.barh(
            places, series.values, height=width * 0.9, color=COLOURS[number % len(COLOURS)], label=_label(series.name)
        )
        # Subtraction leaves a hair below 0 where value and end are the same; an error bar may not be negative.
        below = [max(0.0, value - low) for value, low in zip(series.values, series.low, strict=True)]
        above = [max(0.0, high - value) for value, high in zip(series.values, series.high, strict=True)]
        axes.errorbar(series.values, places, xerr=[below, above], fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
    axes.set_yticks(range(len(bars.names)), [_label(name) for name in bars.names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(bars.x_label)
    if len(bars.series) > 1:
        _legend_above(axes)


def _draw_stacks(axes: Axes, stacks: StackFigure) -> None:
    ends = [0.0] * len(stacks.names)
    for number, (part, counts) in enumerate(stacks.parts):
        axes.barh(range(len(ends)), counts, left=ends, color=COLOURS[number % len(COLOURS)], label=_label(part))
        ends = [end + count for end, count in zip(ends, counts, strict=True)]
    axes.set_yticks(range(len(stacks.names)), [_label(name) for name in stacks.names])
    axes.invert_yaxis()
    axes.set_xlabel(stacks.x_label)
    _legend_above(axes)


def _legend_above(axes: Axes) -> None:
    """Outside the axes: looking for the best place inside takes seconds on a busy machine."""
    axes.legend(fontsize=8, ncols=_COLUMNS, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _label(name: str) -> str:
    """A name as a label; one that begins with _ would be left out of legends, and control characters are no text."""
    text = "".join(character if character.isprintable() else " " for character in name)
    return f" {text}" if text.startswith("_") else text


def _save(figure: Figure, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(temporary, format=path.suffix[1:], dpi=200, metadata=metadata)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
