"""Precision and recall of the behaviour detectors, against episodes that were labelled by reading them.

    python benchmarks/behaviours.py [LABELLED.jsonl] [--held-out] [--without-hops] [--disagreements]

Prints a Markdown table with k/n and Wilson intervals. `--held-out` takes only the episodes that were labelled after the
rules were written; the others were read while they were written. `--without-hops` hides from the rules what data sets
such as NQ do not have: the facts on the way to the answer, with their subjects. `--disagreements` lists the episodes
behind each number that is not full.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from seekling.evaluate.agreement import Agreement, measure_agreement, measure_causes, read_labelled
from seekling.evaluate.intervals import Rate

LABELLED = Path(__file__).parent.parent / "tests" / "evaluate" / "fixtures" / "labelled_episodes.jsonl"


def main() -> None:
    """Read, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("labelled", nargs="?", type=Path, default=LABELLED)
    parser.add_argument("--held-out", action="store_true", help="only episodes labelled after the rules were written")
    parser.add_argument("--without-hops", action="store_true", help="hide the hops of the questions from the rules")
    parser.add_argument("--disagreements", action="store_true", help="list the episodes on which they disagree")
    arguments = parser.parse_args()
    rows = [row for row in read_labelled(arguments.labelled) if row.is_held_out or not arguments.held_out]
    if arguments.without_hops:
        rows = [replace(row, question=replace(row.question, hops=())) for row in rows]
    origins = Counter(row.origin for row in rows)
    print(f"{len(rows)} episodes: " + ", ".join(f"{count} {origin}" for origin, count in sorted(origins.items())))
    for title, agreements in (("behaviour", measure_agreement(rows)), ("cause of an error", measure_causes(rows))):
        print(f"\n| {title} | precision | recall |\n|---|---|---|")
        for name, agreement in agreements.items():
            print(f"| {name} | {shown(agreement.precision)} | {shown(agreement.recall)} |")
        if arguments.disagreements:
            list_disagreements(agreements)


def shown(rate: Rate) -> str:
    """k/n with the interval, or a dash where there was nothing to find."""
    return "-" if rate.value is None else f"{rate.k}/{rate.n} [{rate.low:.2f}, {rate.high:.2f}]"


def list_disagreements(agreements: Mapping[str, Agreement]) -> None:
    """Ids of the episodes that only one of the two names."""
    for name, agreement in agreements.items():
        if agreement.false_positives:
            print(f"{name}: only the rule: {', '.join(agreement.false_positives)}")
        if agreement.false_negatives:
            print(f"{name}: only the reader: {', '.join(agreement.false_negatives)}")


if __name__ == "__main__":
    main()
