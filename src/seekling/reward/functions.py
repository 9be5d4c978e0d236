"""Reward functions: Episode x Question -> Reward. Pure: no clock, no network, no randomness.

Answers are read from `Episode.answer`, which is text that the policy wrote: tags in the prompt or in an observation can
neither earn nor lose anything. An infrastructure failure has no reward, not a reward of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seekling.config import RewardConfig
from seekling.errors import ConfigError, DataError
from seekling.reward.form import search_r1_reward, tinker_reward
from seekling.reward.match import exact_match, f1, substring
from seekling.reward.rouge import rouge_l
from seekling.reward.unanswerable import recovery_reward, ternary_reward
from seekling.types import Episode, Question, Reward, StopReason

RewardFunction = Callable[[Episode, Question], Reward]

_MEASURES: dict[str, Callable[[str | None, Iterable[str]], float]] = {
    "em": exact_match,
    "f1": f1,
    "substring": substring,
    "rouge_l": rouge_l,
}


def _sum_of(*names: str) -> Callable[[Episode, Question, RewardConfig], Reward]:
    def reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
        parts = {name: _MEASURES[name](episode.answer, question.answers) for name in names}
        return Reward(total=sum(parts.values()), parts=parts)

    return reward


_REWARDS: dict[str, Callable[[Episode, Question, RewardConfig], Reward]] = {
    "em": _sum_of("em"),
    "f1": _sum_of("f1"),
    "em+f1": _sum_of("em", "f1"),
    "search-r1": search_r1_reward,
    "tinker": tinker_reward,
    "ternary": lambda episode, question, weights: ternary_reward(episode, question, wrong=weights.wrong),
    "recovery": lambda episode, question, weights: recovery_reward(episode, question, looked=weights.looked),
}


def make_reward(name: str, weights: RewardConfig | None = None) -> RewardFunction:
    """The reward function of a recipe's `rl.reward.kind`.

    Args:
        name: "em" (0 or 1), "f1" (0 to 1), "em+f1" (their sum, 0 to 2: partial credit, and a step up for exactness),
            "search-r1" or "tinker" (see `reward.form`), or "recovery" or "ternary" (see `reward.unanswerable`).
        weights: of the parts of rewards that have several.

    Returns:
        A pure function. The total of its reward is the sum of its named parts. It raises DataError for an episode of
        another question and for an episode that ended in an infrastructure failure.

    Raises:
        ConfigError: no such reward.
    """
    if name not in _REWARDS:
        raise ConfigError(f"no reward is called {name!r}; choose one of {', '.join(_REWARDS)}")
    weights = weights or RewardConfig()

    def reward(episode: Episode, question: Question) -> Reward:
        check_scorable(episode, question)
        return _REWARDS[name](episode, question, weights)

    return reward


def score_episode(episode: Episode, question: Question) -> dict[str, float]:
    """Every string measure of one episode's answer: em, f1, substring and rouge_l.

    Raises:
        DataError: the episode belongs to another question, or ended in an infrastructure failure.
    """
    check_scorable(episode, question)
    return score_answer(episode.answer, question.answers)


def score_answer(answer: str | None, golds: Iterable[str]) -> dict[str, float]:
    """Every string measure of one answer: em, f1, substring and rouge_l, each in [0, 1]; None scores 0."""
    golds = tuple(golds)
    return {name: measure(answer, golds) for name, measure in _MEASURES.items()}


def check_scorable(episode: Episode, question: Question) -> None:
    """Refuse what must never be turned into a number.

    Raises:
        DataError: the episode belongs to another question, or ended in an infrastructure failure.
    """
    if (episode.source, episode.question_id) != question.key:
        raise DataError(
            f"an episode of question {(episode.source, episode.question_id)} cannot be scored against the golds of "
            f"{question.key}; pair episodes with questions by (source, id)"
        )
    if episode.stop_reason is StopReason.INFRA_FAILURE:
        raise DataError(
            f"the episode of question {question.key} ended in an infrastructure failure "
            f"({episode.failure or 'no text'}) and has no score; count it and leave it out"
        )
