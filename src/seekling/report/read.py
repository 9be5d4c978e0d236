"""A run folder, read as far as it can be read.

A report is most wanted when something went wrong, so nothing here raises for a missing or damaged file: what is there
is kept, and `RunFolder.problems` says what is not. A `RunReader` reads a run again and again while it is being written,
and only what is new.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from seekling.config import EVALUATIONS, Recipe, build_recipe
from seekling.errors import ConfigError, DataError
from seekling.evaluate.compare import PairedComparison, SampleSummary
from seekling.evaluate.summary import EvalSummary
from seekling.report.json_lines import JsonLinesFile, finite
from seekling.types import EpisodeRecord, Json

_KNOWN = ("recipe.toml", "record.json", "progress.json", "metrics.jsonl", "episodes", "eval", "samples")


@dataclass(slots=True)
class RunFolder:
    """What a run folder holds."""

    name: str
    path: Path
    recipe_toml: str = ""
    recipe: dict[str, Json] = field(default_factory=dict)
    """As written."""
    settings: Recipe | None = None
    """The recipe with everything that it leaves at its default; None where it cannot be read."""
    record: dict[str, Json] = field(default_factory=dict)
    progress: dict[str, Json] = field(default_factory=dict)
    """Which stages are done, and the seconds of each; empty for a run that does not say."""
    metrics: dict[str, list[dict[str, Json]]] = field(default_factory=dict)
    """Rows by stage, in file order."""
    evaluations: dict[str, EvalSummary] = field(default_factory=dict)
    """By name, such as rl; `EVALUATIONS` first."""
    comparisons: list[PairedComparison] = field(default_factory=list)
    samples: dict[str, SampleSummary] = field(default_factory=dict)
    """Several samples of each question as one, by name of the evaluation."""
    files: list[JsonLinesFile[EpisodeRecord]] = field(default_factory=list)
    """The episodes files, in the order of training."""
    problems: list[str] = field(default_factory=list)
    """What is missing or damaged, one sentence each."""

    @property
    def episodes(self) -> list[EpisodeRecord]:
        """Of all stages, in the order of training, then in file order."""
        return [record for file in self.files for record in file.all_items]


def read_run(path: Path | str, *, has_episodes: bool = True) -> RunFolder:
    """Read a run folder as far as it can be read; without episodes the recipe and the evaluations alone, quickly.

    Raises:
        DataError: there is no such folder, or it holds nothing that a run writes.
    """
    reader = RunReader(path)
    return reader.read() if has_episodes else reader.read_results()


class RunReader:
    """Reads one run folder, as often as asked; lines that were read once are not read again.

    With `is_growing` a training run is still writing: a last line without an end is no damage.

    Raises:
        DataError: there is no such folder, or it holds nothing that a run writes.
    """

    def __init__(self, path: Path | str, *, is_growing: bool = False) -> None:
        self.path = path = Path(path)
        if not path.is_dir():
            raise DataError(f"there is no run folder at {path}; expected what `seekling train` writes")
        if not any((path / name).exists() for name in _KNOWN):
            raise DataError(f"{path} is not a run folder: it holds none of {', '.join(_KNOWN)}")
        self._is_growing = is_growing
        self._metrics = JsonLinesFile(path / "metrics.jsonl", "metrics.jsonl", lambda row: row, is_growing=is_growing)
        self._episodes: dict[str, JsonLinesFile[EpisodeRecord]] = {}
        self._states: dict[str, tuple[int, int, int]] = {}

    def has_changed(self) -> bool:
        """Whether any file of the run is another than at the last call; True at the first."""
        files = [self.path / name for name in _KNOWN]
        files += [file for folder in ("episodes", "eval", "samples") for file in (self.path / folder).glob("*.json*")]
        before, self._states = self._states, {}
        for file in files:
            with contextlib.suppress(OSError):
                stat = file.stat()
                self._states[str(file)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return self._states != before

    def read(self) -> RunFolder:
        """Everything that can be read now."""
        run = self.read_results()
        run.record = _read_object(run, "record.json")
        is_evaluation = _is_evaluation(run)
        if (self.path / "progress.json").exists():
            run.progress = _read_object(run, "progress.json")
            if is_evaluation:
                run.progress.pop("done", None)  # or the page would wait for stages that nobody asked for
        if not is_evaluation:
            self._metrics.refresh()
            for row in self._metrics.all_items:
                stage = row.get("stage")
                run.metrics.setdefault(stage if isinstance(stage, str) else "", []).append(row)
            run.problems += self._metrics.problems
        self._read_episodes(run)
        return run

    def read_results(self) -> RunFolder:
        """The recipe and the evaluations."""
        run = RunFolder(name=self.path.resolve().name, path=self.path)
        run.recipe_toml = _read_text(run, "recipe.toml")
        try:
            run.recipe = tomllib.loads(run.recipe_toml)
            with contextlib.suppress(ConfigError):  # of another version
                run.settings = build_recipe(run.recipe) if run.recipe else None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            run.problems.append(f"recipe.toml is damaged: {error}.")
        _read_evaluations(run)
        return run

    def _read_episodes(self, run: RunFolder) -> None:
        found = sorted((self.path / "episodes").glob("*.jsonl"), key=lambda file: (_order(file.stem), file.stem))
        if not found:
            run.problems.append("episodes/ holds no file: there is nothing to page through.")
        known, self._episodes = self._episodes, {}
        for path in found:
            new = JsonLinesFile(path, f"episodes/{path.name}", EpisodeRecord.from_json, is_growing=self._is_growing)
            file = self._episodes[path.stem] = known.get(path.stem, new)
            file.refresh()
            run.files.append(file)
            run.problems += file.problems
        have = {record.stage for file in run.files for record in file.all_items}
        missing = [name for name in run.evaluations if f"eval-{name}" not in have]
        run.problems += [f"episodes/eval-{name}.jsonl is missing: figures without episodes." for name in missing]


def _read_evaluations(run: RunFolder) -> None:
    files = sorted((run.path / "eval").glob("*.json"), key=lambda file: (_order(f"eval-{file.stem}"), file.stem))
    for file in [*files, *sorted((run.path / "samples").glob("*.json"))]:
        name = file.relative_to(run.path).as_posix()
        row = _read_object(run, name)
        try:
            if row and file.parent.name == "samples":
                run.samples[file.stem] = SampleSummary.from_json(row)
            elif row and file.stem.startswith("compare-"):
                run.comparisons.append(PairedComparison.from_json(row))
            elif row:
                run.evaluations[file.stem] = EvalSummary.from_json(row)
        except ValueError as error:
            said = "; ".join(" ".join(line.split()) for line in str(error).splitlines()[1:3])
            run.problems.append(f"{name} is not what an evaluation writes ({said}); left out.")
    missing = [name for name in _planned_evaluations(run) if name not in {file.stem for file in files}]
    run.problems += [f"eval/{name}.json is missing: no row in the table." for name in missing]


def _is_evaluation(run: RunFolder) -> bool:
    """Whether the folder is one that `seekling eval` made: nothing is trained in it."""
    return (run.path / "requests").is_dir() and not (run.path / "metrics.jsonl").exists()


def _planned_evaluations(run: RunFolder) -> tuple[str, ...]:
    if _is_evaluation(run):
        return tuple(_asked_for(file) for file in sorted((run.path / "requests").glob("*.json")))
    known = run.settings or (None if run.recipe else Recipe())
    return known.evaluations if known else ()


def _asked_for(request: Path) -> str:
    """Name of the evaluation that a request began with: of several samples the first."""
    try:
        asked = json.loads(request.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        asked = None
    is_repeated = isinstance(asked, dict) and asked.get("is_sampled_repeatedly") is True
    return f"{request.stem}-s1" if is_repeated else request.stem


def _order(stage: str) -> int:
    order = ("expert", "sft", "rl", *(f"eval-{name}" for name in EVALUATIONS))
    return order.index(stage) if stage in order else len(order)


def _read_text(run: RunFolder, name: str) -> str:
    try:
        return (run.path / name).read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        run.problems.append(f"{name} is missing.")
    except OSError as error:
        run.problems.append(f"{name} cannot be read: {error.strerror}.")
    return ""


def _read_object(run: RunFolder, name: str) -> dict[str, Json]:
    text = _read_text(run, name)
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        run.problems.append(f"{name} is damaged: {error}.")
        return {}
    if not isinstance(value, dict):
        run.problems.append(f"{name} is damaged: expected an object.")
        return {}
    return cast("dict[str, Json]", finite(value))
