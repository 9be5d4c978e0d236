"""`seekling search`: a question to an index, the best passages back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import rich.text
import typer

from seekling.cli.options import AsJson
from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.retrieval.terms import TermRules
    from seekling.types import Hit, Json


def command(
    index: Annotated[Path, typer.Argument(help="Folder that `seekling index` made.")],
    query: Annotated[str | None, typer.Argument(help="What to look for; may be left out with --like.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            help="Only documents that fulfil this: column, sign (= != ~ >= <=), value, such as kind=pdf or "
            "title~castle. May be repeated. `seekling index --inspect` lists the columns.",
        ),
    ] = None,
    like: Annotated[str, typer.Option(help="More like this: the id of a passage or a page, instead of a query.")] = "",
    top_k: Annotated[int, typer.Option(help="Most passages to print.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Search an index and print the best passages."""
    from seekling.retrieval.index import open_index
    from seekling.retrieval.index_record import read_record, rules_of
    from seekling.retrieval.more_like import find_passage, more_like

    if top_k < 1:
        raise ConfigError(f"--top-k must be at least 1, got {top_k}")
    if query and like:
        raise ConfigError(f"got the query {query!r} and --like {like!r}; expected one of them")
    retriever = open_index(index, where=where or ())
    if like:
        passage = find_passage(index, like)
        query, hits = passage.text, more_like(retriever, passage, top_k)
    elif query is None:
        raise ConfigError("there is no query; say what to look for, or name a passage or page with --like")
    else:
        hits = retriever.search([query], top_k)[0]
    rules = rules_of(read_record(index).settings)
    if as_json:
        rows = [_as_row(hit, query, rules) for hit in hits]
        typer.echo(json.dumps({"query": query, "hits": rows}, ensure_ascii=False, indent=2))
    else:
        _print_hits(query, hits, rules)


def _as_row(hit: Hit, query: str, rules: TermRules) -> dict[str, Json]:
    from seekling.retrieval.terms import matched_spans

    passage = hit.passage
    return {
        "rank": hit.rank,
        "score": hit.score,
        "id": passage.id,
        "document_id": passage.document_id,
        "title": passage.title,
        "text": passage.text,
        "matches": [[start, end] for start, end in matched_spans(passage.text, query, rules)],
    }


def _print_hits(query: str, hits: Sequence[Hit], rules: TermRules) -> None:
    console = rich.console.Console(highlight=False)
    if not hits:
        console.print("no passage matches; try other words")
        return
    for hit in hits:
        head = rich.text.Text(f"{hit.rank + 1}  {hit.score:.4f}  ", style="dim")
        head.append(hit.passage.title, style="bold not dim").append(f"  {hit.passage.id}", style="dim")
        console.print(head)
        console.print(_highlighted(hit.passage.text, query, rules))
        console.print()


def _highlighted(text: str, query: str, rules: TermRules) -> rich.text.Text:
    from seekling.retrieval.terms import matched_spans

    shown = rich.text.Text(text)
    for start, end in matched_spans(text, query, rules):
        shown.stylize("bold yellow", start, end)
    return shown
