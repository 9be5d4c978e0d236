"""Two evaluations of the same questions, compared question by question.

Pairing removes the difficulty of the questions from the difference, so the interval is much narrower than two intervals
side by side suggest. It also only means something on one question set: anything else is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import pydantic

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.intervals import Difference, Rate, difference_of, rate_of
from seekling.reward.functions import score_episode
from seekling.types import EpisodeRecord, Json, Question, StopReason

_Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class PairCounts:
    """How often both, one or none of two evaluations are right, and which questions that is about."""

    num_questions: int
    """Questions that both evaluations scored; the figures are over these."""
    num_excluded: int
    """Questions left out because an infrastructure failure ended one of the two episodes."""
    num_both: int
    num_wins: int
    """Only by the second."""
    num_losses: int
    """Only by the first."""
    num_neither: int
    question_set_hash: str
    is_intersection: bool = False
    """Asked for: the two asked different questions, and only those that both asked are compared."""
    num_only_first: int = 0
    """Questions that the first asked and the comparison leaves out, a question whose text or golds differ included."""
    num_only_second: int = 0


@dataclass(frozen=True, kw_only=True)
class PairedComparison(PairCounts):
    """What changed from a first evaluation to a second on the same questions. Intervals are of `confidence`."""

    first: str
    """Name of the first evaluation, such as eval-sft."""
    second: str
    em_first: Rate
    em_second: Rate
    em_difference: Difference
    f1_difference: Difference
    confidence: float = 0.95
    p_value_holm: float | None = None
    """Of the difference in EM, corrected for the number of comparisons made at once; None for a single one."""
    notes: tuple[str, ...] = ()
    """What else than the policies differs: decoding, or the protocol. The questions are the same, the game is not."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_json(row: Json) -> PairedComparison:
        """Rebuild a comparison from `to_json`'s object.

        Raises:
            pydantic.ValidationError: the row is not a comparison; a ValueError that names each wrong field.
        """
        return pydantic.TypeAdapter(PairedComparison).validate_python(row)


def compare_all(
    evaluations: Sequence[tuple[str, Iterable[EpisodeRecord]]], *, intersect: bool = False
) -> list[PairedComparison]:
    """Compare every pair of several evaluations, earlier with later, on one set of questions.

    Args:
        evaluations: name and records of each, one record per question in any order.
        intersect: compare on the questions that all asked in the same words with the same golds, and count the rest,
            instead of refusing different question sets.

    Returns:
        One comparison per pair, differences being second minus first; with more than one, each has a p-value with
        Holm's correction. Intervals are not widened for the number of pairs.

    Raises:
        DataError: the question sets differ (in ids, texts or golds) or, with `intersect`, share no question; a set is
            empty, or holds a question twice.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    sets = [records_by_question(records, name) for name, records in evaluations]
    sizes = [len(each) for each in sets]
    if intersect:
        sets = common_questions(sets)
    for other in sets[1:]:
        refuse_different_questions(sets[0], other)
    found = [
        replace(
            _compare(sets[a], sets[b], (evaluations[a][0], evaluations[b][0])),
            is_intersection=any(size > len(sets[0]) for size in sizes),
            num_only_first=sizes[a] - len(sets[a]),
            num_only_second=sizes[b] - len(sets[b]),
        )
        for a, b in itertools.combinations(range(len(sets)), 2)
    ]
    if len(found) < 2:
        return found
    corrected = holm([each.em_difference.p_value for each in found])
    return [replace(each, p_value_holm=p) for each, p in zip(found, corrected, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for having made several tests; each stays in its place, none gets smaller.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected


def _compare(
    firsts: Mapping[_Key, EpisodeRecord], seconds: Mapping[_Key, EpisodeRecord], names: tuple[str, str]
) -> PairedComparison:
    both_asked = [(record, seconds[key]) for key, record in sorted(firsts.items())]
    pairs = [
        tuple(score_episode(record.episode, record.question) for record in pair)
        for pair in both_asked
        if not any(record.episode.stop_reason is StopReason.INFRA_FAILURE for record in pair)
    ]
    em, f1 = ([(a[name], b[name]) for a, b in pairs] for name in ("em", "f1"))
    wins, losses = sum(a < b for a, b in em), sum(a > b for a, b in em)
    both = sum(a == b == 1 for a, b in em)
    return PairedComparison(
        first=names[0],
        second=names[1],
        num_questions=len(pairs),
        num_excluded=len(firsts) - len(pairs),
        em_first=rate_of(both + losses, len(pairs)),
        em_second=rate_of(both + wins, len(pairs)),
        em_difference=difference_of([b - a for a, b in em]),
        f1_difference=difference_of([b - a for a, b in f1]),
        num_both=both,
        num_wins=wins,
        num_losses=losses,
        num_neither=len(pairs) - both - wins - losses,
        question_set_hash=question_set_hash([record.question for record in firsts.values()]),
        notes=tuple(_other_differences(list(firsts.values()), list(seconds.values()))),
    )


def _other_differences(first: Sequence[EpisodeRecord], second: Sequence[EpisodeRecord]) -> Iterator[str]:
    for what, name_of in (("decoding", _decoding), ("protocol", lambda record: record.episode.protocol)):
        a, b = (" and ".join(sorted({name_of(record) for record in side})) for side in (first, second))
        if a != b:
            yield f"{what}: {a} in the first, {b} in the second"


def _decoding(record: EpisodeRecord) -> str:
    temperature = record.episode.temperature
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def records_by_question(records: Iterable[EpisodeRecord], which: str) -> dict[_Key, EpisodeRecord]:
    """One evaluation's records by question; `which` is what an error calls the evaluation.

    Raises:
        DataError: a question comes twice, or there is no record.
    """
    found: dict[_Key, EpisodeRecord] = {}
    for record in records:
        key = record.question.key
        if key in found:
            raise DataError(f"the {which} evaluation holds question {key} twice; expected one episode per question")
        found[key] = record
    if not found:
        raise DataError(f"the {which} evaluation holds no episode; evaluate first, or check the name of the stage")
    return found


def common_questions(sets: Sequence[Mapping[_Key, EpisodeRecord]]) -> list[dict[_Key, EpisodeRecord]]:
    """The records of the questions that all sets asked, in the same words with the same golds.

    Raises:
        DataError: there is no such question.
    """
    keys = [
        key
        for key, record in sets[0].items()
        if all(key in other and _asked(other[key].question) == _asked(record.question) for other in sets[1:])
    ]
    if not keys:
        raise DataError("the evaluations have no question in common; nothing can be compared, also not by intersection")
    return [{key: each[key] for key in keys} for each in sets]


def refuse_different_questions(
    firsts: Mapping[_Key, EpisodeRecord],
    seconds: Mapping[_Key, EpisodeRecord],
    *,
    names: tuple[str, str] = ("the first", "the second"),
) -> None:
    """Check that two evaluations asked the same questions.

    Raises:
        DataError: they did not; says how many differ, and in what.
    """
    shared = firsts.keys() & seconds.keys()
    changed = [k for k in sorted(shared) if _asked(firsts[k].question) != _asked(seconds[k].question)]
    only_first, only_second = sorted(firsts.keys() - shared), sorted(seconds.keys() - shared)
    if not (changed or only_first or only_second):
        return
    examples = [f"{len(changed)} with another text or other golds, such as {changed[0]}"] if changed else []
    examples += [f"{len(only_first)} only in {names[0]}, such as {only_first[0]}"] if only_first else []
    examples += [f"{len(only_second)} only in {names[1]}, such as {only_second[0]}"] if only_second else []
    num_different = len(changed) + len(only_first) + len(only_second)
    raise DataError(
        f"the two evaluations asked different questions: {num_different} differ ({'; '.join(examples)}), "
        f"{len(shared) - len(changed)} are the same. Figures on different questions are not comparable; "
        "evaluate both on one question file, or compare with --intersect on what they share"
    )


def _asked(question: Question) -> tuple[str, tuple[str, ...]]:
    return question.question, question.answers
