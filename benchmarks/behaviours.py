"""Precision and recall of the behaviour detectors, against episodes that were labelled by reading them.

    python benchmarks/behaviours.py [LABELLED.jsonl] [--disagreements]

Prints a Markdown table: k/n with Wilson intervals on all episodes; k/n on those that were labelled after the rules were
written and before they ran on them (held out); and k/n with what data sets such as NQ do not have hidden from the rules
(no hops): the facts on the way to the answer, with their subjects. `--disagreements` lists the episodes behind each
number that is not full.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seekling.errors import DataError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES, detect_behaviours, error_cause
from seekling.evaluate.intervals import Rate, rate_of
from seekling.reward.match import exact_match
from seekling.types import Episode, EpisodeRecord, Question

LABELLED = Path(__file__).parent.parent / "tests" / "evaluate" / "fixtures" / "labelled_episodes.jsonl"
_FIELDS = {"id", "origin", "stage", "labels", "error", "question", "episode"}
"""Of a row of a labelled file; `is_held_out` may join them."""
COLUMNS = ("precision", "recall", "held-out precision", "held-out recall", "precision, no hops", "recall, no hops")


def main() -> None:
    """Read, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("labelled", nargs="?", type=Path, default=LABELLED)
    parser.add_argument("--disagreements", action="store_true", help="list the episodes on which they disagree")
    arguments = parser.parse_args()
    rows = read_labelled(arguments.labelled)
    origins = Counter((row.origin, row.episode.protocol) for row in rows)
    print(
        f"{len(rows)} episodes: " + ", ".join(f"{n} {of} {protocol}" for (of, protocol), n in sorted(origins.items()))
    )
    everything = measure(rows)
    held_out = measure([row for row in rows if row.is_held_out])
    blind = measure([replace(row, question=replace(row.question, hops=())) for row in rows])
    print(f"\n| | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for name, found in everything.items():
        cells = [shown(found.precision), shown(found.recall)]
        for other in (held_out[name], blind[name]):
            cells += [shown(other.precision, has_interval=False), shown(other.recall, has_interval=False)]
        print(f"| `{name}` | {' | '.join(cells)} |")
    if arguments.disagreements:
        list_disagreements(everything)


def measure(rows: Sequence[LabelledEpisode]) -> dict[str, Agreement]:
    """Every behaviour and every cause of an error."""
    return {**measure_agreement(rows), **measure_causes(rows)}


def shown(rate: Rate, *, has_interval: bool = True) -> str:
    """k/n, or a dash where there was nothing to find."""
    if rate.value is None:
        return "-"
    return f"{rate.k}/{rate.n}" + (f" [{rate.low:.2f}, {rate.high:.2f}]" if has_interval else "")


def list_disagreements(agreements: Mapping[str, Agreement]) -> None:
    """Ids of the episodes that only one of the two names."""
    print()
    for name, agreement in agreements.items():
        if agreement.false_positives:
            print(f"{name}: only the rule: {', '.join(agreement.false_positives)}")
        if agreement.false_negatives:
            print(f"{name}: only the reader: {', '.join(agreement.false_negatives)}")


@dataclass(frozen=True, slots=True)
class LabelledEpisode:
    """An episode and what someone who read it says of it."""

    id: str
    origin: str
    """model, expert or written: who made the episode."""
    labels: frozenset[str]
    error: str
    """A name of `ERROR_CAUSES`; empty when the episode is right."""
    question: Question
    episode: Episode
    is_held_out: bool = False
    """Labelled after the rules were written, before they were run on it."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a detector finds against what a reader found."""

    precision: Rate
    """Of the episodes the detector names, those the reader named too."""
    recall: Rate
    """Of the episodes the reader named, those the detector names too."""
    false_positives: tuple[str, ...]
    """Ids of episodes that only the detector names."""
    false_negatives: tuple[str, ...]
    """Ids of episodes that only the reader named."""


def read_labelled(path: Path | str) -> list[LabelledEpisode]:
    """Read a file of labelled episodes.

    Raises:
        DataError: a row is damaged or has a name that is no behaviour; names file and line.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            rows.append(_parse(line, f"{path}:{number}"))
    return rows


def measure_agreement(rows: Sequence[LabelledEpisode]) -> dict[str, Agreement]:
    """Precision and recall of every detector, in the order of `BEHAVIOURS`."""
    found = [(row, frozenset(detect_behaviours(row.question, row.episode))) for row in rows]
    return {
        name: _agreement((row.id, name in row.labels, name in detected) for row, detected in found)
        for name in BEHAVIOURS
    }


def measure_causes(rows: Sequence[LabelledEpisode]) -> dict[str, Agreement]:
    """The same for the causes of errors, in the order of `ERROR_CAUSES`."""
    found = [(row, error_cause(row.question, row.episode, _em(row))) for row in rows]
    return {
        cause: _agreement((row.id, row.error == cause, said == cause) for row, said in found) for cause in ERROR_CAUSES
    }


def _em(row: LabelledEpisode) -> float:
    return exact_match(row.episode.answer, row.question.answers)


def _agreement(pairs: Iterable[tuple[str, bool, bool]]) -> Agreement:
    pairs = list(pairs)
    both = sum(labelled and detected for _, labelled, detected in pairs)
    return Agreement(
        precision=rate_of(both, sum(detected for _, _, detected in pairs)),
        recall=rate_of(both, sum(labelled for _, labelled, _ in pairs)),
        false_positives=tuple(key for key, labelled, detected in pairs if detected and not labelled),
        false_negatives=tuple(key for key, labelled, detected in pairs if labelled and not detected),
    )


def _parse(line: str, where: str) -> LabelledEpisode:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); expected a labelled episode") from None
    if not isinstance(row, dict) or not row.keys() >= _FIELDS:
        raise DataError(f"{where}: expected an object with {', '.join(sorted(_FIELDS))}")
    unknown = sorted({*row["labels"]} - BEHAVIOURS.keys()) + [row["error"]] * (row["error"] not in {*ERROR_CAUSES, ""})
    if unknown:
        raise DataError(f"{where}: {unknown[0]!r} is no behaviour and no cause; choose from {', '.join(BEHAVIOURS)}")
    fields = {"stage": row["stage"], "question": row["question"], "episode": row["episode"]}
    record = EpisodeRecord.from_json(fields)
    return LabelledEpisode(
        id=row["id"],
        origin=row["origin"],
        labels=frozenset(row["labels"]),
        error=row["error"],
        question=record.question,
        episode=record.episode,
        is_held_out=row.get("is_held_out") is True,
    )


if __name__ == "__main__":
    main()
