"""Evaluations in a run folder: episodes in, `eval/*.json` out.

<run>/episodes/<stage>.jsonl        what was sampled
<run>/eval/<name>.json              summary of stage eval-<name>, on test questions
<run>/dev/<name>.json               summary of stage dev-<name>, on development questions
<run>/eval/compare-<a>-<b>.json     paired comparison of eval-<a> with eval-<b>
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from seekling.errors import DataError
from seekling.evaluate.compare import PairedComparison, compare
from seekling.evaluate.summary import EvalSummary
from seekling.files import write_atomically
from seekling.types import EpisodeRecord, Json


def read_records(path: Path | str) -> Iterator[EpisodeRecord]:
    """Read an episodes file line by line.

    Raises:
        DataError: the file is missing, or a line is not an episode record; names file and line.
    """
    path = Path(path)
    try:
        file = path.open("rb")  # json finds bytes that are no UTF-8, and says so like anything else that is no JSON
    except OSError as error:
        raise DataError(f"no episodes at {path} ({error.strerror}); expected <run>/episodes/<stage>.jsonl") from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield EpisodeRecord.from_json(json.loads(line))
            except (DataError, ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}:{number}: not an episode record ({error}); "
                    "a cut last line means that the writing was interrupted: evaluate again"
                ) from None


def write_summary(run: Path, summary: EvalSummary) -> Path:
    """Write `eval/<name>.json` or `dev/<name>.json` of a run folder, atomically, and say where."""
    folder, _, name = summary.stage.partition("-")
    path = run / ("dev" if folder == "dev" else "eval") / f"{name or folder}.json"
    _write_json(path, summary.to_json())
    return path


def read_summary(path: Path | str) -> EvalSummary:
    """Read what `write_summary` wrote.

    Raises:
        DataError: the file is missing or is not a summary.
    """
    try:
        return EvalSummary.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not an evaluation summary ({error}); evaluate again to write it") from None


def write_comparison(run: Path, comparison: PairedComparison) -> Path:
    """Write `eval/compare-<first>-<second>.json` of a run folder, atomically, and say where."""
    first, second = (name.removeprefix("eval-") for name in (comparison.first, comparison.second))
    path = run / "eval" / f"compare-{first}-{second}.json"
    _write_json(path, comparison.to_json())
    return path


def write_comparisons(run: Path, names: tuple[str, ...] = ("base", "sft", "rl")) -> list[PairedComparison]:
    """Compare every pair of a run's evaluations, earlier with later, and write each.

    Args:
        run: a run folder; evaluations that it lacks are skipped.
        names: of evaluations, in the order of training.

    Returns:
        The comparisons, in the order of `names`.

    Raises:
        DataError: an episodes file is damaged, or two evaluations asked different questions.
    """
    paths = {name: run / "episodes" / f"eval-{name}.jsonl" for name in names}
    records = {name: list(read_records(path)) for name, path in paths.items() if path.is_file()}
    comparisons = [compare(records[a], records[b]) for a, b in itertools.combinations(records, 2)]
    for comparison in comparisons:
        write_comparison(run, comparison)
    return comparisons


def _write_json(path: Path, value: dict[str, Json]) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
