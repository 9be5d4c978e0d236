"""`seekling report`: runs as a page, and with flags as tables and comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from seekling.cli.options import AsJson
from seekling.errors import ConfigError, DataError
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.evaluate.compare import PairedComparison


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
    from seekling.evaluate.result_files import write_comparisons

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
    output_format: Annotated[Literal["md", "latex"], typer.Option("--format")] = "md",
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


def _tell(problems: Iterable[str]) -> None:
    for problem in problems:
        typer.secho(f"note: {problem}", fg=typer.colors.YELLOW, err=True)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders (or episode files), or one and several stages.")],
    stage: Annotated[
        list[str] | None, typer.Option(help="Which evaluation; repeated for another one of each. Default: eval-rl.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations question by question.

    Differences are second minus first, with the interval and the p-value of one paired t test; of more than two, every
    pair is compared, with Holm's correction. Evaluations of different questions are refused.
    `seekling report --compare RUN --stage eval-sft --stage eval-rl` compares stages of one run.
    """
    from seekling.evaluate.compare import compare_all
    from seekling.evaluate.result_files import read_records

    chosen = _resolve(runs, stage or ["eval-rl"])
    evaluations = [(f"{run.name} {name}", read_records(_episodes_file(run, name))) for run, name in chosen]
    results = compare_all(evaluations)
    rows: list[Json] = [result.to_json() for result in results]
    if as_json:
        print(json.dumps(rows[0] if len(rows) == 1 else {"comparisons": rows}, ensure_ascii=False, indent=2))
    for number, result in enumerate(() if as_json else results):
        print(end="\n" if number else "")
        _print_comparison(result)


def _resolve(runs: list[Path], stages: list[str]) -> list[tuple[Path, str]]:
    count = max(len(runs), len(stages))
    if count < 2 or any(len(each) not in (1, count) for each in (runs, stages)):
        raise ConfigError(
            f"got {len(runs)} run(s) and {len(stages)} stage(s); expected two or more runs with --stage once, "
            "one run with --stage twice or more, or as many stages as runs"
        )
    return list(zip(runs * (count // len(runs)), stages * (count // len(stages)), strict=True))


def _episodes_file(run: Path, stage: str) -> Path:
    return run if run.is_file() else run / "episodes" / f"{stage}.jsonl"


def _print_comparison(result: PairedComparison) -> None:
    from seekling.evaluate.intervals import format_difference, format_rate

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"first   {result.first}: EM {format_rate(result.em_first)}")
    console.print(f"second  {result.second}: EM {format_rate(result.em_second)}")
    for name, gap in (("EM", result.em_difference), ("F1", result.f1_difference)):
        is_corrected = name == "EM" and result.p_value_holm is not None
        holm = f" ({result.p_value_holm:.2g} with Holm's correction)" if is_corrected else ""
        console.print(f"{name} second - first: {format_difference(gap)}{holm}")
    console.print(
        f"right in both {result.num_both}, only second {result.num_wins}, only first {result.num_losses}, "
        f"neither {result.num_neither}"
    )
    console.print(
        f"{result.num_questions} questions, {result.num_excluded} excluded for infrastructure failures, "
        f"question set {result.question_set_hash[:12]}"
    )
    for note in result.notes:
        console.print(f"note: {note}; the difference is not the policies' alone")
