"""What several samples or seeds say together, found in run folders.

<run>/samples/<name>.json       written by an evaluation of several samples per question
several run folders             whose recipes differ in nothing but name and seed: their evaluations, pooled by name
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from seekling.config import build_recipe
from seekling.errors import ConfigError, DataError
from seekling.evaluate.files import read_records
from seekling.evaluate.samples import SampleSummary, summarize_samples
from seekling.types import Json


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

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object."""
        return {**asdict(self), "summary": self.summary.to_json()}


def read_pooled(runs: Sequence[Path]) -> tuple[list[Pooled], list[str]]:
    """Everything that can be put together of some runs: samples of each, then seeds across them.

    Runs are seeds of one system when their recipes differ in name and seed alone; an evaluation is pooled when all of
    them have it.

    Args:
        runs: run folders.

    Returns:
        What was found, and a sentence for each thing that could not be read or put together.
    """
    found: list[Pooled] = []
    problems: list[str] = []
    for number, run in enumerate(runs):
        for file in sorted((run / "samples").glob("*.json")):
            try:
                summary = SampleSummary.from_json(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{run.name}: samples/{file.name} is damaged: {str(error).splitlines()[0]}.")
                continue
            found.append(Pooled(file.stem, (number,), (), summary))
    for members, seeds in _systems(runs):
        for name in _shared_evaluations([runs[number] for number in members]):
            files = [(runs[number], runs[number] / "episodes" / f"eval-{name}.jsonl") for number in members]
            try:
                summary = summarize_samples([(run.resolve().name, read_records(file)) for run, file in files])
            except DataError as error:
                problems.append(f"eval-{name} of {len(members)} seeds cannot be put together: {error}.")
                continue
            found.append(Pooled(name, members, seeds, summary))
    return found, problems


def _systems(runs: Sequence[Path]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Numbers and seeds of the runs of each recipe that stands there with several seeds."""
    groups: dict[str, dict[int, int]] = {}
    for number, run in enumerate(runs):
        try:
            raw = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
            recipe = build_recipe(raw).model_dump(mode="json")  # settings newer than the run are at their defaults
        except (OSError, ValueError, RecursionError, ConfigError):
            continue  # the report says it; a run whose recipe is unknown is nobody's seed
        recipe.pop("name")
        seed = recipe.pop("seed")
        groups.setdefault(json.dumps(recipe, sort_keys=True), {}).setdefault(seed, number)
    return [(tuple(by_seed.values()), tuple(by_seed)) for by_seed in groups.values() if len(by_seed) > 1]


def _shared_evaluations(runs: Sequence[Path]) -> list[str]:
    """Names of the finished evaluations that every run has, in the order of training."""
    names = [
        {
            file.stem
            for file in (run / "eval").glob("*.json")
            if (run / "episodes" / f"eval-{file.stem}.jsonl").is_file()
        }
        for run in runs
    ]
    order = ("base", "sft", "rl")
    return sorted(set.intersection(*names), key=lambda name: (order.index(name) if name in order else 9, name))
