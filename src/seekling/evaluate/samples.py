"""Several samples of each question, or several seeds of one system: mean, pass@k and majority vote.

The unit of every interval is the question: samples of one question are not independent, and taking them for it would
make intervals too narrow. How far seeds differ among themselves is told beside it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import pydantic

from seekling.corpus.questions import question_set_hash
from seekling.errors import DataError
from seekling.evaluate.compare import records_by_question, refuse_different_questions
from seekling.evaluate.intervals import Mean, Rate, mean_of, rate_of
from seekling.reward.functions import score_answer, score_episode
from seekling.reward.match import normalize_answer
from seekling.types import EpisodeRecord, Json, StopReason

_Sample = tuple[str | None, Mapping[str, float]]
"""An answer and its scores."""


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
    majority: Rate
    """Exact match of the answer that most samples gave; ties go to the one given first, no answer has no vote."""
    majority_f1: Mean
    question_set_hash: str

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object; the keys of pass_at_k become strings."""
        return {**asdict(self), "pass_at_k": {str(k): asdict(mean) for k, mean in self.pass_at_k.items()}}

    @staticmethod
    def from_json(row: Json) -> SampleSummary:
        """Rebuild a summary from `to_json`'s object.

        Raises:
            pydantic.ValidationError: the row is not a summary; a ValueError that names each wrong field.
        """
        return pydantic.TypeAdapter(SampleSummary).validate_python(row)


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement is right; unbiased for k fresh samples.

    Source: Chen et al., arXiv:2107.03374, equation 1: 1 - C(n - c, k) / C(n, k).
    """
    if not (1 <= k <= num_samples and 0 <= num_right <= num_samples):
        raise ValueError(f"expected 1 <= k <= n and 0 <= c <= n, got k={k}, n={num_samples}, c={num_right}")
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def majority_answer(answers: Sequence[str | None]) -> str | None:
    """The answer that most samples gave, in the words of the first that gave it.

    Answers count as the same when SQuAD's normalisation makes them equal; where it leaves nothing, when they are equal
    in lower case. None is no vote; ties go to the answer that was given first.
    """
    votes = [(_vote(answer), answer) for answer in answers if answer is not None and answer.strip()]
    if not votes:
        return None
    # Counter keeps the order of first votes, and most_common keeps that order among equals.
    winner = Counter(vote for vote, _ in votes).most_common(1)[0][0]
    return next(answer for vote, answer in votes if vote == winner)


def summarize_samples(evaluations: Sequence[tuple[str, Iterable[EpisodeRecord]]]) -> SampleSummary:
    """Put several evaluations of the same questions together: name and records of each, one record per question.

    Raises:
        DataError: fewer than two evaluations, one of them is empty or asks a question twice, or they asked different
            questions.
    """
    if len(evaluations) < 2:
        raise DataError(f"got {len(evaluations)} evaluation(s); mean, pass@k and majority vote need at least two")
    sets = [records_by_question(records, name) for name, records in evaluations]
    for other, (name, _) in zip(sets[1:], evaluations[1:], strict=True):
        refuse_different_questions(sets[0], other, names=(evaluations[0][0], name))
    samples = {key: [_scored(each[key]) for each in sets] for key in sorted(sets[0])}
    # Without what infrastructure failures took; a question that lost all its samples is left out.
    scored = {key: kept for key, row in samples.items() if (kept := [each for each in row if each is not None])}
    rows = scored.values()
    per_sample = tuple(_right_of(filter(None, column)) for column in zip(*samples.values(), strict=True))
    values = [rate.value for rate in per_sample if rate.value is not None]
    votes = [
        score_answer(majority_answer([answer for answer, _ in row]), sets[0][key].question.answers)
        for key, row in scored.items()
    ]
    return SampleSummary(
        names=tuple(name for name, _ in evaluations),
        num_samples=len(sets),
        num_questions=len(sets[0]),
        num_excluded=sum(each is None for row in samples.values() for each in row),
        em_mean=mean_of([statistics.fmean(scores["em"] for _, scores in row) for row in rows]),
        f1_mean=mean_of([statistics.fmean(scores["f1"] for _, scores in row) for row in rows]),
        em_per_sample=per_sample,
        em_deviation=statistics.stdev(values) if len(values) > 1 else None,
        pass_at_k={
            k: mean_of([pass_at_k(len(row), _right_of(row).k, k) for row in rows if len(row) >= k])
            for k in (*(2**exponent for exponent in range((len(sets) - 1).bit_length())), len(sets))
        },
        majority=rate_of(round(sum(vote["em"] for vote in votes)), len(votes)),
        majority_f1=mean_of([vote["f1"] for vote in votes]),
        question_set_hash=question_set_hash([record.question for record in sets[0].values()]),
    )


def _scored(record: EpisodeRecord) -> _Sample | None:
    if record.episode.stop_reason is StopReason.INFRA_FAILURE:
        return None
    return record.episode.answer, score_episode(record.episode, record.question)


def _right_of(samples: Iterable[_Sample]) -> Rate:
    values = [scores["em"] for _, scores in samples]
    return rate_of(round(sum(values)), len(values))


def _vote(answer: str) -> str:
    return normalize_answer(answer) or answer.strip().lower()
