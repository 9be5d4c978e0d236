"""`seekling index`: a corpus becomes an index folder; with --inspect it says what one holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import rich.table
import rich.text
import typer

from seekling.cli.options import AsJson, settings
from seekling.config import IndexConfig

if TYPE_CHECKING:
    from seekling.retrieval.index_record import IndexRecord

_SHOWN = 20
"""Lines about what could not be read."""


@settings("config", IndexConfig)
def command(
    ctx: typer.Context,
    corpus: Annotated[
        Path,
        typer.Argument(help="JSONL, CSV, Parquet, or a folder of such files, markdown, HTML, PDF and text."),
    ],
    config: IndexConfig,
    out: Annotated[Path, typer.Option("--out", help="Folder of the index.")],
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Bring an index up to date with its corpus, reading only what changed; its settings are kept.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that was made otherwise.")] = False,
) -> None:
    """Cut a corpus into passages and index them for searching.

    An index that the same corpus and settings made is kept. The index holds the texts too: the corpus is not needed
    afterwards. After Ctrl-C the same command goes on where it stopped.
    """
    from seekling.pipeline.reporter import Reporter
    from seekling.retrieval.index import build_index
    from seekling.retrieval.index_record import RECORD_NAME, read_record
    from seekling.retrieval.workspace import restore_abandoned

    restore_abandoned(out.resolve())
    if update and (out / RECORD_NAME).exists():
        sources = {name: ctx.get_parameter_source(name) for name in IndexConfig.model_fields}
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        kept = {name: value for name, value in read_record(out).settings if name not in given}
        config = config.model_copy(update=kept)
    started = time.monotonic()
    with Reporter().stages() as report:
        record = build_index(corpus, out, config, force=force, update=update, progress=report)
    _print_outcome(record, out, time.monotonic() - started)


def inspect(
    index: Annotated[Path, typer.Argument(help="Folder that `seekling index` made.")], as_json: AsJson = False
) -> None:
    """Say what an index holds, how it was made, and whether its files are whole."""
    from seekling.retrieval.index_record import check_files, read_record

    record = read_record(index)
    check_files(index, record)
    if as_json:
        typer.echo(record.model_dump_json(indent=2))
        return
    table = rich.table.Table(show_header=False, box=None)
    for name, value in _facts(record):
        table.add_row(f"[dim]{name}", rich.text.Text(value))
    rich.console.Console(highlight=False, soft_wrap=True).print(table)


def push(
    index: Annotated[Path, typer.Argument(help="A dense or hybrid index.")],
    store: Annotated[
        str,
        typer.Argument(help="chroma:FOLDER#COLLECTION or chroma:http://host:8000#COLLECTION."),
    ],
) -> None:
    """Copy an index's passages and vectors into Chroma (extra chroma)."""
    from seekling.pipeline.reporter import Reporter
    from seekling.retrieval.chroma import fill_store

    with Reporter().stages() as report:
        num_passages = fill_store(index, store, report=lambda done, total: report("push", done, total))
    rich.console.Console(soft_wrap=True, highlight=False).print(
        f"{store}: {num_passages:,} passages; to search them: retrieval.url={store}", markup=False
    )


def _facts(record: IndexRecord) -> Iterator[tuple[str, str]]:
    settings = record.settings
    yield "kind", settings.kind
    yield "documents", f"{record.counts.documents:,}"
    overlap = f", {settings.overlap_words} of them from the one before" if settings.overlap_words else ""
    if settings.entries == "titles":
        yield "titles", f"{record.counts.passages:,}"
    else:
        yield "passages", f"{record.counts.passages:,} of at most {settings.passage_words} words{overlap}"
    if record.terms:
        stem, stop = "stemmed" if settings.stem else "not stemmed", "without" if settings.stop_words else "with"
        yield "terms", f"{record.counts.terms:,}, {settings.language}, {stem}, {stop} stop words"
    encoder = record.encoder
    if encoder is not None:
        yield "encoder", f"{encoder.spec}, {encoder.dimension} dimensions, {encoder.pooling} pooling"
        yield "prefixes", f"query {encoder.query_prefix!r}, passage {encoder.passage_prefix!r}"
        yield "vectors", settings.vectors
    columns = ", ".join(f"{name} ({count:,})" for name, count in record.columns.items())
    yield "columns", f"id, title{', ' if columns else ''}{columns}"
    if record.left_out:
        yield "could not be read", "\n".join(record.left_out)
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
    if record.left_out:
        console.print(f"could not be read, left out: {len(record.left_out):,}")
        console.print("\n".join(f"  {line}" for line in record.left_out[:_SHOWN]), markup=False)
        if len(record.left_out) > _SHOWN:
            console.print(f"  ... all of them: seekling index --inspect {out}", markup=False)
    if record.changes is not None:
        counts = ", ".join(f"{count:,} {name}" for name, count in record.changes.model_dump().items())
        console.print(f"pages: {counts}")
    console.print(f'try: seekling search {out} "your question"', markup=False)
