"""`seekling figures`: curves and bars for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several share the axes of each curve.")],
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("figures"),
) -> None:
    """Draw the curves and bars of runs as PNG and SVG files.

    The SFT loss; reward, accuracy, searches, length, entropy and KL over RL; when each behaviour appears; accuracy,
    behaviours and causes of errors per policy, with their intervals. Needs the extra `figures`.
    """
    from seekling.report import read_run
    from seekling.report.figures import write_figures

    folders = [read_run(run) for run in runs]
    for folder in folders:
        for problem in folder.problems:
            typer.secho(f"note: {folder.name}: {problem}", fg=typer.colors.YELLOW, err=True)
    for path in write_figures(folders, out):
        typer.echo(f"wrote {path}")
