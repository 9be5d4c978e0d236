"""Progress for people: bars with an ETA on a terminal, a line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[str], None]
PLAIN_EVERY_S = 10.0


class Reporter:
    """Tells what is going on."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars: Progress | None = None

    def line(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    @contextlib.contextmanager
    def track(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        """Show how far a loop of `total` steps is, also one inside another; an earlier process did `done` of them.

        Yields what is to be called after each step with a few words to show beside the bar.
        """
        if not sys.stderr.isatty():
            yield self._plain(title, total, done)
            return
        with self._shown_bars() as bars:
            task = bars.add_task(title, total=total, completed=done, note="")
            yield lambda note: bars.update(task, advance=1, note=note)

    @contextlib.contextmanager
    def stages(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Yield what is to be called as report(stage, done, total) while several things go on one after the other."""
        last = time.monotonic()

        def report_line(stage: str, done: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last >= PLAIN_EVERY_S:
                last = time.monotonic()
                self.line(f"{stage}: {done:,}" + (f" of {total:,}" if total is not None else ""))

        if not sys.stderr.isatty():
            yield report_line
            return
        with self._shown_bars() as bars:
            add = functools.cache(lambda stage: bars.add_task(stage, total=None, note=""))
            yield lambda stage, done, total: bars.update(add(stage), completed=done, total=total)

    @contextlib.contextmanager
    def _shown_bars(self) -> Iterator[Progress]:
        """The bars that are on the screen, or new ones."""
        if self._bars is not None:
            yield self._bars
            return
        counts = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        columns = TextColumn("{task.description}"), *counts, TextColumn("{task.fields[note]}")
        with Progress(*columns, console=self._console) as self._bars:
            try:
                yield self._bars
            finally:
                self._bars = None

    def _plain(self, title: str, total: int, done: int) -> Advance:
        started = last = time.monotonic()
        count = first = done

        def advance(note: str) -> None:
            nonlocal count, last
            count += 1
            now = time.monotonic()
            if now - last >= PLAIN_EVERY_S or count == total:
                last = now
                left = (now - started) / (count - first) * (total - count)
                self.line(f"{title}: {count}/{total}, {now - started:.0f} s, about {left:.0f} s left  {note}")

        return advance


@contextlib.contextmanager
def deferred_interrupt(
    reporter: Reporter, first: str = "this step is finished and saved first"
) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is remembered, and people are told what is done first; the second acts at once."""
    is_set = False
    before = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal is_set
        if is_set:
            raise KeyboardInterrupt
        is_set = True
        reporter.line(f"Ctrl-C: {first}; once more stops at once")

    try:
        signal.signal(signal.SIGINT, remember)
    except ValueError:  # not the main thread: whoever owns the signal keeps it
        yield lambda: False
        return
    try:
        yield lambda: is_set
    finally:
        signal.signal(signal.SIGINT, before)
