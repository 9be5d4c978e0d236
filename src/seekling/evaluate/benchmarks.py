"""Benchmarks by name: which rows of a file belong to one, and how many a whole one has.

Nothing is downloaded here. The seven of Search-R1 stand in one Parquet file (test.parquet of
PeterJinGo/nq_hotpotqa_train) and are told apart by `data_source`; rare-wiki is a file of its own
(willcb/wiki-trivia-questions-v4), of which the last fifth is the test set; an almanac is written by seekling itself.
Any other name is the user's own: the `source` of the rows that are meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from seekling.corpus.questions import read_questions
from seekling.corpus.splits import split_questions
from seekling.errors import ConfigError, DataError
from seekling.types import Question

NUM_QUESTIONS: Mapping[str, int | None] = MappingProxyType(
    {
        "nq": 3610, "triviaqa": 11313, "popqa": 14267, "hotpotqa": 7405, "2wikimultihopqa": 12576, "musique": 2417,
        "bamboogle": 125, "rare-wiki": 96, "almanac": None,
    }
)  # fmt: skip
"""Name of every benchmark -> questions of the whole published set; None where there is no fixed one."""
_ALIASES = {
    "nq": ("nq_open", "nq-open", "natural_questions"),
    "triviaqa": ("trivia_qa",),
    "hotpotqa": ("hotpot_qa", "hotpot"),
    "2wikimultihopqa": ("2wiki", "2wikimultihop"),
    "rare-wiki": ("rare-wiki-trivia", "wiki-trivia"),
}
"""Other names that rows carry as their source."""


@dataclass(frozen=True, slots=True)
class BenchmarkSet:
    """The questions of the benchmarks asked for."""

    questions: list[Question]
    notes: tuple[str, ...]
    """What differs from the published sets, a sentence each."""


def benchmark_of(source: str) -> str:
    """Name of the benchmark that a source belongs to; empty when it is none of them.

    A source is recognised by its first word or words ("triviaqa-test", "nq-open-dev (sample)"). Prefixes that other
    tools put before the name, such as verl's `searchR1_`, are read over.
    """
    name = source.strip().lower().removeprefix("searchr1_")
    for benchmark in NUM_QUESTIONS:
        for known in (benchmark, *_ALIASES.get(benchmark, ())):
            if name.startswith(known) and not name[len(known) : len(known) + 1].isalnum():
                return benchmark
    return ""


def open_benchmarks(names: Sequence[str], path: Path | str) -> BenchmarkSet:
    """Read the questions of one or more benchmarks from a file.

    Args:
        names: from `NUM_QUESTIONS`, or sources of the user's own rows. rare-wiki and almanac stand alone.
        path: a question file of any kind that is read.

    Returns:
        The questions in file order.

    Raises:
        ConfigError: no name, or one that cannot be combined with others.
        DataError: the file cannot be read, or holds no row of one of the names; lists the names that it has.
    """
    alone = [name for name in names if benchmark_of(name) in ("rare-wiki", "almanac")]
    if not names or (alone and len(names) > 1):
        raise ConfigError(f"got the benchmarks {list(names)}; expected at least one, and rare-wiki or almanac alone")
    if alone:
        return _whole_file(benchmark_of(alone[0]), path)
    questions = read_questions(path)
    wanted = {benchmark_of(name) or name for name in names}
    chosen = [question for question in questions if _name_of(question) in wanted]
    found = Counter(map(_name_of, chosen))
    missing = sorted(wanted - found.keys())
    if missing:
        have = Counter(_name_of(question) or "(no source)" for question in questions)
        raise DataError(
            f"{path} holds no question of {', '.join(missing)}; its rows are of "
            f"{', '.join(f'{name} ({count})' for name, count in sorted(have.items()))}"
        )
    return BenchmarkSet(chosen, tuple(note for name in sorted(found) for note in _count_note(name, found[name])))


def _whole_file(name: str, path: Path | str) -> BenchmarkSet:
    questions = read_questions(path, source=name)
    if name == "rare-wiki":
        questions = [replace(question, source=name) for question in questions]
        # The published split: 478 questions in file order, the first 382 for training, the last 96 for the test.
        questions = split_questions(questions, 0.2)[1]
    return BenchmarkSet(questions, _count_note(name, len(questions)))


def _name_of(question: Question) -> str:
    return benchmark_of(question.source) or question.source


def _count_note(name: str, count: int) -> tuple[str, ...]:
    published = NUM_QUESTIONS.get(name)
    if published is None or published == count:
        return ()
    return (f"{name}: {count} questions, the published set has {published}: figures are not comparable with it",)
