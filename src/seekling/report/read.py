"""A run folder, read as far as it can be read.

A report is most wanted when something went wrong, so nothing here raises for a missing or damaged file: what is there
is kept, and `RunFolder.problems` says what is not. Reads files only; it does not score, compare or repair. A
`RunReader` reads a run again and again while it is being written, and only what is new.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from seekling.config import EVALUATIONS
from seekling.errors import DataError
from seekling.report.encode import finite
from seekling.report.lines import LinesFile
from seekling.types import EpisodeRecord, Json

_KNOWN = ("recipe.toml", "record.json", "progress.json", "metrics.jsonl", "episodes", "eval", "samples")


@dataclass(slots=True)
class RunFolder:
    """What a run folder holds."""

    name: str
    path: Path
    recipe_toml: str = ""
    recipe: dict[str, Json] = field(default_factory=dict)
    record: dict[str, Json] = field(default_factory=dict)
    progress: dict[str, Json] = field(default_factory=dict)
    """Which stages are done, and the seconds of each; empty for a run that does not say."""
    metrics: dict[str, list[dict[str, Json]]] = field(default_factory=dict)
    """Rows by stage, in file order."""
    evaluations: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Summaries by name, such as rl; `EVALUATIONS` first."""
    comparisons: list[dict[str, Json]] = field(default_factory=list)
    files: list[LinesFile[EpisodeRecord]] = field(default_factory=list)
    """The episodes files, in the order of training."""
    problems: list[str] = field(default_factory=list)
    """What is missing or damaged, one sentence each."""

    @property
    def episodes(self) -> list[EpisodeRecord]:
        """Of all stages, in the order of training, then in file order."""
        return [record for file in self.files for record in file.all_items]


def read_run(path: Path | str) -> RunFolder:
    """Read a run folder.

    Args:
        path: of the folder.

    Returns:
        Everything that could be read, with `problems` naming the rest.

    Raises:
        DataError: there is no such folder, or it holds nothing that a run writes.
    """
    return RunReader(path).read()


class RunReader:
    """Reads one run folder, as often as asked; lines that were read once are not read again.

    Args:
        path: of the folder.
        is_growing: a training run is still writing: a last line without an end is no damage.

    Raises:
        DataError: there is no such folder, or it holds nothing that a run writes.
    """

    def __init__(self, path: Path | str, *, is_growing: bool = False) -> None:
        self._path = path = Path(path)
        if not path.is_dir():
            raise DataError(f"there is no run folder at {path}; expected what `seekling train` writes")
        if not any((path / name).exists() for name in _KNOWN):
            raise DataError(f"{path} is not a run folder: it holds none of {', '.join(_KNOWN)}")
        self._is_growing = is_growing
        self._metrics = LinesFile(path / "metrics.jsonl", "metrics.jsonl", lambda row: row, is_growing=is_growing)
        self._episodes: dict[str, LinesFile[EpisodeRecord]] = {}
        self._states: dict[str, tuple[int, int, int]] = {}

    def has_changed(self) -> bool:
        """Whether any file of the run is another than at the last call; True at the first."""
        files = [self._path / name for name in _KNOWN]
        files += [file for folder in ("episodes", "eval", "samples") for file in (self._path / folder).glob("*.json*")]
        states = {}
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                continue
            states[str(file)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        before, self._states = self._states, states
        return states != before

    def is_there(self) -> bool:
        """Whether the folder still exists."""
        return self._path.is_dir()

    def read(self) -> RunFolder:
        """Everything that can be read now."""
        run = RunFolder(name=self._path.resolve().name, path=self._path)
        _read_recipe(run)
        run.record = _read_object(run, self._path / "record.json")
        if (self._path / "progress.json").exists():
            run.progress = _read_object(run, self._path / "progress.json")
            if _is_evaluation(run):
                run.progress.pop("done", None)  # or the page would wait for stages that nobody asked for
        self._read_metrics(run)
        _read_evaluations(run)
        self._read_episodes(run)
        return run

    def _read_metrics(self, run: RunFolder) -> None:
        if _is_evaluation(run):
            return
        self._metrics.refresh()
        for row in self._metrics.all_items:
            stage = row.get("stage")
            run.metrics.setdefault(stage if isinstance(stage, str) else "", []).append(row)
        run.problems += self._metrics.problems

    def _read_episodes(self, run: RunFolder) -> None:
        found = sorted((self._path / "episodes").glob("*.jsonl"), key=lambda file: (_order(file.stem), file.stem))
        if not found:
            run.problems.append("episodes/ holds no file: there is nothing to page through.")
        known = self._episodes
        self._episodes = {}
        for path in found:
            new = LinesFile(path, f"episodes/{path.name}", EpisodeRecord.from_json, is_growing=self._is_growing)
            file = self._episodes[path.stem] = known.get(path.stem, new)
            file.refresh()
            run.files.append(file)
            run.problems += file.problems
        have = {record.stage for file in run.files for record in file.all_items}
        missing = [name for name in run.evaluations if f"eval-{name}" not in have]
        run.problems += [f"episodes/eval-{name}.jsonl is missing: figures without episodes." for name in missing]


def _read_recipe(run: RunFolder) -> None:
    run.recipe_toml = _read_text(run, run.path / "recipe.toml")
    try:
        run.recipe = tomllib.loads(run.recipe_toml)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        run.problems.append(f"recipe.toml is damaged: {error}.")


def _read_evaluations(run: RunFolder) -> None:
    folder = run.path / "eval"
    found = {file.stem: file for file in sorted(folder.glob("*.json"))}
    named = [name for name in found if not name.startswith("compare-")]
    for name in sorted(named, key=lambda name: (_order(f"eval-{name}"), name)):
        summary = _read_object(run, found[name])
        if _is_interval(summary.get("em")):
            run.evaluations[name] = summary
        elif summary:
            run.problems.append(f"eval/{name}.json holds no figures: no row in the table.")
    for name in found:
        if name not in named:
            _read_comparison(run, found[name])
    planned = _planned_evaluations(run)
    run.problems += [f"eval/{name}.json is missing: no row in the table." for name in planned if name not in found]


def _read_comparison(run: RunFolder, path: Path) -> None:
    comparison = _read_object(run, path)
    if _is_interval(comparison.get("em_difference")):
        run.comparisons.append(comparison)
    elif comparison:
        run.problems.append(f"eval/{path.name} holds no comparison.")


def _is_interval(value: Json) -> bool:
    """Whether a value has what is drawn: an interval, and a value that may be nothing (no question was scored)."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), int | float) for name in ("low", "high"))
        and isinstance(value.get("value"), int | float | None)
    )


def _is_evaluation(run: RunFolder) -> bool:
    """Whether the folder is one that `seekling eval` made: nothing is trained in it."""
    return (run.path / "requests").is_dir() and not (run.path / "metrics.jsonl").exists()


def _planned_evaluations(run: RunFolder) -> tuple[str, ...]:
    if _is_evaluation(run):
        return tuple(_asked_for(file) for file in sorted((run.path / "requests").glob("*.json")))
    stages = _setting(run, "eval", "stages")
    has_sft = _setting(run, "experts", "file") != "" or _setting(run, "experts", "num_questions") != 0
    asked = {"base": True, "sft": has_sft, "rl": _setting(run, "rl", "steps") != 0}
    return tuple(name for name in EVALUATIONS if asked[name] and (not isinstance(stages, list) or name in stages))


def _setting(run: RunFolder, section: str, name: str) -> Json:
    """A setting of the run's recipe; None where the recipe does not say."""
    found = run.recipe.get(section)
    return found.get(name) if isinstance(found, dict) else None


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


def _read_text(run: RunFolder, path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        run.problems.append(f"{path.name} is missing.")
    except OSError as error:
        run.problems.append(f"{path.name} cannot be read: {error.strerror}.")
    return ""


def _read_object(run: RunFolder, path: Path) -> dict[str, Json]:
    text = _read_text(run, path)
    name = path.relative_to(run.path).as_posix()
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        run.problems.append(f"{name} is damaged: {error}.")
        return {}
    if not isinstance(value, dict):
        run.problems.append(f"{name} is damaged: expected an object.")
        return {}
    return cast("dict[str, Json]", finite(value))
