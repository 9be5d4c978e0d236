"""The evaluations of runs as one structure, which the terminal, the page and Markdown show.

A table holds figures, not texts: each is written with its k/n and its interval by whoever shows it (`formats`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seekling.errors import DataError
from seekling.evaluate.intervals import Difference, Mean, Rate
from seekling.evaluate.summary import EvalSummary
from seekling.report.read import RunFolder, read_run

POLICIES: Mapping[str, str] = {"base": "base", "sft": "SFT", "rl": "SFT+RL"}
Cell = Rate | Mean | Difference | str | None
"""None is a figure that nobody has."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table before it is written in any format."""

    label: str
    """What it is called on the command line and on the page."""
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    """Whose row each is, such as eval-rl; empty where rows are not policies."""

    def without_empty(self) -> Table:
        """The table without columns in which nobody has a figure."""
        kept = [number for number in range(len(self.header)) if any(row[number] is not None for row in self.rows)]
        rows = tuple(tuple(row[number] for number in kept) for row in self.rows)
        return replace(self, header=tuple(self.header[number] for number in kept), rows=rows)


@dataclass(frozen=True, slots=True)
class Policy:
    """An evaluated policy of a run."""

    run: RunFolder
    place: str
    """Name of the run, or its path where several have that name."""
    name: str
    """Of the evaluation, such as rl."""
    summary: EvalSummary

    @property
    def title(self) -> str:
        """Name for people."""
        return POLICIES.get(self.name, self.name)


def policies_of(runs: Sequence[RunFolder]) -> list[Policy]:
    """Every evaluation of some runs, each run's in the order of training."""
    times = Counter(run.name for run in runs)
    places = [run.name if times[run.name] == 1 else str(run.path) for run in runs]
    return [
        Policy(run, place, name, summary)
        for run, place in zip(runs, places, strict=True)
        for name, summary in run.evaluations.items()
    ]


def read_policies(paths: Sequence[Path]) -> tuple[list[Policy], list[str]]:
    """The evaluations in some run folders, and what is missing or damaged, one sentence each.

    Raises:
        DataError: a path is not a run folder, or not one evaluation is there.
    """
    runs = [read_run(path, has_episodes=False) for path in paths]
    problems = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    found = policies_of(runs)
    if not found:
        said = " ".join(problems) or f"{', '.join(map(str, paths))}: eval/ holds no summary."
        raise DataError(f"{said} Run `seekling train` or `seekling eval` first")
    return found, problems
