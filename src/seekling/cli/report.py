"""`seekling report`: runs as a page, and with --watch, --table and --figures as other things to look at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from seekling.errors import ConfigError, DataError


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
    _tell(write_report(runs, target))
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
        _tell([f"{run.name}: no paired comparison: {error}"])


def watch(
    run: Annotated[Path, typer.Argument(help="The run folder that `seekling train` is writing.")],
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.", min=0, max=65535)] = 8765,
) -> None:
    """Serve a run's report to your browser while it trains, keeping it up to date.

    The page is that of `seekling report`, and new steps, episodes and figures appear on it by themselves. Only this
    machine can open it. Nothing is written to the run folder; Ctrl-C ends the watching and not the training.
    """
    from seekling.report.watch import WatchServer

    try:
        with WatchServer(run, port) as server:
            typer.echo(f"watching {run} at {server.url} (Ctrl-C stops)")
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        typer.echo("\nstopped watching")


def table(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; their evaluations become rows.")],
    output_format: Annotated[str, typer.Option("--format", help="md or latex.")] = "md",
    show: Annotated[
        list[str] | None,
        typer.Option(
            help="results, changes, gains, samples, kinds, sources, behaviours, errors, recovery, confidence, "
            "expected, costs or figures; "
            "may be repeated."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write instead of printing.")] = None,
) -> None:
    r"""Print the result tables of runs as Markdown or LaTeX.

    Every figure has its k/n and its interval; rows that were asked different questions are marked as such. LaTeX needs
    \usepackage{booktabs}.
    """
    if output_format not in ("md", "latex"):
        raise ConfigError(f"--format {output_format!r} is not known; choose md or latex")
    from seekling.files import write_atomically
    from seekling.report.formats import to_latex, to_markdown
    from seekling.report.results import read_policies
    from seekling.report.tables import TABLES

    wanted = show or ["results"]
    unknown = [name for name in wanted if name not in TABLES]
    if unknown:
        raise ConfigError(f"--show {unknown[0]!r} is no table; choose from {', '.join(TABLES)}")
    policies, problems = read_policies(runs)
    _tell(problems)
    write = to_latex if output_format == "latex" else to_markdown
    text = "\n".join(write(TABLES[name](policies)) for name in wanted)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    typer.echo(f"wrote {out}")


def figures(
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
    _tell(f"{folder.name}: {problem}" for folder in folders for problem in folder.problems)
    for path in write_figures(folders, out):
        typer.echo(f"wrote {path}")


def _tell(problems: Iterable[str]) -> None:
    for problem in problems:
        typer.secho(f"note: {problem}", fg=typer.colors.YELLOW, err=True)
