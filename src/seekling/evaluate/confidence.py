"""How sure one can be of an answer: one number, calibrated on development questions.

A logistic regression on the episodes of development questions makes a probability of how likely the policy found its
own words and of whether the answer stands in what came back, beside what it is about. A threshold is chosen for a
promised precision: of the answers that are at least so sure, that share was right. What is less sure is better taken
for "not found". Where no threshold keeps the promise, nothing is promised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pydantic

from seekling.errors import DataError
from seekling.evaluate.evidence import is_abstention, is_grounded, passages_shown, said_in
from seekling.evaluate.intervals import Rate, rate_of
from seekling.files import write_atomically
from seekling.reward.match import exact_match
from seekling.types import Episode, EpisodeRecord, StopReason, Turn

FEATURES = (
    "mean log-probability of the last turn",
    "its lowest",
    "lowest of the searches",
    "stands in an observation",
    "stands in a passage with what the thought names",
    "words of what is looked for beside it",
)
"""A calibration that was made of fewer takes the first of them."""
_WORDS_BEFORE, _WORDS_AFTER = 12, 6
"""Beside an answer: where a sentence says what it is the answer to."""
CONFIDENCE = "confidence.json"
"""File of a calibration, in the directory of its policy."""
MIN_EPISODES = 30
MIN_OF_EACH = 5
"""Fewer answers, or fewer right or wrong ones, calibrate nothing."""
_LOWEST_LOGPROB = -5.0
_RIDGE = 1.0
_NEWTON_STEPS = 25
FOLDS = 5
"""The threshold is chosen on answers that the fit has not seen."""
_Z_90 = 1.2816
CURVE_POINTS = 100


@dataclass(frozen=True, slots=True)
class ConfidenceSummary:
    """How far confidence tells right answers from wrong ones."""

    promised_precision: float | None
    """None: nothing is promised, and every answer is shown."""
    right_of_shown: Rate
    """Of the answers that are at least as sure as the threshold: did they keep the promise?"""
    shown: Rate
    """Of all questions, those with such an answer."""
    aurc: float | None
    """Area under the risk-coverage curve by the coverage that the policy reaches: the mean risk. Lower is better,
    between policies that answer about as many questions. None without answers."""
    curve: tuple[tuple[float, float], ...]
    """(coverage, risk), the surest answers first: share of the questions answered, and of these the share wrong."""


MIN_SCALE = 1e-3
"""Of a feature; one with this scale did not vary."""
HALF = 0.5
"""A feature that is yes or no for all development answers, and differs by more than this, is the other one."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What turns an episode into the probability that its answer is right."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    """Of the standardised `FEATURES`."""
    bias: float
    threshold: float
    """Answers that are at least so sure keep the promise; above 1 where no threshold keeps it."""
    promised_precision: float
    """That the threshold was chosen for."""
    num_answers: int
    """Of development questions, that it was made of."""

    def confidence(self, episode: Episode) -> float | None:
        """Probability in [0, 1) that an episode's answer is right; None where it gives none, or says it is unknown.

        It is 0 where a feature that was the same for every development answer is another here, such as an answer that
        stands in nothing that came back: nothing is known of such answers.
        """
        if not _is_answered(episode):
            return None
        differences, scales = _features(episode)[: len(self.means)] - np.array(self.means), np.array(self.scales)
        if np.any((scales <= MIN_SCALE) & (np.abs(differences) > HALF)):
            return 0.0
        return float(_sigmoid(differences / scales @ np.array(self.weights) + self.bias))

    @property
    def promise(self) -> float | None:
        """Share of right answers that is promised of those that are shown; None where nothing can be promised."""
        return self.promised_precision if self.threshold <= 1 else None

    def shows(self, confidence: float | None) -> bool:
        """Whether an answer is sure enough to be shown; where nothing is promised, every answer is."""
        return confidence is not None and (self.promise is None or confidence >= self.threshold)

    def save(self, policy: Path) -> None:
        """Write it into the directory of its policy, whole or not at all."""
        write_atomically(policy / CONFIDENCE, json.dumps(asdict(self), indent=1) + "\n")


def read_calibration(policy: Path) -> Calibration | None:
    """The calibration in the directory of a policy; None when it has none, a DataError when it is damaged."""
    path = policy / CONFIDENCE
    if not path.exists():
        return None
    try:
        return pydantic.TypeAdapter(Calibration).validate_json(path.read_bytes())
    except (OSError, pydantic.ValidationError) as error:
        raise DataError(f"{path} holds no calibration ({error}); remove it, or train the run anew") from None


def calibrate(records: Sequence[EpisodeRecord], *, promised_precision: float) -> Calibration | None:
    """Fit confidence to episodes of development questions, one per question, with log-probabilities of their turns.

    `promised_precision` is the share of right answers among those that are shown, in (0, 1). None where there are too
    few answers, or too few right or wrong ones, to learn it from.
    """
    answered = [record for record in records if _is_answered(record.episode)]
    is_right_N = np.array([bool(exact_match(each.episode.answer, each.question.answers)) for each in answered])
    if len(answered) < MIN_EPISODES or min(is_right_N.sum(), (~is_right_N).sum()) < MIN_OF_EACH:
        return None
    features_NF = np.stack([_features(each.episode) for each in answered])
    means_F, scales_F = features_NF.mean(0), np.maximum(features_NF.std(0), MIN_SCALE)
    scaled_NF, targets_N = (features_NF - means_F) / scales_F, is_right_N.astype(float)
    weights_F, bias = _logistic(scaled_NF, targets_N)
    return Calibration(
        tuple(means_F.tolist()),
        tuple(scales_F.tolist()),
        tuple(weights_F.tolist()),
        bias,
        _threshold(_held_out(scaled_NF, targets_N), is_right_N, promised_precision),
        promised_precision,
        len(answered),
    )


def summarize_confidence(records: Sequence[EpisodeRecord], calibration: Calibration) -> ConfidenceSummary:
    """What confidence is worth on questions that it was not made of; episodes that failed are left out.

    Source: El-Yaniv and Wiener (JMLR 2010) for the risk-coverage curve; Geifman et al. (arXiv:1805.08206) for its area.
    """
    asked = [record for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]
    answered = [
        (confidence, bool(exact_match(record.episode.answer, record.question.answers)))
        for record in asked
        if (confidence := calibration.confidence(record.episode)) is not None
    ]
    answered.sort(key=lambda each: -each[0])
    num_wrong = np.cumsum([not is_right for _, is_right in answered])
    risks = [float(num_wrong[index] / (index + 1)) for index in range(len(answered))]
    shown = [is_right for confidence, is_right in answered if calibration.shows(confidence)]
    every = max(1, len(answered) // CURVE_POINTS)
    return ConfidenceSummary(
        promised_precision=calibration.promise,
        right_of_shown=rate_of(sum(shown), len(shown)),
        shown=rate_of(len(shown), len(asked)),
        aurc=float(np.mean(risks)) if risks else None,
        curve=tuple(((index + 1) / len(asked), risks[index]) for index in range(every - 1, len(answered), every)),
    )


def _is_answered(episode: Episode) -> bool:
    is_failed = episode.stop_reason is StopReason.INFRA_FAILURE
    return not is_failed and episode.answer is not None and not is_abstention(episode.answer)


def _features(episode: Episode) -> np.ndarray:
    """(F,) what tells how sure an answer is, without its golds."""
    *searches, last = episode.turns
    return np.array(
        [
            max(_LOWEST_LOGPROB, float(np.mean(last.action_logprobs or (0.0,)))),
            _lowest((last,)),
            _lowest(searches),
            is_grounded(episode, episode.answer or ""),
            *_support(episode),
        ],
        dtype=float,
    )


def _support(episode: Episode) -> tuple[bool, float]:
    """Whether a passage holds both answer and named subject; the share in [0, 1] of the relation's words beside it.

    Subject and relation are what the last thought names; nothing where it names none.
    """
    said = said_in(episode.turns[-1])
    if not said:
        return False, 0.0
    answer = _words(episode.answer or "")
    subject, relation, _ = next((each for each in reversed(said) if _words(each.value) == answer), said[-1])
    named, sought = _words(subject), set(_words(relation))
    is_named, share = False, 0.0
    for passage in (_words(each) for turn in episode.turns[:-1] for each in passages_shown(turn)):
        places = _places(passage, answer)
        is_named = is_named or bool(places and _places(passage, named))
        for start in places:
            beside = {*passage[max(0, start - _WORDS_BEFORE) : start + len(answer) + _WORDS_AFTER]}
            share = max(share, len(sought & beside) / max(1, len(sought)))
    return is_named, share


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _places(words: list[str], part: list[str]) -> list[int]:
    """Where a sequence of words begins in another."""
    ends = range(len(words) - len(part) + 1) if part else range(0)
    return [start for start in ends if words[start : start + len(part)] == part]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logits)))


def _lowest(turns: Sequence[Turn]) -> float:
    return max(_LOWEST_LOGPROB, min((each for turn in turns for each in turn.action_logprobs), default=0.0))


def _logistic(features_NF: np.ndarray, targets_N: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights and bias of a ridge logistic regression, by Newton's method."""
    design_NG = np.concatenate([features_NF, np.ones((len(features_NF), 1))], 1)
    penalty_GG = _RIDGE * np.diag([*np.ones(features_NF.shape[1]), 0.0])
    weights_G = np.zeros(design_NG.shape[1])
    for _ in range(_NEWTON_STEPS):
        probs_N = _sigmoid(design_NG @ weights_G)
        gradient_G = design_NG.T @ (probs_N - targets_N) + penalty_GG @ weights_G
        curvature_GG = (design_NG * (probs_N * (1 - probs_N))[:, None]).T @ design_NG + penalty_GG
        weights_G -= np.linalg.solve(curvature_GG + 1e-9 * np.eye(len(weights_G)), gradient_G)
    return weights_G[:-1], float(weights_G[-1])


def _held_out(scaled_NF: np.ndarray, targets_N: np.ndarray) -> np.ndarray:
    """(N,) confidence of each answer by a fit to the others' folds."""
    confidences_N = np.empty(len(targets_N))
    for fold in range(FOLDS):
        inside_N = np.arange(len(targets_N)) % FOLDS == fold
        weights_F, bias = _logistic(scaled_NF[~inside_N], targets_N[~inside_N])
        confidences_N[inside_N] = _sigmoid(scaled_NF[inside_N] @ weights_F + bias)
    return confidences_N


def _threshold(confidences_N: np.ndarray, is_right_N: np.ndarray, promised: float) -> float:
    """The lowest confidence from which on the share of right answers keeps the promise, with a margin for chance.

    The margin is Wilson's one-sided bound at 90 %. The lowest threshold of many is taken, so of the promises that are
    made so a little more than one in ten is broken; simulated with 80 to 300 answers 10 to 24 %.
    """
    order = np.argsort(-confidences_N)
    sorted_N, num_N = confidences_N[order], np.arange(1, len(order) + 1)
    share_N = np.cumsum(is_right_N[order]) / num_N
    spread_N = _Z_90 * np.sqrt(share_N * (1 - share_N) / num_N + (_Z_90 / (2 * num_N)) ** 2)
    bounds_N = (share_N + _Z_90**2 / (2 * num_N) - spread_N) / (1 + _Z_90**2 / num_N)
    # Answers that are equally sure are shown together.
    is_last_of_equals_N = np.append(sorted_N[1:] < sorted_N[:-1], True)
    kept = np.flatnonzero((bounds_N >= promised) & is_last_of_equals_N)
    return float(sorted_N[kept[-1]]) if len(kept) else 1.01
