"""Figures that others published, to stand beside ours, each with what makes it comparable or not.

A published figure is never ours: it is copied, with its source. It counts as comparable only when everything that moves
such figures agrees: the questions and their number, the decoding, the turn counts, and what was searched. Nearly always
something differs, and then the table says what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seekling.evaluate.benchmarks import benchmark_of
from seekling.evaluate.settings import EvalSettings

WIKI_18_PASSAGES = 21_015_324
"""Passages of the Wikipedia dump of 2018 that Search-R1 and what follows it search."""

GREEDY = "greedy"

Metric = Literal["em", "judge", "rouge_l"]


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One number of one system on one benchmark."""

    system: str
    model: str
    benchmark: str
    metric: Metric
    value: float
    """In [0, 1]."""
    num_questions: int | None
    """None when the source does not say, or when what it says cannot be true."""
    decoding: str
    """greedy, or how it was sampled."""
    max_generations: int | None
    max_searching_turns: int | None
    retrieval: str
    """What was searched, in words."""
    source: str
    encoder: str = ""
    num_passages: int = 0
    caveat: str = ""
    """What makes the figure questionable whatever it is compared with."""


@dataclass(frozen=True, slots=True)
class PublishedBeside:
    """A published figure beside one of ours."""

    figure: PublishedFigure
    ours: float | None
    """Our value of the same metric; None when we have none, such as judge accuracy without a judge."""
    ours_n: int
    is_comparable: bool
    reasons: tuple[str, ...]
    """Why not; empty when comparable."""


def published_beside(
    source: str, values: dict[str, tuple[float | None, int]], settings: EvalSettings | None
) -> tuple[PublishedBeside, ...]:
    """All published figures of the benchmark that a data set belongs to.

    Args:
        source: name of the data set, as questions carry it.
        values: metric -> (our value, the questions it is over).
        settings: ours; None is unknown, and then nothing is comparable.
    """
    benchmark = benchmark_of(source)
    beside = []
    for figure in PUBLISHED:
        if figure.benchmark == benchmark:
            ours, n = values.get(figure.metric, (None, 0))
            reasons = _differences(figure, ours, n, settings)
            beside.append(PublishedBeside(figure, ours, n, not reasons, reasons))
    return tuple(beside)


def _differences(figure: PublishedFigure, ours: float | None, n: int, settings: EvalSettings | None) -> tuple[str, ...]:
    reasons = [figure.caveat] if figure.caveat else []
    if ours is None:
        reasons.append(f"we have no {figure.metric} here")
    if figure.num_questions is None:
        reasons.append("the number of questions is not published")
    elif figure.num_questions != n:
        reasons.append(f"{figure.num_questions} questions there, {n} here")
    if settings is None:
        return (*reasons, "our settings are not recorded")
    decoding = GREEDY if settings.temperature == 0 else f"temperature {settings.temperature:g}"
    if figure.decoding != decoding:
        reasons.append(f"decoding: {figure.decoding} there, {decoding} here")
    theirs, here = (
        (figure.max_generations, figure.max_searching_turns),
        (settings.max_generations, settings.max_searching_turns),
    )
    if theirs != here:
        reasons.append(f"generations/useful searches: {_counts(*theirs)} there, {_counts(*here)} here")
    if settings.mode != "search":
        reasons.append(f"ours is a {settings.mode} row")
    elif not _same_index(figure, settings):
        size = f" over {settings.num_passages} passages" if settings.num_passages else ""
        reasons.append(f"searched: {figure.retrieval} there, {settings.encoder or settings.retrieval}{size} here")
    return tuple(reasons)


def _same_index(figure: PublishedFigure, settings: EvalSettings) -> bool:
    same_size = figure.num_passages > 0 and figure.num_passages == settings.num_passages
    return same_size and bool(figure.encoder) and figure.encoder in settings.encoder


def _counts(generations: int | None, searches: int | None) -> str:
    return f"{generations or 'unstated'}/{'unstated' if searches is None else searches}"


_E5 = "E5-base-v2, top 3, over the 21 million passages of Wikipedia 2018"
_SAME_ROWS = "its rows cannot have been scored on the same 96 questions"


def _rare_wiki(model: str, value: float, fits: str) -> PublishedFigure:
    return PublishedFigure(
        "SLM-RL-Search",
        model,
        "rare-wiki",
        "judge",
        value,
        None,
        "not stated",
        None,
        None,
        "page titles of 2,590 Wikipedia pages, embedded",
        "SLM-RL-Search (Northeastern University), results table",
        caveat=f"{_SAME_ROWS} (with fewer than 120 it can only be {fits})",
    )


def _slime(model: str, benchmark: str, value: float, num_questions: int) -> PublishedFigure:
    return PublishedFigure(
        "slime search-r1 example",
        model,
        benchmark,
        "em",
        value,
        num_questions,
        GREEDY,
        2,
        1,
        _E5,
        "slime blog post on examples/search-r1",
        encoder="e5-base-v2",
        num_passages=WIKI_18_PASSAGES,
    )


def _tinker(model: str, benchmark: str, value: float) -> PublishedFigure:
    return PublishedFigure(
        "tinker-cookbook search_tool",
        model,
        benchmark,
        "em",
        value,
        None,
        "temperature 1",
        5,
        4,
        "gemini-embedding-001, top 3 per query, lists of queries, over Wikipedia 2018",
        "tinker-cookbook, recipes/search_tool/README.md",
        caveat="a random sample of at most 100 questions",
    )


def _class_report(model: str, em: float, rouge: float, caveat: str = "") -> tuple[PublishedFigure, ...]:
    values: tuple[tuple[Metric, float], ...] = (("em", em), ("rouge_l", rouge))
    return tuple(
        PublishedFigure(
            "process distillation + PPO",
            model,
            "nq",
            metric,
            value,
            None,
            "temperature 0.7",
            None,
            None,
            _E5,
            "process distillation class report (Bai et al.), NQ-test table; up to 5 turns",
            encoder="e5-base-v2",
            num_passages=WIKI_18_PASSAGES,
            caveat=caveat,
        )
        for metric, value in values
    )


def _search_r1(benchmark: str, value: float, num_questions: int) -> PublishedFigure:
    return PublishedFigure(
        "Search-R1",
        "Qwen2.5-7B-Instruct, GRPO",
        benchmark,
        "em",
        value,
        num_questions,
        "temperature 1",
        5,
        4,
        _E5,
        "arXiv:2503.09516",
        encoder="e5-base-v2",
        num_passages=WIKI_18_PASSAGES,
        caveat="its validation loses the greedy flag and samples",
    )


PUBLISHED: tuple[PublishedFigure, ...] = (
    _rare_wiki("Qwen3-1.7B", 0.0521, "5 of 96"),
    _rare_wiki("Qwen3-4B", 0.1146, "11 of 96"),
    _rare_wiki("Qwen3-4B, SFT", 0.2813, "27 of 96, 9 of 32 or 18 of 64"),
    _rare_wiki("Qwen3-4B, SFT + RL", 0.4268, "35 of 82"),
    _rare_wiki("GPT-5", 0.8272, "67 of 81"),
    _slime("Qwen2.5-3B, before training", "nq", 0.1620, 3610),
    _slime("Qwen2.5-3B, GRPO", "nq", 0.4576, 3610),
    _slime("Qwen2.5-3B, before training", "hotpotqa", 0.0984, 7405),
    _slime("Qwen2.5-3B, GRPO", "hotpotqa", 0.3381, 7405),
    _tinker("7B-Instruct", "nq", 0.516),
    _tinker("7B-Instruct", "triviaqa", 0.673),
    _tinker("7B-Instruct", "hotpotqa", 0.497),
    _tinker("7B-Instruct", "2wikimultihopqa", 0.428),
    _tinker("Qwen3-4B-Instruct-2507", "nq", 0.518),
    _tinker("Qwen3-4B-Instruct-2507", "triviaqa", 0.702),
    _tinker("Qwen3-4B-Instruct-2507", "hotpotqa", 0.520),
    _tinker("Qwen3-4B-Instruct-2507", "2wikimultihopqa", 0.477),
    *_class_report("Qwen2.5-3B-Instruct", 0.2374, 0.3179),
    *_class_report("Qwen2.5-3B-Instruct, SFT", 0.3654, 0.4515),
    *_class_report(
        "Qwen2.5-3B-Instruct, PPO only", 0.3108, 0.3906, "somebody else's checkpoint, trained on other questions"
    ),
    *_class_report("Qwen2.5-3B-Instruct, SFT + PPO", 0.4127, 0.4890),
    _search_r1("nq", 0.429, 3610),
    _search_r1("triviaqa", 0.623, 11313),
    _search_r1("hotpotqa", 0.386, 7405),
    _search_r1("2wikimultihopqa", 0.346, 12576),
)
