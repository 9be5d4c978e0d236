"""How far a command is: bars on a terminal, a plain line every ten seconds elsewhere, both on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import rich.console
import rich.progress

_LINE_EVERY_S = 10.0


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield what is to be called as report(stage, done, total)."""
    console = rich.console.Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines()
        return
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, rich.progress.TaskID] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def _plain_lines() -> Callable[[str, int, int | None], None]:
    last = time.monotonic()

    def report(stage: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            print(f"{stage}: {done:,}" + (f" of {total:,}" if total is not None else ""), file=sys.stderr, flush=True)

    return report
