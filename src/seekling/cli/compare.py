"""`seekling report --compare`: evaluations of the same questions, pair by pair or as samples of one system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from seekling.cli.options import AsJson
from seekling.errors import ConfigError
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.evaluate import PairedComparison


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders (or episode files), or one and several stages.")],
    stage: Annotated[
        list[str] | None, typer.Option(help="Which evaluation; repeated for another one of each. Default: eval-rl.")
    ] = None,
    intersect: Annotated[
        bool, typer.Option("--intersect", help="Compare on the questions that all asked; says how many are left out.")
    ] = False,
    pool: Annotated[
        bool, typer.Option("--pool", help="Take the runs for seeds of one system: mean, pass@k, majority vote.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations question by question.

    Differences are second minus first, with the interval and the p-value of one paired t test; of more than two, every
    pair is compared, with Holm's correction. Evaluations of different questions are refused, unless --intersect.
    `seekling report --compare RUN --stage eval-sft --stage eval-rl` compares stages of one run.
    """
    from seekling.evaluate import compare_all, read_records, summarize_samples

    chosen = _resolve(runs, stage or ["eval-rl"])
    evaluations = [(f"{run.name} {name}", read_records(_episodes(run, name))) for run, name in chosen]
    if pool:
        samples = summarize_samples(evaluations)
        if as_json:
            print(json.dumps(samples.to_json(), ensure_ascii=False, indent=2))
        else:
            from seekling.report.formats import print_tables
            from seekling.report.tables import pooled_table

            names = ", ".join(run.name for run in runs)
            print_tables([pooled_table([(names, " ".join(stage or ["eval-rl"]), f"{len(chosen)} runs", samples)])])
        return
    results = compare_all(evaluations, intersect=intersect)
    if as_json:
        rows: list[Json] = [result.to_json() for result in results]
        print(json.dumps(rows[0] if len(rows) == 1 else {"comparisons": rows}, ensure_ascii=False, indent=2))
        return
    for number, result in enumerate(results):
        if number:
            print()
        _print(result)


def _resolve(runs: list[Path], stages: list[str]) -> list[tuple[Path, str]]:
    count = max(len(runs), len(stages))
    if count < 2 or any(len(each) not in (1, count) for each in (runs, stages)):
        raise ConfigError(
            f"got {len(runs)} run(s) and {len(stages)} stage(s); expected two or more runs with --stage once, "
            "one run with --stage twice or more, or as many stages as runs"
        )
    all_runs = runs if len(runs) == count else runs * count
    all_stages = stages if len(stages) == count else stages * count
    return list(zip(all_runs, all_stages, strict=True))


def _episodes(run: Path, stage: str) -> Path:
    return run if run.is_file() else run / "episodes" / f"{stage}.jsonl"


def _print(result: PairedComparison) -> None:
    from seekling.evaluate import format_difference, format_rate

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"first   {result.first}: EM {format_rate(result.em_first)}")
    console.print(f"second  {result.second}: EM {format_rate(result.em_second)}")
    for name, gap in (("EM", result.em_difference), ("F1", result.f1_difference)):
        is_corrected = name == "EM" and result.p_value_holm is not None
        holm = f" ({result.p_value_holm:.2g} with Holm's correction)" if is_corrected else ""
        console.print(f"{name} second - first: {format_difference(gap)}{holm}")
    console.print(
        f"right in both {result.num_both}, only second {result.num_wins}, only first {result.num_losses}, "
        f"neither {result.num_neither}"
    )
    console.print(
        f"{result.num_questions} questions, {result.num_excluded} excluded for infrastructure failures, "
        f"question set {result.question_set_hash[:12]}"
    )
    for note in result.notes:
        console.print(f"note: {note}; the difference is not the policies' alone")
    if result.is_intersection:
        console.print(
            f"INTERSECTION of different question sets: {result.num_only_first} questions of the first and "
            f"{result.num_only_second} of the second are left out; the figures are over what is shared"
        )
