"""The result table of a run: base -> SFT -> SFT+RL, with k/n and intervals, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from seekling.errors import DataError
from seekling.evaluate.compare import compare
from seekling.evaluate.files import read_records
from seekling.evaluate.intervals import format_mean, format_rate
from seekling.evaluate.summary import EvalSummary

NAMES = {"base": "base", "sft": "SFT", "rl": "SFT+RL"}


def result_table(summaries: Sequence[EvalSummary], folder: Path) -> None:
    """Print the evaluations of a run, and what RL gained over SFT on the same questions.

    Args:
        summaries: in the order of training.
        folder: of the run, for the paired comparison.
    """
    console = Console(highlight=False)
    table = Table("", "EM", "F1", "answered", "gold page found", "searches", "turns", title=_title(summaries))
    for summary in summaries:
        name = summary.stage.removeprefix("eval-")
        table.add_row(
            NAMES.get(name, name),
            format_rate(summary.em),
            format_mean(summary.f1),
            f"{summary.answered.k}/{summary.answered.n}",
            f"{summary.gold_retrieved.k}/{summary.gold_retrieved.n}",
            _number(summary.searches_per_question),
            _number(summary.turns_per_question),
        )
    console.print(table)
    by_name = {summary.stage.removeprefix("eval-"): summary for summary in summaries}
    for first, second in (("base", "rl"), ("sft", "rl")):
        if first in by_name and second in by_name:
            console.print(_gain(folder, first, second))
    for summary in summaries:
        if summary.exclusions:
            console.print(f"{summary.stage}: left out of every figure: {dict(summary.exclusions)}")


def _title(summaries: Sequence[EvalSummary]) -> str:
    if not summaries:
        return "no evaluations"
    first = summaries[0]
    decoding = "greedy" if first.temperatures == (0.0,) else f"temperature {first.temperatures}"
    return f"{first.num_questions} held-out questions ({first.question_set_hash[:12]}), {decoding}, 95 % intervals"


def _gain(folder: Path, first: str, second: str) -> str:
    paths = [folder / "episodes" / f"eval-{name}.jsonl" for name in (first, second)]
    try:
        result = compare(list(read_records(paths[0])), list(read_records(paths[1])))
    except DataError as error:
        return f"{NAMES[first]} and {NAMES[second]} cannot be compared: {error}"
    em = result.em_difference
    return (
        f"{NAMES[second]} over {NAMES[first]}: EM {100 * em.value:+.1f} points, 95 % interval "
        f"[{100 * em.low:+.1f}, {100 * em.high:+.1f}], "
        f"exact McNemar p = {result.mcnemar_p:.2g} (n = {result.num_questions})"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
