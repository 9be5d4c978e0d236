"""A run folder, read as far as it can be read.

A report is most wanted when something went wrong, so nothing here raises for a missing or damaged file: what is there
is kept, and `RunFolder.problems` says what is not. Reads files only; it does not score, compare or repair.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from seekling.errors import DataError
from seekling.types import EpisodeRecord, Json

EVALUATIONS = ("base", "sft", "rl")
"""In the order of training; the table of a report has them in this order."""

_KNOWN = ("recipe.toml", "record.json", "metrics.jsonl", "episodes", "eval")


@dataclass(slots=True)
class RunFolder:
    """What a run folder holds."""

    name: str
    path: Path
    recipe_toml: str = ""
    recipe: dict[str, Json] = field(default_factory=dict)
    record: dict[str, Json] = field(default_factory=dict)
    metrics: dict[str, list[dict[str, Json]]] = field(default_factory=dict)
    """Rows by stage, in file order."""
    evaluations: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Summaries by name, such as rl; `EVALUATIONS` first."""
    comparisons: list[dict[str, Json]] = field(default_factory=list)
    episodes: list[EpisodeRecord] = field(default_factory=list)
    """Of all stages, in the order of training, then in file order."""
    problems: list[str] = field(default_factory=list)
    """What is missing or damaged, one sentence each."""


def read_run(path: Path | str) -> RunFolder:
    """Read a run folder.

    Args:
        path: of the folder.

    Returns:
        Everything that could be read, with `problems` naming the rest.

    Raises:
        DataError: there is no such folder, or it holds nothing that a run writes.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"there is no run folder at {path}; expected what `seekling train` writes")
    if not any((path / name).exists() for name in _KNOWN):
        raise DataError(f"{path} is not a run folder: it holds none of {', '.join(_KNOWN)}")
    run = RunFolder(name=path.resolve().name, path=path)
    _read_recipe(run)
    run.record = _read_object(run, path / "record.json")
    _read_metrics(run)
    _read_evaluations(run)
    _read_episodes(run)
    return run


def _read_recipe(run: RunFolder) -> None:
    run.recipe_toml = _read_text(run, run.path / "recipe.toml")
    try:
        run.recipe = tomllib.loads(run.recipe_toml)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        run.problems.append(f"recipe.toml is damaged: {error}.")


def _read_metrics(run: RunFolder) -> None:
    path = run.path / "metrics.jsonl"
    for row in _read_rows(run, path):
        stage = row.get("stage")
        run.metrics.setdefault(stage if isinstance(stage, str) else "", []).append(row)


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


def _planned_evaluations(run: RunFolder) -> tuple[str, ...]:
    section = run.recipe.get("eval")
    stages = section.get("stages") if isinstance(section, dict) else None
    if not isinstance(stages, list):
        return EVALUATIONS
    return tuple(name for name in EVALUATIONS if name in stages)


def _read_episodes(run: RunFolder) -> None:
    files = sorted((run.path / "episodes").glob("*.jsonl"), key=lambda file: (_order(file.stem), file.stem))
    if not files:
        run.problems.append("episodes/ holds no file: there is nothing to page through.")
    for file in files:
        for row in _read_rows(run, file):
            try:
                run.episodes.append(EpisodeRecord.from_json(row))
            except DataError as error:
                _count_damage(run, f"episodes/{file.name}", str(error).splitlines()[1].strip())
    have = {record.stage for record in run.episodes}
    missing = [name for name in run.evaluations if f"eval-{name}" not in have]
    run.problems += [f"episodes/eval-{name}.jsonl is missing: figures without episodes." for name in missing]


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


def _read_rows(run: RunFolder, path: Path) -> Iterator[dict[str, Json]]:
    name = path.relative_to(run.path).as_posix()
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        run.problems.append(f"{name} is missing.")
        return
    except OSError as error:
        run.problems.append(f"{name} cannot be read: {error.strerror}.")
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            is_last = not any(rest.strip() for rest in lines[number:])
            _count_damage(run, name, f"line {number} is cut" if is_last else f"line {number} is not JSON")
            continue
        if isinstance(row, dict):
            yield cast("dict[str, Json]", finite(row))
        else:
            _count_damage(run, name, f"line {number} is not an object")


def _count_damage(run: RunFolder, name: str, what: str) -> None:
    """One sentence per damaged line, up to three; then only how many more."""
    mine = [i for i, problem in enumerate(run.problems) if problem.startswith(f"{name}: ")]
    if len(mine) < 3:
        run.problems.append(f"{name}: {what}; left out.")
    elif len(mine) == 3:
        run.problems.append(f"{name}: 1 more line left out.")
    else:
        count = int(run.problems[mine[3]].removeprefix(f"{name}: ").split()[0]) + 1
        run.problems[mine[3]] = f"{name}: {count} more lines left out."


def finite(value: object) -> object:
    """Replace NaN and infinities, which Python's JSON writes and browsers refuse, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
