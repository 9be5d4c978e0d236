"""`seekling judge-audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from seekling.cli.chat_options import JudgeExtra, JudgeKeyEnv, JudgeTokens, JudgeUrl, Requests
from seekling.cli.section_options import section_of
from seekling.config import JudgeConfig

if TYPE_CHECKING:
    from seekling.evaluate.judge_audit import JudgeReport


def command(
    episodes: Annotated[Path, typer.Argument(help="Episodes file, such as runs/demo/episodes/eval-rl.jsonl.")],
    labels: Annotated[Path | None, typer.Option(help='JSONL rows {"source", "id", "correct"} by people.')] = None,
    judge_url: JudgeUrl = "",
    judge_model: Annotated[str, typer.Option(help="Model name at --judge-url; without one a model spec.")] = "default",
    judge_key_env: JudgeKeyEnv = "",
    judge_extra: JudgeExtra = "",
    judge_tokens: JudgeTokens = 512,
    requests_per_minute: Requests = 0.0,
    in_flight: Annotated[int, typer.Option(min=1, help="Episodes judged at once.")] = 8,
    limit: Annotated[int, typer.Option(min=0, help="Judge the first so many episodes; 0: all.")] = 0,
    cache: Annotated[Path | None, typer.Option(help="File of verdicts; default judge-cache.jsonl beside.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Compare a judge with exact match and with labelled answers.

    Prints how often they agree, how far beyond chance (kappa), and how often answers are right at each rating of the
    approach, all with 95 % intervals. The judge is asked as it is for `rl.reward.kind = "judge"`.
    """
    from seekling.evaluate import read_records
    from seekling.evaluate.judge_audit import audit_judge, read_labels
    from seekling.pipeline.judge_reward import open_judge
    from seekling.pipeline.progress import Reporter

    config = section_of(
        JudgeConfig,
        "--judge-",
        url=judge_url,
        model=judge_model,
        key_env=judge_key_env,
        extra=judge_extra,
        max_tokens=judge_tokens,
        in_flight=in_flight,
        requests_per_minute=requests_per_minute,
        cache=str(cache or ""),
    )
    records = list(read_records(episodes))[: limit or None]
    known = read_labels(labels) if labels is not None else {}
    reporter = Reporter()
    with (
        open_judge(config, episodes.parent, reporter) as judge,
        reporter.track("judge", len(records)) as advance,
    ):
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
