"""`seekling almanac`: write a corpus about a world that does not exist, and questions about it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_PLAIN_EVERY_S = 10.0


class _Reporter:
    """Shows progress as a bar on a terminal and as a line every ten seconds elsewhere."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._last_line_s = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done)
        if self._bar.disable and time.monotonic() - self._last_line_s > _PLAIN_EVERY_S:
            self._last_line_s = time.monotonic()
            print(f"almanac: {what} {done:,} of {total:,}", file=sys.stderr, flush=True)


def command(
    out: Annotated[Path, typer.Option(help="Folder to make; must not exist yet, or be empty.")],
    pages: Annotated[int, typer.Option(help="How many pages, 150 to 1,000,000.")] = 1000,
    seed: Annotated[int, typer.Option(help="Which world. Same pages and seed, same bytes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")] = False,
) -> None:
    """Write an almanac of an invented world: corpus.jsonl, train.jsonl, dev.jsonl and test.jsonl."""
    from seekling.corpus.almanac import generate

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        summary = generate(pages, seed, out, progress=_Reporter(bar))
    fields = {
        "out": str(summary.out),
        "pages": summary.pages,
        "seed": summary.seed,
        **summary.num_questions,
        "provinces": summary.num_provinces,
        "words": summary.num_words,
    }
    if as_json:
        print(json.dumps(fields))
        return
    Console().print(
        f"{summary.out}: {summary.pages:,} pages ({summary.num_words:,} words); questions: "
        + ", ".join(f"{num:,} {side}" for side, num in summary.num_questions.items())
        + f", about {', '.join(map(str, summary.num_provinces.values()))} provinces.",
        highlight=False,
        soft_wrap=True,
    )
