"""What several samples or seeds say together, found in run folders.

Samples are those of one evaluation; seeds are runs whose recipes differ in nothing but name and seed, pooled by the
name of the evaluation.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seekling.errors import DataError
from seekling.evaluate.compare import (
    Records,
    SampleSummary,
    records_by_question,
    refuse_different_questions,
    summarize_samples,
)
from seekling.evaluate.intervals import Difference, Rate, difference_of, mean_of
from seekling.evaluate.result_files import read_records
from seekling.report.read import RunFolder
from seekling.reward.match import exact_match
from seekling.types import StopReason


@dataclass(frozen=True, slots=True)
class Pooled:
    """Several evaluations of one policy as one."""

    policy: str
    """Name of the evaluation: rl, or what `--name` said."""
    runs: tuple[int, ...]
    """Which of the runs that were given: one for samples, several for seeds."""
    seeds: tuple[int, ...]
    """Of the recipes, one per run; empty for samples."""
    summary: SampleSummary


@dataclass(frozen=True, slots=True)
class PooledGain:
    """What a stage changed, over the seeds of one system, for one kind of question."""

    runs: tuple[int, ...]
    """Which of the runs that were given."""
    kind: str
    """Empty for all kinds together."""
    first: Rate
    """Right episodes of all seeds; value and interval are over questions."""
    second: Rate
    difference: Difference
    """Of each question's means over the seeds, so seeds that answer alike do not make the interval narrow."""


def read_pooled(runs: Sequence[RunFolder]) -> tuple[list[Pooled], list[str]]:
    """Everything that can be put together of some runs: samples of each, then seeds across them.

    Returns:
        What was found, and a sentence for each thing that could not be read or put together.
    """
    found = [
        Pooled(name, (number,), (), summary) for number, run in enumerate(runs) for name, summary in run.samples.items()
    ]
    problems: list[str] = []
    for members, seeds in _systems(runs, fewest=2):
        for name in runs[members[0]].evaluations:  # in the order of training
            files = [(runs[number], _episodes(runs[number], name)) for number in members]
            if not all(name in run.evaluations and file.is_file() for run, file in files):
                continue
            try:
                summary = summarize_samples([(run.name, read_records(file)) for run, file in files])
                found.append(Pooled(name, members, seeds, summary))
            except DataError as error:
                problems.append(f"eval-{name} of {len(members)} seeds cannot be put together: {error}.")
    return found, problems


def pooled_gains(runs: Sequence[RunFolder]) -> tuple[list[PooledGain], list[str]]:
    """Compare RL with SFT over the seeds of every system: pairs by question and seed, clusters by question.

    Returns:
        For every system, one run or several, all kinds of question together, then each kind; and a sentence for what
        could not be compared.
    """
    found: list[PooledGain] = []
    problems: list[str] = []
    for members, _ in _systems(runs, fewest=1):
        try:
            pairs = [tuple(_records(runs[number], name) for name in ("sft", "rl")) for number in members]
            for records in (records for pair in pairs for records in pair):
                refuse_different_questions(pairs[0][0], records)
        except DataError as error:
            problems.append(f"sft and rl of {', '.join(runs[number].name for number in members)}: {error}.")
            continue
        asked = {key: record.question.kind for key, record in sorted(pairs[0][0].items())}
        kinds = sorted(set(asked.values()))
        for kind in ["", *(filter(None, kinds) if len(kinds) > 1 else [])]:
            questions = [_scores(key, pairs) for key, of in asked.items() if kind in ("", of)]
            found.append(_gain(members, kind, [scores for scores in questions if scores]))
    return found, problems


def _records(run: RunFolder, name: str) -> Records:
    return records_by_question(read_records(_episodes(run, name)), f"{run.name} eval-{name}")


def _scores(key: tuple[str, str], pairs: Sequence[tuple[Records, ...]]) -> list[tuple[float, ...]]:
    """Exact match of a question's two episodes, of every seed in which neither failed."""
    both = [[records[key] for records in pair] for pair in pairs]
    return [
        tuple(exact_match(record.episode.answer, record.question.answers) for record in records)
        for records in both
        if not any(record.episode.stop_reason is StopReason.INFRA_FAILURE for record in records)
    ]


def _gain(members: tuple[int, ...], kind: str, questions: Sequence[Sequence[tuple[float, ...]]]) -> PooledGain:
    sides = [[[pair[side] for pair in pairs] for pairs in questions] for side in (0, 1)]
    means = [mean_of([statistics.fmean(scores) for scores in side]) for side in sides]
    first, second = (
        Rate(round(sum(map(sum, side))), sum(map(len, side)), mean.value, mean.low, mean.high)
        for side, mean in zip(sides, means, strict=True)
    )
    gaps = [statistics.fmean(second - first for first, second in pairs) for pairs in questions]
    return PooledGain(members, kind, first, second, difference_of(gaps))


def _systems(runs: Sequence[RunFolder], *, fewest: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Numbers and seeds of the runs of each recipe that stands there with at least so many seeds."""
    groups: dict[str, dict[int, int]] = {}
    for number, run in enumerate(runs):
        if run.settings is not None:  # a run whose recipe is unknown is nobody's seed
            recipe = run.settings.model_dump(mode="json", exclude={"name", "seed"})
            groups.setdefault(json.dumps(recipe, sort_keys=True), {}).setdefault(run.settings.seed, number)
    return [(tuple(by_seed.values()), tuple(by_seed)) for by_seed in groups.values() if len(by_seed) >= fewest]


def _episodes(run: RunFolder, name: str) -> Path:
    return run.path / "episodes" / f"eval-{name}.jsonl"
