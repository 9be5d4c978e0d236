"""A run's folder on disk: what is in it, what is done, and how an interrupted run finds its place again.

Everything is either appended line by line or replaced atomically; after a crash the folder holds whole lines and whole
files, and `rewind` cuts the logs back to the step whose weights were saved.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from seekling.config import Recipe, build_recipe, recipe_to_toml
from seekling.errors import ConfigError, DataError
from seekling.files import write_atomically
from seekling.types import EpisodeRecord, Json


class RunFolder:
    """One run on disk.

    Args:
        path: the folder; made if it is missing.
        recipe: what runs there.

    Raises:
        ConfigError: the folder belongs to another recipe, or is not a run folder.
        DataError: its progress file is damaged.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        toml = path / "recipe.toml"
        if toml.exists():
            _refuse_other_recipe(path, toml, recipe)
        elif path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} is not empty and not a run folder; choose another with --out")
        path.mkdir(parents=True, exist_ok=True)
        if not toml.exists():
            write_atomically(toml, recipe_to_toml(recipe))
        self._progress: dict[str, Json] = {"done": [], "stage": "", "step": 0, "state": "", "seconds": {}}
        progress = path / "progress.json"
        if progress.exists():
            try:
                self._progress |= json.loads(progress.read_text(encoding="utf-8"))
            except (ValueError, TypeError) as error:
                raise DataError(f"{progress} is damaged ({error}); delete {path} to start the run over") from None
        self._started = time.perf_counter()
        self._earlier_s = sum(self.seconds().values())

    @property
    def elapsed_s(self) -> float:
        """Seconds of work since the run began, earlier processes included, pauses not."""
        return self._earlier_s + time.perf_counter() - self._started

    def seconds(self) -> dict[str, float]:
        """Seconds spent per stage so far."""
        seconds = self._progress["seconds"]
        assert isinstance(seconds, dict)
        return {name: float(str(value)) for name, value in seconds.items()}

    def is_done(self, stage: str) -> bool:
        """Whether a stage has been finished, by this or an earlier process."""
        done = self._progress["done"]
        assert isinstance(done, list)
        return stage in done

    def finish(self, stage: str) -> None:
        """Note that a stage is finished."""
        done = self._progress["done"]
        assert isinstance(done, list)
        done.append(stage)
        self._write_progress()

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Add to a stage's time."""
        self._progress["seconds"] = {**self.seconds(), stage: self.seconds().get(stage, 0.0) + seconds}
        self._write_progress()

    @property
    def saved(self) -> tuple[str, int, Path] | None:
        """Stage, step and file of the newest training state; None before the first."""
        state = str(self._progress["state"])
        if not state:
            return None
        return str(self._progress["stage"]), int(str(self._progress["step"])), self.path / "checkpoints" / state

    def save_state(self, stage: str, step: int, save: Callable[[Path], None]) -> None:
        """Write a training state, make it the one to resume from, and remove the one before it."""
        before = self.saved
        name = f"state-{stage}-{step}.pt"
        save(self.path / "checkpoints" / name)
        self._progress |= {"stage": stage, "step": step, "state": name}
        self._write_progress()
        if before is not None and before[2].name != name:
            before[2].unlink(missing_ok=True)

    def drop_state(self) -> None:
        """Remove the training state of a run that is over: it is the largest file and serves no more."""
        saved = self.saved
        self._progress |= {"state": ""}
        self._write_progress()
        if saved is not None:
            saved[2].unlink(missing_ok=True)

    def log_metrics(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row to metrics.jsonl."""
        row = {"stage": stage, "step": step, "time_s": round(self.elapsed_s, 3), **metrics}
        append_lines(self.path / "metrics.jsonl", [json.dumps(row)])

    def append_records(self, records: Iterable[EpisodeRecord]) -> None:
        """Append episodes to the files of their stages."""
        for record in records:
            line = json.dumps(record.to_json(), ensure_ascii=False)
            append_lines(self.episodes_path(record.stage), [line])

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

    def rewind(self, stage: str, step: int) -> None:
        """Forget what was logged after the step whose weights were saved."""
        metrics, episodes = self.path / "metrics.jsonl", self.episodes_path(stage)
        for path in (metrics, episodes):
            rows = [(line, json.loads(line)) for line in _whole_lines(path)]
            kept = [line + "\n" for line, row in rows if row["stage"] != stage or row["step"] <= step]
            if path.exists():
                write_atomically(path, "".join(kept))

    def episodes_path(self, stage: str) -> Path:
        """File of a stage's episodes."""
        return self.path / "episodes" / f"{stage}.jsonl"

    def write_record(self, record: Mapping[str, Json]) -> None:
        """Write record.json: versions, hashes, seeds, machine, timings."""
        write_atomically(self.path / "record.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")

    def _write_progress(self) -> None:
        write_atomically(self.path / "progress.json", json.dumps(self._progress) + "\n")


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append whole lines with one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))


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


def _refuse_other_recipe(path: Path, toml: Path, recipe: Recipe) -> None:
    import tomllib

    try:
        earlier = build_recipe(tomllib.loads(toml.read_text(encoding="utf-8")), origin=str(toml))
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"{toml} cannot be read ({error}); choose another folder with --out") from None
    before, now = earlier.model_dump(), recipe.model_dump()
    names = sorted(name for name in now if before[name] != now[name])
    if names:
        differing = [
            f"{name}.{key}" if isinstance(now[name], dict) else name
            for name in names
            for key in (now[name] if isinstance(now[name], dict) else [name])
            if not isinstance(now[name], dict) or before[name][key] != now[name][key]
        ]
        raise ConfigError(
            f"{path} holds a run of another recipe (it differs in {', '.join(differing)}); "
            "choose another folder with --out, or delete this one"
        )
