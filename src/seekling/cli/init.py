"""`seekling init`: from a folder of documents to questions and a recipe."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.cli.options import settings
from seekling.config import EndpointConfig, MixConfig, Recipe, build_recipe, load_recipe
from seekling.errors import ConfigError, MissingExtraError, ModelError

if TYPE_CHECKING:
    from seekling.pipeline.making import Survey
    from seekling.pipeline.reporter import Reporter
    from seekling.types import Question

STARTER = Path(__file__).with_name("starter.toml")
_MANY_QUESTIONS, _FEW_WORDS = 600, 90
"""From so many training questions on plans are learned too; pages shorter than this are passages of their own."""


@settings("mix", MixConfig, "num_questions two_pages described own_words_miss unanswerable")
@settings(
    "teacher",
    EndpointConfig,
    {"url": "--teacher", "model": "--teacher-model", "key_env": "--teacher-key-env"},
    is_optional=True,
    defaults={"model": "default"},
)
def command(
    corpus: Annotated[Path, typer.Argument(help="Your documents: a folder, or a file such as corpus.jsonl.")],
    teacher: EndpointConfig | None,
    mix: MixConfig,
    questions: Annotated[
        Path | None, typer.Argument(help='JSONL rows {"question": "...", "answers": ["..."]}; left out: they are made.')
    ] = None,
    out: Annotated[Path, typer.Option(help="The recipe; must not exist yet.")] = Path("recipe.toml"),
    index: Annotated[Path | None, typer.Option(help="Index folder; built, or used if it is there.")] = None,
    closed_book: Annotated[
        str, typer.Option(help='Leave out what this model answers without the pages; "none": ask no model.')
    ] = "default",
) -> None:
    """Look at your documents, make questions of them, and write a commented recipe.

    `seekling train FILE` then trains on them. The questions are one plain file, a line each: delete what is not worth
    asking, correct the rest, add your own.
    """
    from seekling.pipeline.making import survey
    from seekling.pipeline.reporter import Reporter

    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out")
    if not corpus.exists():
        raise ConfigError(f"there is no {corpus}; expected a folder of documents, or a file such as corpus.jsonl")
    made = out.with_suffix(".questions.jsonl")
    if questions is None and made.exists():
        raise ConfigError(f"{made} exists already; to use it: seekling init {corpus} {made}")
    reporter = Reporter()
    found = survey(corpus, "page", reporter)
    typer.echo(found)
    place = index or out.with_suffix(".index")
    words = _words(out, corpus, questions or made, place, found)
    recipe = build_recipe(tomllib.loads(_filled(words)))
    model = _model_without_pages(closed_book, reporter) if questions is None else None
    asked = _questions(corpus, questions, place, found, recipe, mix, teacher, reporter, model)
    _write(out, words, made if questions is None else None, asked)
    typer.echo(f"wrote {out}\nnext: read {questions or made}; seekling doctor {out}, then seekling train {out}")


def _questions(
    corpus: Path,
    questions: Path | None,
    place: Path,
    found: Survey,
    recipe: Recipe,
    mix: MixConfig,
    teacher: EndpointConfig | None,
    reporter: Reporter,
    closed_book: Path | None,
) -> list[Question]:
    from seekling.corpus.making.checks import count_problems
    from seekling.corpus.questions import read_questions
    from seekling.pipeline.making import make_questions
    from seekling.retrieval.index import build_index
    from seekling.retrieval.library import open_library

    given = read_questions(questions) if questions is not None else []
    with reporter.stages() as report:
        record = build_index(corpus, place, recipe.retrieval.index, progress=report)
    state = "used as it is" if record.is_reused else "built"
    typer.echo(f"index: {place} {state}, {record.counts.passages:,} passages")
    if given:
        pages = {document.id: document for document in found.documents}
        for problem, count in count_problems(given, pages.get).most_common():
            typer.echo(f"warning: {count:,} of {len(given):,} questions: {problem}")
        return given
    extra: list[Question] = []
    if teacher is not None:
        from seekling.pipeline.making import ask_teacher

        extra = ask_teacher(teacher, found, mix.num_questions, reporter)
    library = open_library(place, recipe.retrieval)
    made = make_questions(found, library, recipe, mix, reporter, extra=extra, closed_book=closed_book)
    typer.echo(f"questions: {len(made.questions):,} of {made.num_candidates:,} candidates")
    for reason, count in made.dropped.most_common():
        typer.echo(f"  {count:,} dropped: {reason}")
    if closed_book is not None:
        typer.echo(f"  {made.num_known:,} answerable without the pages: left out")
    two_pages = sum(len(each.supporting_ids) > 1 for each in made.questions)
    typer.echo(f"  kept: {two_pages:,} over two pages")
    typer.echo(f"  kept: {made.num_missed:,} that a search for the question's own words does not answer")
    return made.questions


def _model_without_pages(spec: str, reporter: Reporter) -> Path | None:
    """The folder of the model that must not know the answers; None: no model is asked."""
    from seekling.pipeline.closed_book import find_model

    if spec in ("", "none"):
        return None
    try:
        return find_model(spec, reporter)
    except (ModelError, MissingExtraError) as error:
        if spec != "default":
            raise
        reason = str(error).splitlines()[0]
        typer.echo(f"no check of what a model answers without the pages: there is no model ({reason})")
        return None


def _words(out: Path, corpus: Path, questions: Path, place: Path, found: Survey) -> dict[str, str]:
    """What the starter leaves open."""
    is_short = found.words < _FEW_WORDS * len(found.documents)
    return {
        "file": str(out),
        "name": out.stem,
        "corpus": corpus.as_posix(),
        "questions": questions.as_posix(),
        "index": place.as_posix(),
        "language": found.language,
        "passage_words": "60" if is_short else "40",
        "top_k": "2" if is_short else "3",
        "num_questions": "questions",
        "num_experts": "400",
        "num_plans": "0",
    }


def _filled(words: dict[str, str]) -> str:
    text = STARTER.read_text(encoding="utf-8")
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def _write(out: Path, words: dict[str, str], made: Path | None, asked: list[Question]) -> None:
    """The questions first, then the recipe that names them, each whole or not at all."""
    from seekling.corpus.questions import write_questions
    from seekling.files import write_atomically

    with_pages = sum(bool(each.supporting_ids) for each in asked)
    num_training = int(0.68 * len(asked))
    words |= {
        "num_questions": f"{len(asked):,} questions, of which {with_pages:,} name their pages",
        "num_experts": str(min(400, num_training)),
        "num_plans": str(num_training - 400 if num_training > _MANY_QUESTIONS else 0),
    }
    if made is not None:
        write_questions(made, asked)
    write_atomically(out, _filled(words))
    load_recipe(out)
