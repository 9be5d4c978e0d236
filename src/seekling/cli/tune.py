"""`seekling doctor --tune`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from seekling.cli.options import AsJson, Overrides, Recipe, whole_numbers
from seekling.config import load_recipe
from seekling.errors import ConfigError
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.pipeline.tune import Tuned


def command(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The new recipe; default <recipe>-tuned.toml, here.")] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="What a run may take, as model.memory_gb; default most of what is free.")
    ] = None,
    group_sizes: Annotated[
        str, typer.Option(help="Other rl.group_size to try, such as 8,16,24; changes results.")
    ] = "",
    in_flight: Annotated[str, typer.Option(help="rollout.in_flight to try, instead of its own and 8, 16, ...")] = "",
    row_tokens: Annotated[
        str, typer.Option(help="row_tokens to try, instead of the recipe's and 1024, 2048, 4096, 8192.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Measure which settings are fast and fit into memory here, and write them as a new recipe.

    Every setting works for some seconds in a process of its own, with the recipe's model and made-up episodes. Run it
    on a machine that is otherwise idle.
    """
    from seekling.pipeline.tune import Choice, Trial, memory_limit, tune, write_tuned

    # In the recipe, since the decision to compute layers twice looks for the limit there, now and in the run.
    limit = [] if memory_gb is None else [f"model.memory_gb={memory_gb!r}"]
    resolved = load_recipe(recipe, [*(overrides or []), *limit])
    target = out or Path(f"{recipe.stem}-tuned.toml")
    if target.exists():  # known before the work
        raise ConfigError(f"{target} exists already; name another file with --out")
    options = {"--group-sizes": group_sizes, "--in-flight": in_flight, "--row-tokens": row_tokens}
    choice = Choice(*(whole_numbers(option, text) for option, text in options.items()))

    def on_trial(trial: Trial) -> None:
        typer.echo(f"{trial.work} {trial.settings}: {trial.failure or f'{trial.tokens_per_s:.0f} tokens/s'}", err=True)

    found = tune(resolved, memory_bytes=memory_limit(resolved), choice=choice, on_trial=on_trial)
    write_tuned(resolved, found, target)
    if as_json:
        document: dict[str, Json] = {**asdict(found), "settings": dict(found.settings), "recipe": str(target)}
        print(json.dumps(document, indent=2))
        return
    _print(found)
    typer.echo(f"recipe: {target}")


def _print(found: Tuned) -> None:
    table = Table(title=f"within {found.memory_bytes / 1e9:.1f} GB", title_justify="left")
    for column in ("work", "settings", "tokens/s", "peak memory", ""):
        table.add_column(column, justify="right" if column in ("tokens/s", "peak memory") else "left")
    for trial in found.trials:
        settings = "\n".join(f"{name} = {value}" for name, value in trial.settings.items())
        speed = f"{trial.tokens_per_s:.0f}" if not trial.failure else ""
        facts = {
            "chosen": trial in found.chosen,
            "all of a step": trial.is_whole,
            "too much": not trial.fits(found.memory_bytes),
        }
        verdict = ", ".join(name for name, holds in facts.items() if holds)
        peak = f"{trial.peak_bytes / 1e9:.2f} GB"
        table.add_row(trial.work, settings, speed, peak, verdict, style="bold" if trial in found.chosen else "")
    Console().print(table)
