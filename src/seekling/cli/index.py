"""`seekling index`: a corpus becomes an index folder."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import rich.progress
import typer

from seekling.config import RetrievalConfig
from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.retrieval.record import IndexRecord

_DEFAULTS = RetrievalConfig()
_LINE_EVERY_S = 10.0


def command(
    corpus: Annotated[
        Path, typer.Argument(help="JSONL, Parquet, or a folder of markdown, HTML or text.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the index.", show_default=False)],
    kind: Annotated[str, typer.Option(help="bm25, dense, or hybrid (both, fused).")] = _DEFAULTS.kind,
    encoder: Annotated[str, typer.Option(help="Model for dense and hybrid.")] = _DEFAULTS.encoder,
    passage_words: Annotated[int, typer.Option(help="Longest passage, in words.")] = _DEFAULTS.passage_words,
    overlap_words: Annotated[int, typer.Option(help="Words that a passage repeats of the one before.")] = (
        _DEFAULTS.overlap_words
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an index that was made otherwise.")] = False,
) -> None:
    """Cut a corpus into passages and index them for searching.

    An index that the same corpus and settings made is kept. The index holds the texts too: the corpus is not needed
    afterwards.
    """
    from seekling.retrieval.index import build_index

    config = _checked_config(kind=kind, encoder=encoder, passage_words=passage_words, overlap_words=overlap_words)
    started = time.monotonic()
    with _progress() as report:
        record = build_index(corpus, out, config, force=force, progress=report)
    _print_outcome(record, out, time.monotonic() - started)


def _checked_config(**values: str | int) -> RetrievalConfig:
    import pydantic

    try:
        return RetrievalConfig.model_validate(values)
    except pydantic.ValidationError as error:
        problems = [
            f"--{str(each['loc'][0]).replace('_', '-')}: {each['msg']} (got {each['input']!r})"
            for each in error.errors()
        ]
        raise ConfigError("; ".join(problems)) from None


def _print_outcome(record: IndexRecord, out: Path, seconds: float) -> None:
    console = rich.console.Console(soft_wrap=True, highlight=False)
    size_mb = sum(file.size for file in record.files.values()) / 1e6
    what = f"{record.kind} index of {record.num_documents:,} documents, {record.num_passages:,} passages"
    if record.is_reused:
        console.print(f"{out}: this {what} was already there, made from the same corpus and settings; nothing to do")
        return
    console.print(f"{out}: {what}, {size_mb:,.1f} MB, in {seconds:.1f} s")
    console.print(f'try: seekling search {out} "your question"', markup=False)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar with the time left on a terminal's stderr; elsewhere a plain line every ten seconds."""
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
