"""`seekling report`: a page to look at runs with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seekling.errors import DataError


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the page switches between several.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html in the run folder, or here for several.")
    ] = None,
) -> None:
    """Write run folders as one self-contained HTML page.

    The page works from disk without a network: the table with its intervals, the curves, every episode. A damaged or
    half-written run is shown as far as it goes, and what is missing is said, here and on the page.
    """
    from seekling.report import write_report

    for run in runs:
        _compare_stages(run)
    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    problems = write_report(runs, target)
    for problem in problems:
        typer.secho(f"note: {problem}", fg=typer.colors.YELLOW, err=True)
    typer.echo(f"wrote {target} ({target.stat().st_size / 1e6:.1f} MB)")


def _compare_stages(run: Path) -> None:
    """Bring a run's paired comparisons up to date, so that the page can show them; where that fails it shows none."""
    from seekling.evaluate import write_comparisons

    episodes = [file.stat().st_mtime for file in (run / "episodes").glob("eval-*.jsonl")]
    written = [file.stat().st_mtime for file in (run / "eval").glob("compare-*.json")]
    if len(episodes) < 2 or (written and min(written) > max(episodes)):
        return
    try:
        write_comparisons(run)
    except (DataError, OSError) as error:
        typer.secho(f"note: {run.name}: no paired comparison: {error}", fg=typer.colors.YELLOW, err=True)
