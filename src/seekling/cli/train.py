"""`seekling train`."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from seekling.cli.options import Overrides, Recipe
from seekling.config import RECIPES, load_recipe, recipe_to_toml


def _print_recipes(is_wanted: bool) -> None:
    if is_wanted:
        for name, path in sorted(RECIPES.items()):
            lines = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
            about = " ".join(line for line in lines if not line.startswith("seekling train"))
            typer.echo(f"{name:26} {re.split(r'[.:;] ', about)[0].removesuffix('.')}")
        raise typer.Exit


def command(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name of the recipe>.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Short for env.protocol=...; named in the run folder.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe, print what it would do and every setting, stop.")
    ] = False,
    launch: Annotated[
        Literal["slurm", "kuberay"] | None,
        typer.Option(help="Print a job for a cluster that would run this, and stop; needs scale.engine=ray."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines for samplers; with --launch.")] = 1,
    image: Annotated[str, typer.Option(help="Container image; with --launch kuberay.")] = "seekling:latest",
    show_list: Annotated[
        bool, typer.Option("--list", callback=_print_recipes, is_eager=True, help="List the recipes that come along.")
    ] = False,
) -> None:
    """Run a recipe: collect expert episodes, SFT, RL, evaluate, report.

    A run that was interrupted goes on where it stopped when the same command is given again.
    """
    changes = [*(overrides or []), *([f"env.protocol={protocol}"] if protocol else [])]
    resolved = load_recipe(recipe, changes)
    if dry_run:
        gc.disable()  # a fifth of the time that torch takes to import, and it leaves no garbage
        from seekling.pipeline.plan import describe_plan

        # As comments, so that the output is a recipe too.
        plan = "".join(f"# {line}\n" for line in describe_plan(resolved))
        typer.echo(f"{plan}{recipe_to_toml(resolved)}", nl=False)
        return
    folder = out or Path("runs") / (f"{resolved.name}-{protocol}" if protocol else resolved.name)
    if launch is not None:
        from seekling.scale.launch import render_job

        words = [str(recipe), *changes]
        typer.echo(render_job(resolved, words, folder, to=launch, num_nodes=nodes, image=image), nl=False)
        return
    from seekling.pipeline.reporter import Reporter
    from seekling.pipeline.stages import run_recipe
    from seekling.report.formats import print_results

    reporter = Reporter()
    reporter.line(f"run folder: {folder}")
    run_recipe(resolved, folder, reporter)
    print_results(folder)
    typer.echo(f"report: {folder / 'report.html'}")
