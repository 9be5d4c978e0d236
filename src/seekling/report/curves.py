"""The curves of a run, worked out once; the page draws them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from seekling.evaluate.episode_facts import CurvePoint, behaviour_curves, first_change
from seekling.report.read import RunFolder
from seekling.report.results import POLICIES
from seekling.types import Json

TONES = ("rl", "train", "sft", "expert", "bad")
_NOT_CURVES = {"step", "time_s"}
_SAMPLER = re.compile(r"sampler_\d+_")


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; `low` and `high` are empty where there is no interval."""

    name: str
    tone: str
    """Name of its colour on the page."""
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    is_from_zero: bool = True
    top: float | None = None
    """The highest value there can be, such as 1 of a rate."""
    changes_at: int | None = None
    """The first step whose interval no longer touches that of the first; a dotted line stands there."""


@dataclass(frozen=True, slots=True)
class Charts:
    """All charts of a run, by the part of the page that shows them."""

    learning: tuple[Chart, ...]
    more: tuple[Chart, ...]
    """Of metrics that no other chart shows."""
    time: tuple[Chart, ...]
    behaviours: tuple[Chart, ...]
    """How often each is shown over the steps of RL."""
    confidence: tuple[Chart, ...]
    """Risk by coverage, of the evaluations whose policy has a calibration."""


@dataclass(frozen=True, slots=True)
class _Spec:
    stage: str
    title: str
    y_label: str
    lines: tuple[tuple[str, str, str], ...]
    """Metric, name and tone."""
    top: float | None = None
    x_label: str = ""


_LEARNING = (
    _Spec(
        "dev", "Development questions", "exact match", (("em", "EM", "rl"), ("answered_rate", "answered", "base")),
        1, "RL optimizer step (0: after SFT)",
    ),
    _Spec("sft", "SFT loss", "nats per action token", (("loss", "loss", "sft"),)),
    _Spec(
        "rl", "Reward", "mean",
        (("reward_mean", "reward", "train"), ("em_mean", "EM", "rl"), ("f1_mean", "F1", "sft")), 1,
    ),
    _Spec("rl", "Searches", "per episode", (("searches_mean", "searches", "rl"),)),
    _Spec("rl", "Action length", "tokens per episode", (("action_tokens_mean", "tokens", "rl"),)),
    _Spec("rl", "Entropy", "nats", (("entropy", "entropy", "rl"),)),
    _Spec(
        "rl", "Sampler against learner", "KL, nats",
        (("kl_sampler", "KL", "rl"), ("kl_reference", "KL to reference", "sft")),
    ),
    _Spec(
        "rl", "Groups that teach nothing", "groups",
        (("num_zero_variance_groups", "zero variance", "train"), ("num_groups", "all", "base")),
    ),
    _Spec(
        "rl", "Episodes cut or failed", "episodes",
        (("num_truncated_episodes", "truncated", "train"), ("num_failed_episodes", "failed", "bad")),
    ),
    _Spec("rl", "Unreadable actions", "share of turns", (("invalid_rate", "invalid", "bad"),)),
    _Spec(
        "rl", "Clipped tokens", "share", (("clip_fraction_low", "low", "train"), ("clip_fraction_high", "high", "rl"))
    ),
    _Spec(
        "rl", "Ratio to the old policy", "per token", (("ratio_mean", "mean", "base"), ("ratio_max", "largest", "bad"))
    ),
    _Spec("rl", "Sampler's correction", "effective sample", (("correction_ess", "share of tokens", "rl"),), 1),
    _Spec("rl", "Gradient norm", "before clipping", (("grad_norm", "norm", "base"),)),
    _Spec("rl", "Turns", "per episode", (("turns_mean", "turns", "rl"),)),
    _Spec("rl", "Answered", "share of episodes", (("answered_rate", "answered", "rl"),), 1),
)  # fmt: skip
_TIME = (
    _Spec("rl", "Time of a step", "seconds", (("sample_s", "sampling", "sft"), ("learn_s", "learning", "rl"))),
    _Spec("rl", "Throughput", "tokens per second", (("tokens_per_s", "tokens per second", "rl"),)),
    _Spec("rl", "Samplers with nothing to do", "share of their time", (("samplers_idle_share", "idle", "bad"),), 1),
    _Spec("rl", "Groups that wait for a sampler", "groups", (("queue_depth", "queue", "train"),)),
    _Spec("rl", "Staleness", "versions of the weights", (("staleness", "oldest token", "rl"),)),
    _Spec("rl", "Weights", "seconds", (("weights_write_s", "written", "sft"), ("weights_read_s", "read", "rl"))),
)


def charts_of(run: RunFolder, shown: Iterable[tuple[int, Collection[str]]]) -> Charts:
    """Every chart for which a run holds numbers.

    `shown` has step and behaviours of every episode of RL that did not fail.
    """
    columns = {stage: _columns_of(rows) for stage, rows in run.metrics.items()}
    learning = _known(_LEARNING, columns)
    behaviours = _behaviours(behaviour_curves(shown))
    most = sorted(behaviours, key=lambda chart: _reach(chart.lines[0]), reverse=True)[: len(TONES)]
    if most:
        lines = tuple(
            replace(chart.lines[0], name=chart.title, tone=tone, low=(), high=())
            for chart, tone in zip(most, TONES, strict=False)
        )
        learning.append(Chart("Behaviours that change most", "RL optimizer step", "share of episodes", lines, top=1))
    return Charts(
        learning=tuple(learning),
        more=tuple(_others(columns)),
        time=(*_known(_TIME, columns), *_samplers(columns.get("rl", {}))),
        behaviours=tuple(behaviours),
        confidence=tuple(_confidence(run)),
    )


_Columns = Mapping[str, tuple[float | None, ...]]


def _columns_of(rows: Sequence[Mapping[str, Json]]) -> _Columns:
    """Numbers of metric rows by name, None where a row lacks one. A resumed run repeats steps; the last word counts."""
    by_step = {step: row for row in rows if type(step := row.get("step")) is int}
    names = dict.fromkeys(name for row in by_step.values() for name in row if _number(row[name]) is not None)
    return {name: tuple(_number(row.get(name)) for row in by_step.values()) for name in names}


def _number(value: Json) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _known(specs: Sequence[_Spec], columns: Mapping[str, _Columns]) -> list[Chart]:
    charts = []
    for spec in specs:
        mine = columns.get(spec.stage, {})
        lines: dict[tuple[float | None, ...], Line] = {}
        for metric, name, tone in spec.lines:
            if metric not in mine:
                continue
            # Under an exact-match reward two curves are one; a line hidden under another only confuses.
            twin = lines.get(mine[metric])
            joined = f"{twin.name} = {name}" if twin else name
            lines[mine[metric]] = replace(twin, name=joined) if twin else _line(mine, metric, joined, tone)
        if lines:
            x_label = spec.x_label or f"{spec.stage.upper()} optimizer step"
            charts.append(Chart(spec.title, x_label, spec.y_label, tuple(lines.values()), top=spec.top))
    return charts


def _line(columns: _Columns, metric: str, name: str, tone: str) -> Line:
    return Line(name, tone, tuple(step or 0 for step in columns["step"]), columns[metric])


def _others(columns: Mapping[str, _Columns]) -> Iterable[Chart]:
    for stage, mine in columns.items():
        used = {metric for spec in (*_LEARNING, *_TIME) if spec.stage == stage for metric, _, _ in spec.lines}
        for metric in mine:
            if metric not in used | _NOT_CURVES and not metric.startswith("health_") and not _SAMPLER.match(metric):
                title = f"{stage.upper()} {metric.replace('_', ' ')}"
                line = _line(mine, metric, metric, "base")
                yield Chart(title, f"{stage.upper()} optimizer step", metric, (line,), is_from_zero=False)


def _samplers(rl: _Columns) -> Iterable[Chart]:
    """One chart of all samplers, which may be hundreds."""
    rates = [column for metric, column in rl.items() if _SAMPLER.match(metric)]
    steps = [[rate for rate in rates_of_step if rate is not None] for rates_of_step in zip(*rates, strict=True)]
    if rates:
        xs = tuple(step or 0 for step in rl["step"])
        slowest = Line("slowest", "bad", xs, tuple(min(each, default=None) for each in steps))
        fastest = Line("fastest", "rl", xs, tuple(max(each, default=None) for each in steps))
        lines = (slowest, fastest) if len(rates) > 1 else (replace(fastest, name="sampler"),)
        yield Chart("Throughput of a sampler", "RL optimizer step", "tokens per second", lines)


def _behaviours(curves: Mapping[str, Sequence[CurvePoint]]) -> list[Chart]:
    charts = []
    for name, curve in curves.items():
        if len(curve) < 2:
            continue
        change = first_change(curve)
        line = Line(
            "share",
            "train",
            xs=tuple(point.step for point in curve),
            ys=tuple(round(point.rate.value or 0.0, 4) for point in curve),
            low=tuple(point.rate.low for point in curve),
            high=tuple(point.rate.high for point in curve),
        )
        at = change.step if change else None
        spoken = name.replace("_", " ")
        charts.append(Chart(spoken, "RL optimizer step", "share of episodes", (line,), top=1, changes_at=at))
    return charts


def _reach(line: Line) -> float:
    values = [value for value in line.ys if value is not None]
    return max(values) - min(values)


def _confidence(run: RunFolder) -> Iterable[Chart]:
    lines = []
    for name, summary in run.evaluations.items():
        if summary.confidence is not None and len(summary.confidence.curve) > 1:
            covered, risks = zip(*summary.confidence.curve, strict=True)
            xs = tuple(round(100 * share, 1) for share in covered)
            lines.append(Line(POLICIES.get(name, name), name if name in POLICIES else "other", xs, risks))
    if lines:
        x_label = "questions answered, the surest first (%)"
        yield Chart("Risk by coverage", x_label, "share of these answers that are wrong", tuple(lines), top=1)
