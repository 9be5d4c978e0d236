"""`seekling search`: a question to an index, the best passages back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import rich.text
import typer

from seekling.errors import ConfigError

if TYPE_CHECKING:
    from seekling.types import Hit


def command(
    index: Annotated[Path, typer.Argument(help="Folder that `seekling index` made.", show_default=False)],
    query: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    top_k: Annotated[int, typer.Option(help="Most passages to print.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Search an index and print the best passages."""
    from seekling.retrieval.index import open_index

    if top_k < 1:
        raise ConfigError(f"--top-k must be at least 1, got {top_k}")
    hits = open_index(index).search([query], top_k)[0]
    if as_json:
        typer.echo(json.dumps({"query": query, "hits": [_as_row(hit) for hit in hits]}, ensure_ascii=False, indent=2))
    else:
        _print_hits(query, hits)


def _as_row(hit: Hit) -> dict[str, str | int | float]:
    passage = hit.passage
    return {
        "rank": hit.rank,
        "score": hit.score,
        "id": passage.id,
        "document_id": passage.document_id,
        "title": passage.title,
        "text": passage.text,
    }


def _print_hits(query: str, hits: Sequence[Hit]) -> None:
    console = rich.console.Console(highlight=False)
    if not hits:
        console.print("no passage matches; try other words")
        return
    for hit in hits:
        head = rich.text.Text(f"{hit.rank + 1}  {hit.score:.4f}  ", style="dim")
        head.append(hit.passage.title, style="bold not dim").append(f"  {hit.passage.id}", style="dim")
        console.print(head)
        console.print(_highlighted(hit.passage.text, query))
        console.print()


def _highlighted(text: str, query: str) -> rich.text.Text:
    """The text with every word marked that counts as a word of the query: inflected forms too, stop words not."""
    from seekling.retrieval.terms import WORD_PATTERN, TermMaker

    maker = TermMaker()
    wanted = set(maker.terms(query))
    shown = rich.text.Text(text)
    for word in re.finditer(WORD_PATTERN, text):
        if not wanted.isdisjoint(maker.terms(word.group())):
            shown.stylize("bold yellow", *word.span())
    return shown
