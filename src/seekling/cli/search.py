"""`seekling search`: a question to an index, the best passages back; with --recall how well indexes find pages."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import rich.table
import rich.text
import typer

from seekling.cli.options import AsJson
from seekling.config import RetrievalConfig
from seekling.errors import ConfigError
from seekling.text import printable

if TYPE_CHECKING:
    from seekling.evaluate.retrieval_scores import RetrievalScores
    from seekling.retrieval.library import Library
    from seekling.types import Hit


def command(
    index: Annotated[Path, typer.Argument(help="Folder that `seekling index` made.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: Annotated[int, typer.Option(min=1, help="Most passages to print.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Search an index and print the best passages."""
    from seekling.retrieval.index import open_index

    hits = open_index(index).search([query], top_k)[0]
    if as_json:
        rows = [{"rank": hit.rank, "score": hit.score, **asdict(hit.passage)} for hit in hits]
        typer.echo(json.dumps({"query": query, "hits": rows}, ensure_ascii=False, indent=2))
    else:
        _print_hits(hits)


def _print_hits(hits: Sequence[Hit]) -> None:
    console = rich.console.Console(highlight=False)
    if not hits:
        console.print("no passage matches; try other words")
    for hit in hits:
        head = rich.text.Text(f"{hit.rank + 1}  {hit.score:.4f}  ", style="dim")
        head.append(printable(hit.passage.title), style="bold not dim")
        head.append(printable(f"  {hit.passage.id}"), style="dim")
        console.print(head, printable(hit.passage.text), "", sep="\n", markup=False)


def recall(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="INDEX... QUESTIONS",
            help="Index folders, or addresses of search servers; then a question file with supporting_ids.",
        ),
    ],
    at: Annotated[
        list[int] | None, typer.Option(min=1, help="Length of the list to look at; may be repeated. Default 3, 5, 10.")
    ] = None,
    num_questions: Annotated[int, typer.Option(min=0, help="Only the first so many questions; 0: all.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Score indexes by the pages they find: recall, MRR and nDCG, with intervals."""
    from seekling.corpus.questions import read_questions
    from seekling.evaluate.retrieval_scores import score_retrieval
    from seekling.pipeline.reporter import Reporter

    if len(places) < 2:
        raise ConfigError(f"got only {places[0]}; expected one or more indexes and then a question file")
    lengths = tuple(sorted(set(at or (3, 5, 10))))
    *indexes, file = dict.fromkeys(places)
    questions = read_questions(file)[: num_questions or None]
    scores: dict[str, RetrievalScores] = {}
    with Reporter().stages() as report:
        for index in indexes:
            tell = functools.partial(report, index)
            scores[index] = score_retrieval(_open_library(index), questions, lengths, progress=tell)
    if as_json:
        document = {"questions": file, "retrievers": {index: asdict(each) for index, each in scores.items()}}
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _print_recall(scores)


def _open_library(place: str) -> Library:
    from seekling.retrieval.library import open_library

    if place.startswith(("http://", "https://")):
        return open_library(place, RetrievalConfig(url=place))
    return open_library(Path(place))


def _print_recall(scores: dict[str, RetrievalScores]) -> None:
    from seekling.evaluate.intervals import format_mean

    console = rich.console.Console(highlight=False, soft_wrap=True)
    first = next(iter(scores.values()))
    table = rich.table.Table("", *scores, box=rich.box.SIMPLE)
    for name in first.metrics:
        table.add_row(name, *(format_mean(each.metrics[name]) for each in scores.values()))
    console.print(table)
    left_out = f", {first.num_unjudged:,} without supporting pages left out" if first.num_unjudged else ""
    console.print(f"{first.num_questions:,} questions{left_out}; percent, with 95 % intervals")
    for index, each in scores.items():
        if each.num_missing:
            console.print(f"{index}: {each.num_missing:,} supporting pages are not in it, and count as not found")
