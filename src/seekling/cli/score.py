"""`seekling score`: figures for anyone's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def command(
    predictions: Annotated[Path, typer.Argument(help='JSONL rows {"id", "prediction"}; null is no answer.')],
    questions: Annotated[
        Path, typer.Argument(help="Question file: id, question, answers, in any format that is read.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score anyone's answers against a question file.

    Prints exact match, F1 and substring match, with SQuAD's normalisation, k/n and 95 % intervals. Every question needs
    exactly one row; "source" in a row tells apart ids that restart per data set.
    """
    from seekling.corpus.questions import read_questions
    from seekling.evaluate import format_mean, format_rate, read_predictions, score_predictions

    scores = score_predictions(read_predictions(predictions), read_questions(questions))
    if as_json:
        print(json.dumps(scores.to_json(), ensure_ascii=False, indent=2))
        return
    table = Table(title=f"{predictions.name} on {scores.em.n} questions (set {scores.question_set_hash[:12]})")
    for column in ("", "exact match", "F1", "substring"):
        table.add_column(column)
    table.add_row("all", format_rate(scores.em), format_mean(scores.f1), format_rate(scores.substring))
    for groups in (scores.by_source, scores.by_kind):
        for name, group in groups.items():
            table.add_row(name or "(none)", format_rate(group.em), format_mean(group.f1), format_rate(group.substring))
    console = Console()
    console.print(table)
    console.print(f"answered {format_rate(scores.answered)}", highlight=False, markup=False)
    if scores.num_vacuous_golds:
        console.print(
            f"{scores.num_vacuous_golds} gold answer(s) normalise to nothing and were matched by their own letters",
            style="yellow",
        )
