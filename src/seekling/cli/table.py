"""`seekling table`: results for a README or a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seekling.errors import ConfigError

FORMATS = ("md", "latex")


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; their evaluations become rows.")],
    output_format: Annotated[str, typer.Option("--format", help="md or latex.")] = "md",
    show: Annotated[
        list[str] | None,
        typer.Option(
            help="results, changes, gains, samples, kinds, sources, behaviours, errors, recovery, confidence, "
            "expected, costs or figures; may be repeated."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write instead of printing.")] = None,
) -> None:
    r"""Print the result tables of runs as Markdown or LaTeX.

    Every figure has its k/n and its interval; rows that were asked different questions are marked as such. LaTeX needs
    \usepackage{booktabs}.
    """
    if output_format not in FORMATS:
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
    for problem in problems:
        typer.secho(f"note: {problem}", fg=typer.colors.YELLOW, err=True)
    write = to_latex if output_format == "latex" else to_markdown
    text = "\n".join(write(TABLES[name](policies)) for name in wanted)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    typer.echo(f"wrote {out}")
