"""Precision and recall of the behaviour detectors, against episodes that were labelled by reading them.

    python benchmarks/behaviours.py [LABELLED.jsonl] [--disagreements]

Prints a Markdown table: k/n with Wilson intervals on all episodes; k/n on those that were labelled after the rules were
written and before they ran on them (held out); and k/n with what data sets such as NQ do not have hidden from the rules
(no hops): the facts on the way to the answer, with their subjects. `--disagreements` lists the episodes behind each
number that is not full.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from seekling.evaluate.agreement import Agreement, LabelledEpisode, measure_agreement, measure_causes, read_labelled
from seekling.evaluate.intervals import Rate

LABELLED = Path(__file__).parent.parent / "tests" / "evaluate" / "fixtures" / "labelled_episodes.jsonl"
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


if __name__ == "__main__":
    main()
