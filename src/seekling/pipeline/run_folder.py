"""A run's folder on disk: what is in it, what is done, and how an interrupted run finds its place again.

Everything is either appended line by line or replaced atomically; after a crash the folder holds whole lines and whole
files, and `rewind` cuts the logs back to the step whose weights were saved.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
from pydantic.dataclasses import dataclass

from seekling.config import Recipe, build_recipe, recipe_to_toml
from seekling.errors import ConfigError, DataError
from seekling.files import remove_leftovers, replacing, sole_process, write_atomically
from seekling.types import EpisodeRecord, Json


@dataclass(frozen=True)
class Candidate:
    """A policy of a run beside its score on the development questions."""

    stage: str
    """sft or rl."""
    step: int
    """RL steps behind it."""
    k: int
    """Development questions that it answered right."""
    n: int
    """That were asked and did not fail; 0 when there are none, or all failed."""

    def __str__(self) -> str:
        name = f"RL step {self.step}" if self.stage == "rl" else "SFT"
        return f"{name} ({self.k}/{self.n} on dev)" if self.n else f"{name} (the last; no dev questions were asked)"


def best_of(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one with the highest share of right answers, of equals the latest; those that were not asked come last."""
    shares = {each: Fraction(each.k, each.n) if each.n else Fraction(-1) for each in candidates}
    return max(reversed(shares), key=lambda each: shares[each], default=None)


class Progress(pydantic.BaseModel):
    """The content of progress.json; what earlier versions wrote besides is passed over."""

    done: list[str] = []
    """Stages that are finished."""
    states: list[str] = []
    """Names of the training states, the newest last."""
    seconds: dict[str, float] = {}
    """Spent per stage so far."""
    policies: list[Candidate] = []
    """Those among which the best is chosen, in the order of training."""
    chosen: Candidate | None = None
    """The best."""


class TrainingState(NamedTuple):
    """A saved training state, and the folder that holds it."""

    stage: str
    step: int
    path: Path


class RunFolder:
    """One run on disk; its folder is made if it is missing.

    Raises:
        ConfigError: the folder belongs to another recipe, or is not a run folder.
        DataError: its progress file is damaged.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.progress = path, Progress()
        toml, progress = path / "recipe.toml", path / "progress.json"
        if toml.exists():
            _refuse_other_recipe(path, toml, recipe)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} is not empty and not a run folder; choose another with --out")
        path.mkdir(parents=True, exist_ok=True)
        if not toml.exists():
            write_atomically(toml, recipe_to_toml(recipe))
        if progress.exists():
            try:
                self.progress = Progress.model_validate_json(progress.read_bytes())
            except ValueError as error:
                raise DataError(f"{progress} is damaged ({error}); delete {path} to start the run over") from None
        for each in (path, *(path / name for name in ("checkpoints", "episodes", "eval", "dev"))):
            remove_leftovers(each)
        self._remove_other_states()
        self._started = time.perf_counter()
        lines = _read_rows(path / "metrics.jsonl")
        rows = [row for _, row in lines if row is not None]
        self.num_damaged = len(lines) - len(rows)
        """Lines of metrics.jsonl that are passed over."""
        # A killed process has not noted its seconds; its last row of metrics tells how far it came.
        last_s = float(rows[-1].get("time_s", 0.0)) if rows else 0.0
        self._earlier_s = max(sum(self.progress.seconds.values()), last_s)

    @contextlib.contextmanager
    def written_here_only(self) -> Iterator[None]:
        """Keep other processes from writing to this run meanwhile.

        Raises:
            ConfigError: one does.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(sole_process(self.path))
            except BlockingIOError:
                raise ConfigError(
                    f"another process is writing to {self.path}; wait for it, stop it, or choose a folder with --out"
                ) from None
            yield

    @property
    def elapsed_s(self) -> float:
        """Seconds of work since the run began, earlier processes included, pauses not."""
        return self._earlier_s + time.perf_counter() - self._started

    def note(self, **changes: object) -> None:
        """Change `progress`, on disk too."""
        self.progress = self.progress.model_copy(update=changes)
        write_atomically(self.path / "progress.json", self.progress.model_dump_json() + "\n")

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Add to a stage's time."""
        before = self.progress.seconds
        self.note(seconds={**before, stage: before.get(stage, 0.0) + seconds})

    def add_policy(self, candidate: Candidate) -> None:
        """Note that a policy was asked the development questions, or that there are none."""
        same = candidate.stage, candidate.step
        others = [each for each in self.progress.policies if (each.stage, each.step) != same]
        self.note(policies=[*others, candidate])

    @property
    def saved(self) -> TrainingState | None:
        """The newest training state; None before the first."""
        if not self.progress.states:
            return None
        name = self.progress.states[-1]
        _, stage, step = name.split("-")
        return TrainingState(stage, int(step), self.path / "checkpoints" / name)

    def save_state(self, stage: str, step: int, save: Callable[[Path], None], *, keep_last: int = 1) -> None:
        """Write a training state, which `save` does into a folder, and make it the one to resume from.

        `step` is the last of the stage that is done; so many of the newest states stay.
        """
        name, names = f"state-{stage}-{step}", self.progress.states
        if names[-1:] != [name]:  # what was just saved is not written again
            with replacing(self.path / "checkpoints" / name) as folder:
                folder.mkdir()
                save(folder)
            names = [*names, name]
        self.note(states=names[-keep_last:])
        self._remove_other_states()

    def drop_states(self) -> None:
        """Remove the training states of a run that is over: they are its largest files and serve no more."""
        self.note(states=[])
        self._remove_other_states()

    def _remove_other_states(self) -> None:
        """A state that was written and never noted, or noted no more, is as if it had never been."""
        for path in (self.path / "checkpoints").glob("state-*"):
            if path.name not in self.progress.states:
                shutil.rmtree(path)

    def log_metrics(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row to metrics.jsonl."""
        row = {"stage": stage, "step": step, "time_s": round(self.elapsed_s, 3), **metrics}
        _append_line(self.path / "metrics.jsonl", row)

    def read_metrics(self, stage: str) -> list[dict[str, float]]:
        """A stage's rows of metrics.jsonl, in order, without its name; damaged lines are passed over."""
        rows = _read_rows(self.path / "metrics.jsonl")
        return [row for _, row in rows if row is not None and row.pop("stage") == stage]

    def append_records(self, records: Iterable[EpisodeRecord]) -> None:
        """Append episodes to the files of their stages."""
        for record in records:
            _append_line(self.episodes_path(record.stage), record.to_json())

    def replace_records(self, stage: str, records: Iterable[EpisodeRecord]) -> None:
        """Write a stage's episodes file anew."""
        lines = (json.dumps(record.to_json(), ensure_ascii=False) + "\n" for record in records)
        write_atomically(self.episodes_path(stage), "".join(lines))

    def read_records(self, stage: str) -> list[EpisodeRecord]:
        """A stage's episodes; a last line that a crash cut short is dropped from the file.

        Raises:
            DataError: another line is damaged.
        """
        path = self.episodes_path(stage)
        records = []
        for number, line in enumerate(_whole_lines(path), start=1):
            try:
                records.append(EpisodeRecord.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError, DataError) as error:
                raise DataError(
                    f"{path}:{number}: not an episode record ({error}); delete the file to redo it"
                ) from None
        return records

    def count_episodes(self, stage: str) -> Counter[int]:
        """How many episodes each step of a stage has; damaged lines are passed over."""
        return Counter(int(row["step"]) for _, row in _read_rows(self.episodes_path(stage)) if row is not None)

    def rewind(self, stage: str, step: int) -> None:
        """Forget what was logged after the step whose weights were saved; damaged lines stay where they are."""
        for path in (self.path / "metrics.jsonl", self.episodes_path(stage)):
            rows = _read_rows(path)
            kept = [line + "\n" for line, row in rows if row is None or row["stage"] != stage or row["step"] <= step]
            if path.exists():
                write_atomically(path, "".join(kept))

    def episodes_path(self, stage: str) -> Path:
        """File of a stage's episodes."""
        return self.path / "episodes" / f"{stage}.jsonl"

    def write_record(self, record: Mapping[str, Json]) -> None:
        """Write record.json: versions, hashes, seeds, machine, timings."""
        write_atomically(self.path / "record.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def _append_line(path: Path, row: Mapping[str, object]) -> None:
    """With one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _whole_lines(path: Path) -> list[str]:
    """Lines of a file; what follows the last line end is cut off, on disk too."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        write_atomically(path, text)
    # Not splitlines: texts may hold Unicode's other line separators, which JSON does not escape.
    return text.split("\n")[:-1]


def _read_rows(path: Path) -> list[tuple[str, dict[str, Any] | None]]:
    """The lines of a log with the rows in them; None for a damaged one, that is no row with a stage and a step."""
    rows: list[tuple[str, dict[str, Any] | None]] = []
    for line in _whole_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        is_row = isinstance(row, dict) and isinstance(row.get("stage"), str) and isinstance(row.get("step"), int)
        rows.append((line, row if is_row else None))
    return rows


def _refuse_other_recipe(path: Path, toml: Path, recipe: Recipe) -> None:
    try:
        earlier = build_recipe(tomllib.loads(toml.read_text(encoding="utf-8")), origin=str(toml))
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"{toml} cannot be read ({error}); choose another folder with --out") from None
    # The same run may go on elsewhere, except that training states of a Tinker service stay there.
    if (earlier.scale.engine == "tinker") == (recipe.scale.engine == "tinker"):
        earlier = earlier.model_copy(update={"scale": recipe.scale})
    differing = list(_differing(earlier.model_dump(), recipe.model_dump()))
    if differing:
        raise ConfigError(
            f"{path} holds a run of another recipe (it differs in {', '.join(differing)}); "
            "choose another folder with --out, or delete this one"
        )


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the settings that two recipes have otherwise."""
    for name, value in now.items():
        if isinstance(value, dict):
            yield from _differing(before[name], value, f"{prefix}{name}.")
        elif before[name] != value:
            yield f"{prefix}{name}"
