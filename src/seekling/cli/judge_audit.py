"""`seekling eval --judge-audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from seekling.cli import options
from seekling.config import JudgeConfig

if TYPE_CHECKING:
    from seekling.evaluate.judge_audit import JudgeReport


def command(
    ctx: typer.Context,
    episodes: Annotated[Path, typer.Argument(help="Episodes file, such as runs/demo/episodes/eval-rl.jsonl.")],
    labels: Annotated[Path | None, typer.Option(help='JSONL rows {"source", "id", "correct"} by people.')] = None,
    judge_url: options.JudgeUrl = "",
    judge_model: Annotated[str, typer.Option(help="Model name at --judge-url; without one a model spec.")] = "default",
    judge_key_env: options.JudgeKeyEnv = "",
    judge_extra: options.JudgeExtra = "",
    judge_max_tokens: options.JudgeTokens = 512,
    judge_requests_per_minute: options.Requests = 0.0,
    in_flight: Annotated[int, typer.Option(min=1, help="Episodes judged at once.")] = 8,
    limit: Annotated[int, typer.Option(min=0, help="Judge the first so many episodes; 0: all.")] = 0,
    judge_cache: options.JudgeCache = "",
    as_json: options.AsJson = False,
) -> None:
    """Compare a judge with exact match and with labelled answers.

    Prints how often they agree, how far beyond chance (kappa), and how often answers are right at each rating of the
    approach, all with 95 % intervals. The judge is asked as it is for `rl.reward.kind = "judge"`.
    """
    from seekling.evaluate import read_records
    from seekling.evaluate.judge_audit import audit_judge, read_labels
    from seekling.pipeline.judge_reward import open_judge
    from seekling.pipeline.reporter import Reporter

    config = options.section_of(JudgeConfig, ctx.params, "judge_", in_flight=in_flight)
    records = list(read_records(episodes))[: limit or None]
    known = read_labels(labels) if labels is not None else {}
    reporter = Reporter()
    with open_judge(config, episodes.parent, reporter) as judge, reporter.track("judge", len(records)) as advance:
        report = audit_judge(judge, records, known, in_flight=in_flight, on_verdict=lambda: advance(""))
    if as_json:
        typer.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        _show(report)


def _show(report: JudgeReport) -> None:
    from seekling.evaluate.intervals import format_rate

    console = Console(highlight=False)
    table = Table("correct by", "both, first, second, none", "agreement", "kappa")
    for each in report.agreements:
        counts = f"{each.both}, {each.only_first}, {each.only_second}, {each.neither}"
        kappa = "-" if each.kappa is None else f"{each.kappa:.2f} [{each.kappa_low:.2f}, {each.kappa_high:.2f}]"
        table.add_row(f"{each.first}, {each.second}", counts, format_rate(each.agreement), kappa)
    console.print(table)
    bins = Table("approach rated", "mean rating", f"correct by {report.truth}")
    for part in report.calibration:
        mean = "-" if part.mean_rating is None else f"{100 * part.mean_rating:.0f}"
        bins.add_row(f"{100 * part.low:.0f} to {100 * part.high:.0f}", mean, format_rate(part.correct))
    console.print(bins)
    if report.calibration_error is not None:
        console.print(f"calibration error: {100 * report.calibration_error:.1f} points")
    errors = ", ".join(f"{count} {cause}" for cause, count in report.errors.items()) or "none"
    console.print(f"judge: {report.model}; {report.num_cases} cases, {report.num_labelled} labelled; errors: {errors}")
