"""Corpus, questions and index of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seekling.config import Recipe
from seekling.corpus.making.checks import count_problems
from seekling.corpus.questions import question_set_hash, read_questions
from seekling.corpus.splits import split_by_page, split_questions, with_shared_page, with_shared_text
from seekling.env.withholding import with_twins
from seekling.errors import DataError
from seekling.pipeline.reporter import Reporter
from seekling.retrieval.index import build_index
from seekling.retrieval.index_record import read_record
from seekling.retrieval.library import Library, open_library
from seekling.retrieval.remote import open_distant
from seekling.types import Json, Question

_CHECKED = 5000
"""Training questions that are looked at, at most."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The questions of a recipe. No text is in two of the sets."""

    train: list[Question]
    dev: list[Question]
    """By which the best policy is chosen; may be empty."""
    test: list[Question]
    """Asked once, when nothing is left to choose."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures must know of them."""


@dataclass(frozen=True, kw_only=True)
class World(Splits):
    """What the agent searches, and what it is asked."""

    library: Library
    hashes: dict[str, Json]
    """Of the corpus and of the question sets."""


def open_world(recipe: Recipe, folder: Path, reporter: Reporter) -> World:
    """Generate or read the corpus, index it in the run folder, and read the questions.

    The run folder holds `corpus/` (a generated almanac) and `index/`; both are reused when they are there. A remote
    index stays where it is, and its corpus with it.

    Raises:
        DataError: a file is missing or bad, or no question is left.
    """
    data = recipe.data
    corpus, train_path, dev_path, test_path = data.corpus, data.train, data.dev, data.test
    is_remote = bool(recipe.retrieval.url)
    if not corpus and not is_remote and not recipe.retrieval.index_dir:
        almanac = folder / "corpus"
        if not (almanac / "corpus.jsonl").exists():
            reporter.line(f"almanac: writing {recipe.data.almanac_pages} pages (seed {recipe.data.almanac_seed})")
            from seekling.corpus.almanac import generate

            generate(recipe.data.almanac_pages, recipe.data.almanac_seed, almanac)
        corpus = str(almanac / "corpus.jsonl")
        has_dev = not train_path and data.dev_fraction > 0
        dev_path = dev_path or (str(almanac / "dev.jsonl") if has_dev else "")
        train_path = train_path or str(almanac / "train.jsonl")
        test_path = test_path or str(almanac / "test.jsonl")
    if not train_path:
        name = "retrieval.url" if is_remote else "data.corpus" if corpus else "retrieval.index_dir"
        raise DataError(f"{name} is set, data.train is not; name a question file, such as data.train=qa.jsonl")
    library, corpus_hash = _open_library(recipe, corpus, folder, reporter)
    splits = read_splits(recipe, train_path, dev_path, test_path)
    for note in splits.notes:
        reporter.line(f"warning: {note}")
    if data.train and not is_remote:  # of many a sample
        asked = [each for each in splits.train[:: len(splits.train) // _CHECKED + 1] if not each.withheld]
        for problem, count in count_problems(asked, library.find).most_common():
            reporter.line(f"warning: {count:,} of {len(asked):,} training questions: {problem}")
    test, dev = splits.test[: recipe.eval.num_questions or None], splits.dev[: recipe.eval.dev_questions]
    hashes: dict[str, Json] = {
        "corpus": corpus_hash,
        "train_questions": question_set_hash(splits.train),
        "dev_questions": question_set_hash(dev),
        "test_questions": question_set_hash(test),
    }
    return World(library=library, train=splits.train, dev=dev, test=test, hashes=hashes, notes=splits.notes)


def read_splits(recipe: Recipe, train_path: str, dev_path: str, test_path: str) -> Splits:
    """Read the questions of a recipe and divide what comes in one file.

    Without a file for dev, those are part of the training questions; without one for the test, part of the others.

    Raises:
        DataError: a file is missing or bad, a text is in two of the sets, or no question is left.
    """
    data = recipe.data
    train, test = _read(recipe, train_path), _read(recipe, test_path) if test_path else []
    if not test_path:
        train, test = _divide(recipe, train, data.test_fraction)
    test = _of_sources(test, data.questions.test_sources)
    train = _without_shared(recipe, train, test, "training", "test")
    if dev_path:
        dev = _without_shared(recipe, _read(recipe, dev_path), test, "development", "test")
        train = _without_shared(recipe, train, dev, "training", "development")
    else:
        train, dev = _divide(recipe, train, data.dev_fraction)
    train = _of_sources(_of_kinds(train, data.questions.train_kinds), data.questions.train_sources)
    train = with_twins(train, data.withheld_share)
    if not train or not test:
        filters = (
            f"data.questions.{name} = {list(value)}" for name, value in data.questions if name != "source" and value
        )
        raise DataError(
            f"{len(train)} training and {len(test)} test questions are left; both are needed "
            f"({', '.join([f'data.test_fraction = {data.test_fraction}', *filters])}; where most questions share pages "
            'none can be held out by page: give data.test, or data.split = "order")'
        )
    pairs = ((test, [*train, *dev], "test", "training or development"), (dev, train, "development", "training"))
    counts = [(len(with_shared_page(held, others)), len(held), name, other) for held, others, name, other in pairs]
    notes = [
        f"{shared} of {total} {name} questions are about a page that {other} questions are about too"
        for shared, total, name, other in counts
        if shared
    ]
    return Splits(train=train, dev=dev, test=test, notes=tuple(notes))


def _read(recipe: Recipe, path: str) -> list[Question]:
    return _of_kinds(read_questions(path, source=recipe.data.questions.source), recipe.data.questions.kinds)


def _divide(recipe: Recipe, questions: list[Question], fraction: float) -> tuple[list[Question], list[Question]]:
    divide = split_by_page if recipe.data.split == "page" else split_questions
    return divide(questions, fraction)


def _without_shared(
    recipe: Recipe, questions: list[Question], others: list[Question], name: str, other: str
) -> list[Question]:
    """The questions that are not among the others, or all, if none is."""
    shared = with_shared_text(questions, others)
    if shared and recipe.data.overlap == "refuse":
        raise DataError(
            f"{len(shared)} questions are in both the {name} and the {other} set, such as {shared[0].question!r}; a "
            'held-out figure would mean nothing: give disjoint files, or set data.overlap = "drop", which leaves them '
            f"out of the {name} set"
        )
    keys = {question.key for question in shared}
    return [question for question in questions if question.key not in keys]


def _open_library(recipe: Recipe, corpus: str, folder: Path, reporter: Reporter) -> tuple[Library, str]:
    """The library over a server's index, the recipe's or one in the run folder, built when missing; its corpus hash."""
    if recipe.retrieval.url:
        retriever, index = open_distant(recipe.retrieval)
        reporter.line(f"index: remote, {recipe.retrieval.url}")
        is_flat = recipe.retrieval.sections == "flat"
        return Library(retriever, index, may_wait=True, flat_sections=is_flat), index.corpus_hash()
    place = recipe.retrieval.folder(folder)
    if recipe.retrieval.index_dir:
        library, record = open_library(place, recipe.retrieval), read_record(place)
        reporter.line(f"index: {place}, {record.counts.documents} pages, {record.counts.passages} passages")
        return library, record.corpus_hash
    with reporter.stages() as report:
        record = build_index(corpus, place, recipe.retrieval.index, progress=report)
    if record.left_out:
        reporter.line(f"warning: {len(record.left_out):,} files could not be read, such as {record.left_out[0]}")
    reporter.line(
        f"index: {record.counts.documents} pages, {record.counts.passages} passages, {record.settings.kind}"
        + (" (reused)" if record.is_reused else "")
    )
    return open_library(place, recipe.retrieval), record.corpus_hash


def _of_kinds(questions: list[Question], kinds: tuple[str, ...]) -> list[Question]:
    """Those of the kinds; a question that says no kind is kept, no kinds keep all."""
    return [question for question in questions if not kinds or not question.kind or question.kind in kinds]


def _of_sources(questions: list[Question], sources: tuple[str, ...]) -> list[Question]:
    """Those of the data sets; no sources keep all."""
    return [question for question in questions if not sources or question.source in sources]
