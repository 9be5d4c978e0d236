"""The `seekling` command: knows the names and one line of help of every command, and imports only the one that runs.

Errors meant for people (`SeeklingError`) end as one red message and exit code 1; anything else is a bug and keeps its
traceback. Ctrl-C ends with exit code 130 and says what became of the work.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
import typer.core
import typer.main

from seekling import __version__
from seekling.errors import SeeklingError

if TYPE_CHECKING:
    from typer._click.core import Command, Context

RESUMES = "stopped; the same command resumes"
NOTHING = "stopped; nothing was written"
_NO_RECIPE = "stopped; no recipe was written, the same command goes on"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a command before its module is imported."""

    place: str
    """module.name in `seekling.cli`: a function, or a Typer of further commands."""
    help: str = ""
    """First line of its docstring, which a test keeps equal; empty where a flag picks it."""
    stopped: str = "stopped"
    """What is said after Ctrl-C."""


COMMANDS = {
    "init": Entry(
        "init.command", "Look at your documents, make questions of them, and write a commented recipe.", _NO_RECIPE
    ),
    "train": Entry("train.command", "Run a recipe: collect expert episodes, SFT, RL, evaluate, report.", RESUMES),
    "ask": Entry("ask.command", "Ask a trained agent: its searches, its answer and the sentences it stands on."),
    "chat": Entry("ask.chat", "Ask a trained agent question after question; each may lean on the last."),
    "serve": Entry("serve.command", "Serve a run's agent: a web page, OpenAI's chat completions, and MCP."),
    "serve --mcp": Entry("serve.mcp"),
    "serve --policy-only": Entry("serve.policy_only"),
    "serve --search-only": Entry("serve.search_only"),
    "serve --tinker": Entry("serve.tinker"),
    "serve --add-key": Entry("serve.add_key"),
    "serve --revoke-key": Entry("serve.revoke_key"),
    "eval": Entry("eval.command", "Evaluate a model on questions and print the scores with their intervals.", RESUMES),
    "report": Entry("report.command", "Write run folders as one self-contained HTML page.", NOTHING),
    "report --watch": Entry("report.watch"),
    "report --table": Entry("report.table", stopped=NOTHING),
    "report --compare": Entry("report.compare"),
    "index": Entry("index.command", "Cut a corpus into passages and index them for searching.", RESUMES),
    "index --inspect": Entry("index.inspect"),
    "index --push": Entry("index.push", stopped=RESUMES),
    "search": Entry("search.command", "Search an index and print the best passages."),
    "search --recall": Entry("search.recall"),
    "collect": Entry("collect.command", "Keep the good episodes of a served model, to train on.", RESUMES),
    "data": Entry("data.app", "Make data: an invented world, records and questions to train on.", NOTHING),
    "export": Entry("export.command", "Write a run's policy as a folder that other libraries load.", NOTHING),
    "doctor": Entry("doctor.command", "Say what this machine can do, and what a recipe will cost on it."),
    "doctor --cluster": Entry("doctor.cluster"),
    "doctor --tune": Entry("doctor.tune", stopped="stopped; no recipe was written"),
    "sandbox": Entry("sandbox.command", "Run a program in the sandbox and print its outcome, output and error."),
}
"""By name. One with a flag has a function and options of its own: the flag picks it, wherever it stands."""


class _Commands(typer.core.TyperGroup):
    """Imports a command when it is going to run; until then its name and line of help stand for it.

    Importing every command on every start would cost what the heaviest of them costs.
    """

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, *words = args
        if name not in COMMANDS:
            return super().resolve_command(ctx, args)
        flag = next((word for word in words if f"{name} {word}" in COMMANDS), "")
        if flag:
            words.remove(flag)
            name = f"{name} {flag}"
        return name, _load(name), words

    def invoke(self, ctx: Context) -> object:
        try:
            return super().invoke(ctx)
        except SeeklingError as error:
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            stopped = COMMANDS[ctx.invoked_subcommand].stopped if ctx.invoked_subcommand else "stopped"
            typer.secho(stopped, fg=typer.colors.YELLOW, err=True)
            raise typer.Exit(130) from None


def _load(name: str) -> Command:
    found = _import(name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    command = _as_command(found)
    for other in COMMANDS:
        if other.startswith(f"{name} "):
            command.params += _flag(other.removeprefix(f"{name} "), inspect.getdoc(_import(other)) or "").params
    return command


def _import(name: str) -> Callable[..., None]:
    module, _, attribute = COMMANDS[name].place.partition(".")
    found: Callable[..., None] = getattr(importlib.import_module(f"seekling.cli.{module}"), attribute)
    return found


def _as_command(function: Callable[..., None]) -> Command:
    alone = typer.Typer(add_completion=False)
    alone.command()(function)
    return typer.main.get_command(alone)


def _flag(flag: str, about: str) -> Command:
    """An option for the help and for completion; where it is given, another command runs."""
    option = typer.Option(
        False,
        flag,
        help=about.partition("\n")[0],
        expose_value=False,
        rich_help_panel="Instead, each with its own --help",
    )

    def never_given(given: bool = option) -> None:
        pass

    return _as_command(never_given)


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


def _not_loaded() -> None:
    raise AssertionError("a placeholder ran: the command was not loaded")


app = typer.Typer(
    cls=_Commands,
    help="Teach a small language model to search instead of remember.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(_options)
for _name, _entry in COMMANDS.items():
    if " " not in _name:
        app.command(_name, help=_entry.help)(_not_loaded)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, the words after `seekling` or those of the process; always ends as SystemExit."""
    app(arguments, prog_name="seekling")
