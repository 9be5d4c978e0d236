"""`seekling report --episodes`: read what a policy did, one episode at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from seekling.cli.options import AsJson
from seekling.errors import DataError

if TYPE_CHECKING:
    from seekling.report.terminal import Shown
    from seekling.types import EpisodeRecord

KEYS = "n next, p previous, f all of every text, l list, number + Enter go to, q quit"


def command(
    run: Annotated[Path, typer.Argument(help="A run folder, or an episodes file.")],
    stage: Annotated[str, typer.Option(help="expert, rl, eval-base, eval-sft, eval-rl, ...")] = "",
    outcome: Annotated[str, typer.Option(help="right, wrong, none (no answer), failed or unscored.")] = "",
    behaviour: Annotated[
        list[str] | None, typer.Option(help="A name of docs/BEHAVIOURS.md, or not-NAME; several must all hold.")
    ] = None,
    cause: Annotated[
        str, typer.Option(help="Why it is not right: not_retrieved, not_read, misread, no_answer, infrastructure.")
    ] = "",
    kind: Annotated[str, typer.Option(help="Kind of question, such as bridge.")] = "",
    question: Annotated[str, typer.Option(help="Part of the question's text, or its id.")] = "",
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most so many; 0 is all.", min=0)] = 0,
    full: Annotated[bool, typer.Option("--full", help="All of every text instead of its beginning.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="One line per episode.")] = False,
    as_json: AsJson = False,
) -> None:
    """Page through the episodes of a run: filter them, read them turn by turn.

    In a terminal one episode is shown at a time: n and p go on and back, q ends. Into a pipe or a file everything is
    printed at once, without colours.
    """
    from seekling.report.terminal import Selection, list_line, print_plain, select

    records, problems = _read(run)
    for problem in problems:
        typer.secho(f"note: {problem}", fg=typer.colors.YELLOW, err=True)
    wanted = Selection(stage, outcome, tuple(behaviour or ()), cause, kind, question, step)
    chosen = select(records, wanted)
    chosen = chosen[:limit] if limit else chosen
    if as_json:
        _print_json(chosen)
        return
    console = Console(highlight=False)
    console.soft_wrap = as_list or not console.is_terminal
    if not chosen:
        raise DataError(f"none of {len(records)} episodes is asked for; leave a filter out")
    if as_list:
        for number, each in enumerate(chosen, start=1):
            console.print(list_line(each, number))
    elif console.is_terminal and sys.stdin.isatty():
        _page(console, chosen, is_full=full)
    else:
        print_plain(console, chosen, is_full=full)


def _read(run: Path) -> tuple[list[EpisodeRecord], list[str]]:
    """The episodes, and what is damaged or missing of them."""
    from seekling.evaluate import read_records
    from seekling.report import read_run

    if run.is_file():
        return list(read_records(run)), []
    folder = read_run(run)
    if not folder.episodes:
        raise DataError(f"{run} holds no episodes; expected {run}/episodes/<stage>.jsonl, which every stage writes")
    return folder.episodes, [problem for problem in folder.problems if problem.startswith("episodes/")]


def _print_json(chosen: list[Shown]) -> None:
    import json

    rows = [
        {
            **each.record.to_json(),
            "outcome": each.facts.outcome,
            "behaviours": list(each.facts.behaviours),
            "cause": each.facts.cause,
        }
        for each in chosen
    ]
    print(json.dumps(rows, ensure_ascii=False))


def _page(console: Console, chosen: list[Shown], *, is_full: bool) -> None:
    from seekling.report.terminal import Layout, list_line, render

    place, typed, is_listed = 0, "", False
    while True:
        console.clear()
        if is_listed:
            for number, each in enumerate(chosen[place : place + console.height - 2], start=place + 1):
                console.print(list_line(each, number), no_wrap=True, overflow="ellipsis")
        else:
            console.print(render(chosen[place], place=f"{place + 1} of {len(chosen)}", layout=Layout(is_full)))
        console.print(f"[dim]{KEYS}[/dim] {typed}", end="")
        key = typer.getchar()
        if key in ("q", "\x03", "\x04", "\x1b"):
            console.print()
            return
        if key.isdigit():
            typed += key
            continue
        if key in ("\r", "\n") and typed:
            place, is_listed = max(1, min(int(typed), len(chosen))) - 1, False
        elif key in ("f", "F"):
            is_full = not is_full
        elif key in ("l", "L"):
            is_listed = not is_listed
        else:
            place = next_place(place, key, len(chosen))
        typed = ""


def next_place(place: int, key: str, count: int) -> int:
    """Where a key leads: on, back, to the first or the last; any other key stays."""
    if key in ("n", "j", " ", "\r", "\n", "\x1b[C", "\x1b[B"):
        return min(place + 1, count - 1)
    if key in ("p", "k", "b", "\x7f", "\x1b[D", "\x1b[A"):
        return max(place - 1, 0)
    return {"g": 0, "G": count - 1}.get(key, place)
