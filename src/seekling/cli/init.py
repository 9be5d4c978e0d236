"""`seekling init`: a recipe to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seekling.config import load_recipe
from seekling.errors import ConfigError

STARTER = Path(__file__).with_name("starter.toml")


def command(
    corpus: Annotated[Path, typer.Argument(help="Your documents: a folder, or a file such as corpus.jsonl.")],
    questions: Annotated[Path, typer.Argument(help='JSONL rows {"question": "...", "answers": ["..."]}.')],
    out: Annotated[Path, typer.Option(help="The recipe; must not exist yet.")] = Path("recipe.toml"),
) -> None:
    """Write a commented recipe for your own documents and questions.

    `seekling train FILE` then trains on them. "supporting_ids" in a question, the ids of pages that hold the answer
    (of a folder: their file names), lets training make more of it.
    """
    from seekling.corpus.questions import read_questions
    from seekling.files import write_atomically

    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out")
    if not corpus.exists():
        raise ConfigError(f"there is no {corpus}; expected a folder of documents, or a file such as corpus.jsonl")
    found = read_questions(questions)
    with_pages = sum(bool(each.supporting_ids) for each in found)
    text = STARTER.read_text(encoding="utf-8")
    words = {
        "file": str(out),
        "name": out.stem,
        "corpus": corpus.as_posix(),
        "questions": questions.as_posix(),
        "num_questions": f"{len(found):,} questions, of which {with_pages:,} name the pages that hold the answer",
    }
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    write_atomically(out, text)
    load_recipe(out)
    typer.echo(f"wrote {out}\nnext: seekling doctor {out}, then seekling train {out}")
