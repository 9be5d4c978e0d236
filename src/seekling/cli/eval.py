"""`seekling eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from seekling.config import load_recipe
from seekling.types import Json


def command(
    recipe: Annotated[Path, typer.Argument(help="A TOML file: its data, env, retrieval and eval settings count.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, in the recipe's spelling.")] = None,
    model: Annotated[str, typer.Option(help="Model spec or trained directory; default the recipe's model.")] = "",
    name: Annotated[str, typer.Option(help="What to call this policy in the files: eval-NAME.")] = "model",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/eval-<recipe>-<name>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Evaluate a model on questions and print the scores with their intervals.

    All test questions are asked, greedily unless the recipe says otherwise, and every episode is written. An evaluation
    that was interrupted goes on where it stopped.
    """
    changes = [*(overrides or []), *([f"model.spec={model}"] if model else [])]
    resolved = load_recipe(recipe, changes)
    folder = out or Path("runs") / f"eval-{resolved.name}-{name}"
    from seekling.pipeline.evaluate import evaluate_model
    from seekling.pipeline.progress import Reporter
    from seekling.pipeline.table import result_table

    reporter = Reporter()
    reporter.line(f"run folder: {folder}")
    summary = evaluate_model(resolved, folder, name, reporter)
    if as_json:
        row: dict[str, Json] = summary.to_json()
        typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        result_table([summary], folder)
