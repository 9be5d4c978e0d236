"""Several evaluations of the same questions: compared in pairs, or, as samples and seeds of one policy, put together.

The unit of every interval is the question. Pairing removes the difficulty of the questions from a difference, so its
interval is much narrower than two intervals side by side suggest; and samples of one question are not independent.
Evaluations of different questions are refused.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import pydantic

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.intervals import Difference, Mean, Rate, difference_of, mean_of, rate_of
from seekling.reward.functions import score_episode
from seekling.types import EpisodeRecord, Json, Question, StopReason

Records = Mapping[tuple[str, str], EpisodeRecord]
"""Of one evaluation, by question."""


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


@dataclass(frozen=True, kw_only=True)
class PairedComparison(PairCounts):
    """What changed from a first evaluation to a second on the same questions."""

    first: str
    """Name of the first evaluation, such as eval-sft."""
    second: str
    em_first: Rate
    em_second: Rate
    em_difference: Difference
    f1_difference: Difference
    p_value_holm: float | None = None
    """Of the difference in EM, corrected for the number of comparisons made at once; None for a single one."""
    notes: tuple[str, ...] = ()
    """What else than the policies differs: decoding, or the protocol. The questions are the same, the game is not."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; `from_json` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_json(row: Json) -> PairedComparison:
        """Rebuild a comparison; raises pydantic.ValidationError, a ValueError that names each wrong field."""
        return pydantic.TypeAdapter(PairedComparison).validate_python(row)


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """What several evaluations of the same questions say together."""

    names: tuple[str, ...]
    num_samples: int
    """Evaluations; each question has as many samples, less what infrastructure failures took."""
    num_questions: int
    num_excluded: int
    """Episodes that infrastructure failures ended."""
    em_mean: Mean
    """Of each question's share of right samples; the interval is over questions."""
    f1_mean: Mean
    em_per_sample: tuple[Rate, ...]
    em_deviation: float | None
    """Standard deviation (unbiased) between the evaluations' exact match; None for fewer than two."""
    pass_at_k: Mapping[int, Mean]
    """Chance that at least one of k samples is right, for k = 1, 2, 4, ... and all; over questions with k samples."""
    question_set_hash: str

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; the keys of pass_at_k become strings."""
        return {**asdict(self), "pass_at_k": {str(k): asdict(mean) for k, mean in self.pass_at_k.items()}}

    @staticmethod
    def from_json(row: Json) -> SampleSummary:
        """Rebuild a summary; raises pydantic.ValidationError, a ValueError that names each wrong field."""
        return pydantic.TypeAdapter(SampleSummary).validate_python(row)


def compare_all(evaluations: Sequence[tuple[str, Iterable[EpisodeRecord]]]) -> list[PairedComparison]:
    """Compare every pair of several evaluations (name and records, one per question), earlier with later.

    Returns:
        One comparison per pair, differences being second minus first; with more than one, each has a p-value with
        Holm's correction. Intervals are not widened for the number of pairs.

    Raises:
        DataError: the question sets differ (in ids, texts or golds), are empty, or hold a question twice.
    """
    sets = [records_by_question(records, name) for name, records in evaluations]
    for other in sets[1:]:
        refuse_different_questions(sets[0], other)
    pairs = itertools.combinations(range(len(sets)), 2)
    found = [_compare(sets[a], sets[b], (evaluations[a][0], evaluations[b][0])) for a, b in pairs]
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


def summarize_samples(evaluations: Sequence[tuple[str, Iterable[EpisodeRecord]]]) -> SampleSummary:
    """Put several evaluations of the same questions together: name and records of each, one record per question.

    Raises:
        DataError: fewer than two evaluations, one of them is empty or asks a question twice, or they asked different
            questions.
    """
    if len(evaluations) < 2:
        raise DataError(f"got {len(evaluations)} evaluation(s); mean and pass@k need at least two")
    sets = [records_by_question(records, name) for name, records in evaluations]
    for other, (name, _) in zip(sets[1:], evaluations[1:], strict=True):
        refuse_different_questions(sets[0], other, names=(evaluations[0][0], name))
    samples = [[_scored(each[key]) for each in sets] for key in sorted(sets[0])]
    # Without what infrastructure failures took; a question that lost all its samples is left out.
    rows = [kept for row in samples if (kept := [each for each in row if each is not None])]
    per_sample = tuple(_right_of([each for each in column if each]) for column in zip(*samples, strict=True))
    values = [rate.value for rate in per_sample if rate.value is not None]
    powers = (2**exponent for exponent in range((len(sets) - 1).bit_length()))
    return SampleSummary(
        names=tuple(name for name, _ in evaluations),
        num_samples=len(sets),
        num_questions=len(sets[0]),
        num_excluded=sum(each is None for row in samples for each in row),
        em_mean=mean_of([statistics.fmean(scores["em"] for scores in row) for row in rows]),
        f1_mean=mean_of([statistics.fmean(scores["f1"] for scores in row) for row in rows]),
        em_per_sample=per_sample,
        em_deviation=statistics.stdev(values) if len(values) > 1 else None,
        pass_at_k={
            k: mean_of([pass_at_k(len(row), _right_of(row).k, k) for row in rows if len(row) >= k])
            for k in (*powers, len(sets))
        },
        question_set_hash=question_set_hash([record.question for record in sets[0].values()]),
    )


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement is right; unbiased for k fresh samples.

    Source: Chen et al., arXiv:2107.03374, equation 1: 1 - C(n - c, k) / C(n, k).
    """
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def records_by_question(records: Iterable[EpisodeRecord], which: str) -> Records:
    """One evaluation's records by question; `which` is what an error calls the evaluation.

    Raises:
        DataError: a question comes twice, or there is no record.
    """
    found: dict[tuple[str, str], EpisodeRecord] = {}
    for record in records:
        key = record.question.key
        if key in found:
            raise DataError(f"the {which} evaluation holds question {key} twice; expected one episode per question")
        found[key] = record
    if not found:
        raise DataError(f"the {which} evaluation holds no episode; evaluate first, or check the name of the stage")
    return found


def refuse_different_questions(
    firsts: Records, seconds: Records, *, names: tuple[str, str] = ("the first", "the second")
) -> None:
    """Check that two evaluations asked the same questions.

    Raises:
        DataError: they did not; says how many differ, and in what.
    """
    shared = firsts.keys() & seconds.keys()
    changed = [k for k in sorted(shared) if _asked(firsts[k].question) != _asked(seconds[k].question)]
    differing = {
        "with another text or other golds": changed,
        f"only in {names[0]}": sorted(firsts.keys() - shared),
        f"only in {names[1]}": sorted(seconds.keys() - shared),
    }
    examples = [f"{len(keys)} {what}, such as {keys[0]}" for what, keys in differing.items() if keys]
    if examples:
        raise DataError(
            f"the two evaluations asked different questions: {sum(map(len, differing.values()))} differ "
            f"({'; '.join(examples)}), {len(shared) - len(changed)} are the same. Figures on different questions are "
            "not comparable; evaluate both on one question file"
        )


def _asked(question: Question) -> tuple[str, tuple[str, ...]]:
    return question.question, question.answers


def _scored(record: EpisodeRecord) -> dict[str, float] | None:
    if record.episode.stop_reason is StopReason.INFRA_FAILURE:
        return None
    return score_episode(record.episode, record.question)


def _right_of(samples: Sequence[Mapping[str, float]]) -> Rate:
    return rate_of(round(sum(scores["em"] for scores in samples)), len(samples))


def _compare(firsts: Records, seconds: Records, names: tuple[str, str]) -> PairedComparison:
    scored = [(_scored(record), _scored(seconds[key])) for key, record in sorted(firsts.items())]
    pairs = [(first, second) for first, second in scored if first is not None and second is not None]
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
