"""`seekling compare`: two evaluations of the same questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.evaluate import PairedComparison


def command(
    runs: Annotated[list[Path], typer.Argument(help="Two run folders (or episode files), or one and two stages.")],
    stage: Annotated[
        list[str] | None, typer.Option(help="Which evaluation; twice for another one of each. Default: eval-rl.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare two evaluations question by question.

    Differences are second minus first, with a paired bootstrap interval and McNemar's exact p. Evaluations of different
    questions are refused. `seekling compare RUN --stage eval-sft --stage eval-rl` compares two stages of one run.
    """
    from seekling.evaluate import compare, read_records

    (first, first_stage), (second, second_stage) = _resolve(runs, stage or ["eval-rl"])
    result = compare(
        read_records(_episodes(first, first_stage)),
        read_records(_episodes(second, second_stage)),
        names=(f"{first.name} {first_stage}", f"{second.name} {second_stage}"),
        seed=seed,
    )
    if as_json:
        print(json.dumps(result.to_json(), ensure_ascii=False, indent=2))
    else:
        _print(result)


def _resolve(runs: list[Path], stages: list[str]) -> list[tuple[Path, str]]:
    if len(runs) > 2 or len(stages) > 2 or (len(runs) == 1 and len(stages) == 1):
        raise ConfigError(
            f"got {len(runs)} run(s) and {len(stages)} stage(s); expected two runs with --stage once, "
            "or one run with --stage twice"
        )
    both_runs = runs if len(runs) == 2 else runs * 2
    both_stages = stages if len(stages) == 2 else stages * 2
    return list(zip(both_runs, both_stages, strict=True))


def _episodes(run: Path, stage: str) -> Path:
    return run if run.is_file() else run / "episodes" / f"{stage}.jsonl"


def _print(result: PairedComparison) -> None:
    from seekling.evaluate import format_rate

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"first   {result.first}: EM {format_rate(result.em_first)}")
    console.print(f"second  {result.second}: EM {format_rate(result.em_second)}")
    for name, gap in (("EM", result.em_difference), ("F1", result.f1_difference)):
        low, high = 100 * gap.low, 100 * gap.high
        console.print(f"{name} second - first: {100 * gap.value:+.1f} points, 95 % [{low:+.1f}, {high:+.1f}]")
    console.print(
        f"right in both {result.num_both}, only second {result.num_wins}, only first {result.num_losses}, "
        f"neither {result.num_neither}; McNemar exact p = {result.mcnemar_p:.3g}"
    )
    console.print(
        f"{result.num_questions} questions, {result.num_excluded} excluded for infrastructure failures, "
        f"question set {result.question_set_hash[:12]}"
    )
