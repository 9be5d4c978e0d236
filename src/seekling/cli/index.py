"""`seekling index`: a corpus becomes an index folder; `seekling index inspect` says what one holds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import rich.progress
import rich.table
import rich.text
import typer
import typer.core

from seekling.cli.section_options import section_of
from seekling.config import IndexConfig

if TYPE_CHECKING:
    from typer._click.core import Context

    from seekling.retrieval.record import IndexRecord

_DEFAULTS = IndexConfig()
_LINE_EVERY_S = 10.0


class _BuildByDefault(typer.core.TyperGroup):
    """`seekling index CORPUS --out INDEX` is `seekling index build CORPUS --out INDEX`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["build", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_BuildByDefault, help="Cut a corpus into passages and index them for searching.")


@app.command("build")
def build(
    corpus: Annotated[
        Path,
        typer.Argument(
            help="JSONL, CSV, Parquet, a Wikipedia dump, or a folder of such files, markdown, HTML, PDF and text.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the index.", show_default=False)],
    kind: Annotated[str, typer.Option(help="bm25, dense, or hybrid (both, fused).")] = _DEFAULTS.kind,
    encoder: Annotated[str, typer.Option(help="Model for dense and hybrid.")] = _DEFAULTS.encoder,
    entries: Annotated[
        str, typer.Option(help="Index passages, or only the titles of pages (for programs that search pages).")
    ] = _DEFAULTS.entries,
    passage_words: Annotated[int, typer.Option(help="Longest passage, in words.")] = _DEFAULTS.passage_words,
    overlap_words: Annotated[int, typer.Option(help="Words that a passage repeats of the one before.")] = (
        _DEFAULTS.overlap_words
    ),
    passage_tokenizer: Annotated[
        str, typer.Option(help="Count passages in tokens of this model instead of words.", show_default=False)
    ] = "",
    vectors: Annotated[
        str, typer.Option(help="Dense: exact, compressed (extra big), or auto by the number of passages.")
    ] = _DEFAULTS.vectors,
    html: Annotated[str, typer.Option(help="Of HTML: the whole page, or its article (extra ingest).")] = _DEFAULTS.html,
    drop_similar: Annotated[
        float, typer.Option(help="Leave out pages this similar to an earlier one, such as 0.8; 0 keeps all.")
    ] = _DEFAULTS.drop_similar,
    language: Annotated[str, typer.Option(help="Of BM25's stemmer and stop words.")] = _DEFAULTS.language,
    stem: Annotated[bool, typer.Option(help="BM25 finds words by their stems.")] = _DEFAULTS.stem,
    stop_words: Annotated[bool, typer.Option(help="BM25 leaves stop words out.")] = _DEFAULTS.stop_words,
    update: Annotated[
        bool, typer.Option("--update", help="Bring an index up to date with its corpus, reading only what changed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that was made otherwise.")] = False,
) -> None:
    """Cut a corpus into passages and index them for searching.

    An index that the same corpus and settings made is kept. The index holds the texts too: the corpus is not needed
    afterwards. After Ctrl-C the same command goes on where it stopped.
    """
    from seekling.retrieval.index import build_index

    config = section_of(
        IndexConfig,
        kind=kind,
        encoder=encoder,
        entries=entries,
        passage_words=passage_words,
        overlap_words=overlap_words,
        passage_tokenizer=passage_tokenizer,
        vectors=vectors,
        html=html,
        drop_similar=drop_similar,
        language=language,
        stem=stem,
        stop_words=stop_words,
    )
    started = time.monotonic()
    with _progress() as report:
        record = build_index(corpus, out, config, force=force, update=update, progress=report)
    _print_outcome(record, out, time.monotonic() - started)


@app.command("inspect")
def inspect(
    index: Annotated[Path, typer.Argument(help="Folder that `seekling index` made.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what an index holds, how it was made, and whether its files are whole."""
    from seekling.retrieval.record import check_files, read_record

    record = read_record(index)
    check_files(index, record)
    if as_json:
        typer.echo(record.model_dump_json(indent=2))
        return
    table = rich.table.Table(show_header=False, box=None)
    for name, value in _facts(record):
        table.add_row(f"[dim]{name}", rich.text.Text(value))
    rich.console.Console(highlight=False, soft_wrap=True).print(table)


@app.command("push")
def push(
    index: Annotated[Path, typer.Argument(help="A dense or hybrid index.", show_default=False)],
    store: Annotated[
        str,
        typer.Argument(
            help="chroma:FOLDER#COLLECTION, chroma:http://host:8000#COLLECTION, or the same with qdrant.",
            show_default=False,
        ),
    ],
) -> None:
    """Copy an index's passages and vectors into a vector database (extras chroma and qdrant)."""
    from seekling.retrieval.stores import fill_store

    with _progress() as report:
        num_passages = fill_store(index, store, report=lambda done, total: report("push", done, total))
    rich.console.Console(soft_wrap=True, highlight=False).print(
        f"{store}: {num_passages:,} passages; to search them: retrieval.url={store}", markup=False
    )


def _facts(record: IndexRecord) -> Iterator[tuple[str, str]]:
    settings = record.settings
    unit = f"tokens of {settings.passage_tokenizer}" if settings.passage_tokenizer else "words"
    yield "kind", settings.kind
    yield "documents", f"{record.counts.documents:,}"
    if settings.drop_similar:
        yield (
            "left out",
            f"{record.counts.dropped:,} near-duplicates ({settings.drop_similar} or more), see dropped.jsonl",
        )
    overlap = f", {settings.overlap_words} of them from the one before" if settings.overlap_words else ""
    if settings.entries == "titles":
        yield "titles", f"{record.counts.passages:,}"
    else:
        yield "passages", f"{record.counts.passages:,} of at most {settings.passage_words} {unit}{overlap}"
    if record.terms:
        stem, stop = "stemmed" if settings.stem else "not stemmed", "without" if settings.stop_words else "with"
        yield "terms", f"{record.counts.terms:,}, {settings.language}, {stem}, {stop} stop words"
    if record.encoder is not None:
        yield (
            "encoder",
            f"{record.encoder.spec}, {record.encoder.dimension} dimensions, {record.encoder.pooling} pooling",
        )
        yield "prefixes", f"query {record.encoder.query_prefix!r}, passage {record.encoder.passage_prefix!r}"
        yield "vectors", settings.vectors
    columns = ", ".join(f"{name} ({count:,})" for name, count in record.columns.items())
    yield "filters", f"id, title{', ' if columns else ''}{columns}"
    yield "corpus", record.corpus_hash
    yield "made by", ", ".join(f"{name} {version}" for name, version in record.versions.items())
    yield "files", f"{len(record.files)}, {sum(file.size for file in record.files.values()) / 1e6:,.1f} MB, whole"


def _print_outcome(record: IndexRecord, out: Path, seconds: float) -> None:
    console = rich.console.Console(soft_wrap=True, highlight=False)
    size_mb = sum(file.size for file in record.files.values()) / 1e6
    what = f"{record.settings.kind} index of {record.counts.documents:,} documents, {record.counts.passages:,} passages"
    if record.is_reused:
        console.print(f"{out}: this {what} was already there, made from the same corpus and settings; nothing to do")
        return
    console.print(f"{out}: {what}, {size_mb:,.1f} MB, in {seconds:.1f} s")
    if record.changes is not None:
        counts = ", ".join(f"{count:,} {name}" for name, count in record.changes.model_dump().items())
        console.print(f"pages: {counts}")
    if record.counts.dropped:
        console.print(f"left out: {record.counts.dropped:,} near-duplicates, listed in {out / 'dropped.jsonl'}")
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
