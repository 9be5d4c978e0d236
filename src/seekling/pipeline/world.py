"""Corpus, questions and index of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seekling.config import Recipe
from seekling.corpus.questions import question_set_hash, read_questions, split_questions
from seekling.errors import DataError
from seekling.pipeline.progress import Reporter
from seekling.retrieval.index import build_index
from seekling.retrieval.library import Library, open_library
from seekling.retrieval.remote import open_distant
from seekling.types import Json, Question


@dataclass(frozen=True, slots=True)
class World:
    """What the agent searches, and what it is asked."""

    library: Library
    train: list[Question]
    test: list[Question]
    hashes: dict[str, Json]
    """Of the corpus and of both question sets."""


def open_world(recipe: Recipe, folder: Path, reporter: Reporter) -> World:
    """Generate or read the corpus, index it in the run folder, and read the questions.

    Args:
        recipe: its data, retrieval and eval sections.
        folder: of the run; holds `corpus/` (a generated almanac) and `index/`. Both are reused when they are there.
            A remote index stays where it is, and its corpus with it.
        reporter: for progress.

    Raises:
        DataError: a file is missing or bad, or no question is left.
    """
    corpus, train_path, test_path = recipe.data.corpus, recipe.data.train, recipe.data.test
    is_remote = recipe.retrieval.kind == "remote"
    if not corpus and not is_remote:
        almanac = folder / "corpus"
        if not (almanac / "corpus.jsonl").exists():
            reporter.line(f"almanac: writing {recipe.data.almanac_pages} pages (seed {recipe.data.almanac_seed})")
            from seekling.corpus.almanac import generate

            generate(recipe.data.almanac_pages, recipe.data.almanac_seed, almanac)
        corpus = str(almanac / "corpus.jsonl")
        train_path = train_path or str(almanac / "train.jsonl")
        test_path = test_path or str(almanac / "test.jsonl")
    if not train_path:
        what = "retrieval.kind is remote" if is_remote else "data.corpus is set"
        raise DataError(f"{what}, data.train is not; name a question file, such as data.train=qa.jsonl")
    library, corpus_hash = (
        _open_remote(recipe, reporter) if is_remote else _open_local(recipe, corpus, folder, reporter)
    )
    train = _of_kinds(read_questions(train_path, source=recipe.data.source), recipe.data.kinds)
    if test_path:
        test = _of_kinds(read_questions(test_path, source=recipe.data.source), recipe.data.kinds)
    else:
        train, test = split_questions(train, recipe.data.test_fraction)
    train = _of_sources(_of_kinds(train, recipe.data.train_kinds), recipe.data.train_sources)
    test = _of_sources(test, recipe.data.test_sources)
    if recipe.eval.num_questions:
        test = test[: recipe.eval.num_questions]
    if not train or not test:
        raise DataError(
            f"{len(train)} training and {len(test)} test questions are left; both are needed "
            f"(data.kinds = {list(recipe.data.kinds)}, data.train_kinds = {list(recipe.data.train_kinds)}, "
            f"data.train_sources = {list(recipe.data.train_sources)}, "
            f"data.test_sources = {list(recipe.data.test_sources)}, data.test_fraction = {recipe.data.test_fraction})"
        )
    overlap = {question.key for question in train} & {question.key for question in test}
    if overlap:
        raise DataError(
            f"{len(overlap)} questions are in both the training and the test set, such as {sorted(overlap)[0]}; "
            "a held-out figure would mean nothing: give disjoint files, or no data.test"
        )
    hashes: dict[str, Json] = {
        "corpus": corpus_hash,
        "train_questions": question_set_hash(train),
        "test_questions": question_set_hash(test),
    }
    return World(library, train, test, hashes)


def _open_local(recipe: Recipe, corpus: str, folder: Path, reporter: Reporter) -> tuple[Library, str]:
    """The library over an index in the run folder, built when it is not there, and its corpus hash."""
    record = build_index(corpus, folder / "index", recipe.retrieval)
    reporter.line(
        f"index: {record.num_documents} pages, {record.num_passages} passages, {record.kind}"
        + (" (reused)" if record.is_reused else "")
    )
    return open_library(folder / "index", recipe.retrieval), record.corpus_hash


def _open_remote(recipe: Recipe, reporter: Reporter) -> tuple[Library, str]:
    """The library over an index behind a server, and what is known of its corpus."""
    retriever, index = open_distant(recipe.retrieval)
    reporter.line(f"index: remote, {recipe.retrieval.url}")
    flat_sections = recipe.retrieval.sections == "flat"
    return Library(retriever, index, may_wait=True, flat_sections=flat_sections), index.corpus_hash()


def _of_kinds(questions: list[Question], kinds: tuple[str, ...]) -> list[Question]:
    """Those of the kinds; a question that says no kind is kept, no kinds keep all."""
    return [question for question in questions if not kinds or not question.kind or question.kind in kinds]


def _of_sources(questions: list[Question], sources: tuple[str, ...]) -> list[Question]:
    """Those of the data sets; no sources keep all."""
    return [question for question in questions if not sources or question.source in sources]
