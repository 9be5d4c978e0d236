"""Evaluations in a run folder: episodes in, `eval/*.json` out.

<run>/episodes/<stage>.jsonl        what was sampled
<run>/eval/<name>.json              summary of stage eval-<name>, on test questions
<run>/dev/<name>.json               summary of stage dev-<name>, on development questions
<run>/eval/compare-<a>-<b>.json     paired comparison of eval-<a> with eval-<b>
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pydantic

from seekling.config import EVALUATIONS
from seekling.errors import DataError
from seekling.evaluate.compare import compare_all
from seekling.evaluate.summary import EvalSummary
from seekling.files import write_atomically
from seekling.types import EpisodeRecord, Json

T = TypeVar("T")


def read_records(path: Path | str) -> Iterator[EpisodeRecord]:
    """Read an episodes file line by line; raises as `read_rows`."""
    cause = "a cut last line means that the writing was interrupted: evaluate again"
    for _, record in read_rows(path, EpisodeRecord.from_json, "an episode record", cause):
        yield record


def read_rows(path: Path | str, parse: Callable[..., T], what: str, advice: str) -> Iterator[tuple[str, T]]:
    """Read a file of JSON lines, `what` being a row in an error and `advice` its end; blank lines are passed over.

    `parse` makes a row of a line's JSON value, and raises ValueError or DataError for what is none.

    Yields:
        Where each row stands (`file:line`), and the row.

    Raises:
        DataError: the file is missing, or a line is no such row; names file and line.
    """
    try:
        # json finds bytes that are no UTF-8, and says so like anything else that is no JSON.
        file = Path(path).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); each of its lines should be {what}") from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = parse(json.loads(line))
            except (DataError, ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number}: not {what} ({_problem(error)}); {advice}") from None
            yield f"{path}:{number}", row


def _problem(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in error.errors())
    return " ".join(str(error).split())


def write_summary(run: Path, summary: EvalSummary) -> Path:
    """Write `eval/<name>.json` or `dev/<name>.json` of a run folder, atomically, and say where."""
    folder, _, name = summary.stage.partition("-")
    path = run / ("dev" if folder == "dev" else "eval") / f"{name or folder}.json"
    _write_json(path, summary.to_json())
    return path


def read_summary(path: Path | str) -> EvalSummary:
    """Read what `write_summary` wrote; a missing or damaged file is a DataError."""
    try:
        return EvalSummary.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not an evaluation summary ({error}); evaluate again to write it") from None


def write_comparisons(run: Path) -> None:
    """Compare every pair of a run's evaluations, earlier with later, and write each as `eval/compare-<a>-<b>.json`.

    Raises:
        DataError: an episodes file is damaged, or two evaluations asked different questions.
    """
    paths = {name: run / "episodes" / f"eval-{name}.jsonl" for name in EVALUATIONS}
    records = {name: list(read_records(path)) for name, path in paths.items() if path.is_file()}
    pairs = list(itertools.combinations(records, 2))
    found = [compare_all([(f"eval-{name}", records[name]) for name in pair])[0] for pair in pairs]
    for (a, b), comparison in zip(pairs, found, strict=True):
        _write_json(run / "eval" / f"compare-{a}-{b}.json", comparison.to_json())


def _write_json(path: Path, value: dict[str, Json]) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
