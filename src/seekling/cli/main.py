"""The `seekling` command: knows the names and one line of help of every command, and imports only the one that runs.

A command lives in `seekling/cli/<name>.py` as a function named `command`; a group of commands as a Typer named `app`.
Errors meant for people (`SeeklingError`) end as one red message and exit code 1; anything else is a bug and keeps its
traceback. Ctrl-C ends with exit code 130.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import typer

from seekling import __version__
from seekling.errors import SeeklingError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `seekling --help`."""

    name: str
    help: str
    """First line of the command's docstring; a test keeps the two equal."""
    is_group: bool = False

    @property
    def module(self) -> str:
        """Dotted name of the module that holds the command."""
        return f"seekling.cli.{self.name.replace('-', '_')}"


ENTRIES = (
    Entry("train", "Run a recipe: collect expert episodes, SFT, RL, evaluate, report."),
    Entry("eval", "Evaluate a model on questions and print the scores with their intervals."),
    Entry("collect", "Let a served model answer the training questions, and keep its good episodes to train on."),
    Entry("stepwise", "Write tag episodes as step-wise records for fine-tuning, in LLaMA-Factory's alpaca format."),
    Entry("judge-audit", "Compare a judge with exact match and with labelled answers."),
    Entry("serve", "Serve a model, or a run's best policy, behind an OpenAI-compatible address."),
    Entry("ask", "Ask a trained agent a question and see its answer, its searches and its sources."),
    Entry("report", "Write run folders as one self-contained HTML page."),
    Entry("watch", "Serve a run's report to your browser while it trains, keeping it up to date."),
    Entry("episodes", "Page through the episodes of a run: filter them, read them turn by turn."),
    Entry("figures", "Draw the curves and bars of runs as PNG and SVG files."),
    Entry("table", "Print the result tables of runs as Markdown or LaTeX."),
    Entry("export", "Write a run's policy as a folder that transformers, PEFT and vLLM load."),
    Entry("compare", "Compare two evaluations question by question."),
    Entry("score", "Score anyone's answers against a question file."),
    Entry("almanac", "Write an almanac of an invented world: corpus.jsonl, train.jsonl, dev.jsonl and test.jsonl."),
    Entry("index", "Cut a corpus into passages and index them for searching, or inspect an index.", is_group=True),
    Entry("search", "Search an index and print the best passages."),
    Entry("recall", "Score indexes by the pages they find: recall, MRR and nDCG, with intervals."),
    Entry("serve-search", "Serve indexes over HTTP as Search-R1's retrieval server does: POST /retrieve."),
    Entry("doctor", "Say what this machine can do, and what a recipe will cost on it."),
    Entry("tune", "Measure which settings are fast and fit into memory here, and write them as a new recipe."),
    Entry("sandbox", "Look at and try the sandbox that runs model-written programs.", is_group=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the entry point of the `seekling` script.

    Args:
        arguments: words after `seekling`; None takes them from the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build_app(wanted=next((word for word in words if not word.startswith("-")), None))(words, prog_name="seekling")
    except KeyboardInterrupt:  # while a command's module was being imported
        _exit_interrupted()


def build_app(*, wanted: str | None) -> typer.Typer:
    """Build the command line with one command loaded and the others as names with a line of help.

    Importing every command on every start would cost what the heaviest of them costs.

    Args:
        wanted: name of the command that is going to run; None for `--help` and the like.
    """
    app = typer.Typer(
        help="Teach a small language model to search instead of remember.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for entry in ENTRIES:
        if importlib.util.find_spec(entry.module) is None:
            continue
        if entry.name != wanted:
            app.command(entry.name, help=entry.help)(_not_loaded)
        elif entry.is_group:
            group: typer.Typer = importlib.import_module(entry.module).app
            for info in group.registered_commands:
                if info.callback is not None:
                    info.callback = guarded(info.callback)
            app.add_typer(group, name=entry.name, help=entry.help, no_args_is_help=True)
        else:
            app.command(entry.name)(guarded(importlib.import_module(entry.module).command))
    return app


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors meant for people, and Ctrl-C, into a line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SeeklingError as error:
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            _exit_interrupted()
            raise

    return run


def _exit_interrupted() -> None:
    typer.secho("stopped; the same command resumes", fg=typer.colors.YELLOW, err=True)
    raise SystemExit(130)


def _not_loaded() -> None:
    raise AssertionError("a placeholder ran: the wanted command was not recognised")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"seekling {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass
