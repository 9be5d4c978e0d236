"""Two evaluations of the same questions, compared question by question.

Pairing removes the difficulty of the questions from the difference, so the interval is much narrower than two intervals
side by side suggest. It also only means something on one question set: anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import pydantic

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.intervals import Rate, mcnemar_p, paired_bootstrap, rate_of
from seekling.reward.functions import score_episode
from seekling.types import EpisodeRecord, Json, Question, StopReason


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, with a paired bootstrap interval; in [-1, 1]."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """What changed from a first evaluation to a second on the same questions."""

    first: str
    """Name of the first evaluation, such as eval-sft."""
    second: str
    num_questions: int
    """Questions that both evaluations scored; the figures below are over these."""
    num_excluded: int
    """Questions left out because an infrastructure failure ended one of the two episodes."""
    em_first: Rate
    em_second: Rate
    em_difference: Difference
    f1_difference: Difference
    num_both: int
    """Answered right by both."""
    num_wins: int
    """Only by the second."""
    num_losses: int
    """Only by the first."""
    num_neither: int
    mcnemar_p: float
    """Exact and two-sided."""
    question_set_hash: str
    confidence: float
    seed: int
    resamples: int

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Json]) -> PairedComparison:
        """Rebuild a comparison from `to_json`'s object.

        Raises:
            pydantic.ValidationError: the row is not a comparison; a ValueError that names each wrong field.
        """
        return pydantic.TypeAdapter(PairedComparison).validate_python(row)


def compare(
    first: Iterable[EpisodeRecord],
    second: Iterable[EpisodeRecord],
    *,
    names: tuple[str, str] | None = None,
    seed: int = 0,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> PairedComparison:
    """Compare two evaluations of the same questions.

    Args:
        first: one record per question.
        second: one record per question, the same questions in any order.
        names: what to call the two; None takes the stages of the records.
        seed: of the bootstrap.
        resamples: of the bootstrap.
        confidence: of both intervals.

    Returns:
        Differences are second minus first.

    Raises:
        DataError: the question sets differ (in ids, texts or golds), are empty, or hold a question twice.
    """
    firsts, seconds = _by_question(first, "first"), _by_question(second, "second")
    _check_same_questions(firsts, seconds)
    pairs = [(record, seconds[key]) for key, record in sorted(firsts.items()) if _both_scored(record, seconds[key])]
    em = [(_value(a, "em"), _value(b, "em")) for a, b in pairs]
    f1 = [(_value(a, "f1"), _value(b, "f1")) for a, b in pairs]
    wins, losses = sum(a < b for a, b in em), sum(a > b for a, b in em)
    both = sum(a == b == 1 for a, b in em)

    def difference(values: Sequence[tuple[float, float]]) -> Difference:
        gaps = [b - a for a, b in values]
        low, high = paired_bootstrap(gaps, seed=seed, resamples=resamples, confidence=confidence)
        return Difference(value=sum(gaps) / len(gaps) if gaps else 0.0, low=low, high=high)

    return PairedComparison(
        first=names[0] if names else next(iter(firsts.values())).stage,
        second=names[1] if names else next(iter(seconds.values())).stage,
        num_questions=len(pairs),
        num_excluded=len(firsts) - len(pairs),
        em_first=rate_of(both + losses, len(pairs), confidence),
        em_second=rate_of(both + wins, len(pairs), confidence),
        em_difference=difference(em),
        f1_difference=difference(f1),
        num_both=both,
        num_wins=wins,
        num_losses=losses,
        num_neither=len(pairs) - both - wins - losses,
        mcnemar_p=mcnemar_p(wins, losses),
        question_set_hash=question_set_hash([record.question for record in firsts.values()]),
        confidence=confidence,
        seed=seed,
        resamples=resamples,
    )


_Key = tuple[str, str]


def _by_question(records: Iterable[EpisodeRecord], which: str) -> dict[_Key, EpisodeRecord]:
    found: dict[_Key, EpisodeRecord] = {}
    for record in records:
        key = record.question.key
        if key in found:
            raise DataError(f"the {which} evaluation holds question {key} twice; expected one episode per question")
        found[key] = record
    if not found:
        raise DataError(f"the {which} evaluation holds no episode; evaluate first, or check the name of the stage")
    return found


def _check_same_questions(firsts: Mapping[_Key, EpisodeRecord], seconds: Mapping[_Key, EpisodeRecord]) -> None:
    shared = firsts.keys() & seconds.keys()
    changed = [k for k in sorted(shared) if _asked(firsts[k].question) != _asked(seconds[k].question)]
    only_first, only_second = sorted(firsts.keys() - shared), sorted(seconds.keys() - shared)
    if not (changed or only_first or only_second):
        return
    examples = [f"{len(changed)} with another text or other golds, such as {changed[0]}"] if changed else []
    examples += [f"{len(only_first)} only in the first, such as {only_first[0]}"] if only_first else []
    examples += [f"{len(only_second)} only in the second, such as {only_second[0]}"] if only_second else []
    num_different = len(changed) + len(only_first) + len(only_second)
    raise DataError(
        f"the two evaluations asked different questions: {num_different} differ ({'; '.join(examples)}), "
        f"{len(shared) - len(changed)} are the same. Figures on different questions are not comparable; "
        "evaluate both on one question file"
    )


def _asked(question: Question) -> tuple[str, tuple[str, ...]]:
    return question.question, question.answers


def _both_scored(first: EpisodeRecord, second: EpisodeRecord) -> bool:
    return StopReason.INFRA_FAILURE not in (first.episode.stop_reason, second.episode.stop_reason)


def _value(record: EpisodeRecord, name: str) -> float:
    return score_episode(record.episode, record.question)[name]
