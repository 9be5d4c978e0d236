"""Reward functions: Episode x Question -> Reward. Pure: no clock, no network, no randomness.

Answers are read from `Episode.answer`, and form from the policy's own turns: what stands in the prompt or in an
observation neither earns nor loses anything. An infrastructure failure has no reward, not a reward of 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from seekling.config import RewardConfig
from seekling.errors import ConfigError, DataError
from seekling.reward.match import exact_match, f1, normalize_answer, rouge_l, substring
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, UNKNOWN_ANSWERS, Episode, Question, Reward, StopReason, Turn

RewardFunction = Callable[[Episode, Question], Reward]
_Weighted = Callable[[Episode, Question, RewardConfig], Reward]

PIECE_CHARS = 20
"""A stretch of a page this long, between full stops, is not in an observation by chance."""
_BREAKS = re.compile(r"[.\n]|: ")
_THINK = r"\s*<think>((?:(?!</?(?:think|search|information|answer)>).)*)</think>\s*"
_SEARCH_TURN = re.compile(rf"{_THINK}<search>((?:(?!<).)*)</search>\s*", re.DOTALL)
_ANSWER_TURN = re.compile(rf"{_THINK}<answer>((?:(?!</?answer>).)*)</answer>\s*", re.DOTALL)
_MEASURES: dict[str, Callable[[str | None, Iterable[str]], float]] = {
    "em": exact_match,
    "f1": f1,
    "substring": substring,
    "rouge_l": rouge_l,
}


def search_r1_reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
    """Exact match with format terms, for episodes of the tags protocol.

    A right answer earns 1, or 1 - `structure` in another form; a wrong one earns `structure` in the right form, and
    `retrieval` on top when a gold stands in an observation, or `final` in another form. No answer earns nothing. The
    right form is a closed thought and one action in every turn, the last of them the answer.

    Source: Search-R1's `qa_em_format`, version 0.3 (arXiv:2503.09516 and its code), which reads the whole text instead.
    """
    em, is_formed = exact_match(episode.answer, question.answers), _is_well_formed(episode)
    if em:
        form = 0.0 if is_formed else -weights.structure
    elif is_formed:
        form = weights.structure + (weights.retrieval if _is_retrieved(episode, question) else 0.0)
    else:
        form = weights.final if episode.answer is not None else 0.0
    return _total(em=em, form=form)


def tinker_reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
    """Exact match, less `format_coefficient` when the episode ends without a readable answer or is cut off.

    Source: tinker-cookbook's search_tool recipe; with its coefficient of 0.1 the values are 1, 0 and -0.1.
    """
    form = 0.0 if episode.answer is not None else -weights.format_coefficient
    return _total(em=exact_match(episode.answer, question.answers), form=form)


def ternary_reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
    """1 for a right answer, 0 for saying that it is unknown or for no answer, `-wrong` for a wrong one.

    Where no page says the answer, to say so is right.

    Source: TruthRL (arXiv:2509.25760).
    """
    em = exact_match(episode.answer, question.answers)
    is_wrong = episode.answer is not None and not em and not exact_match(episode.answer, UNKNOWN_ANSWERS)
    return _total(em=em, wrong=-weights.wrong * is_wrong)


def recovery_reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
    """Exact match, which an unanswerable question gives only after looking, and `looked` for having looked.

    Exact match alone teaches to say "unknown" without a search. Having seen the pages that the question needs (its hops
    or supporting pages; any page where these are unknown) pays the same at the first try and after a failed one.
    """
    has_looked = _has_seen_pages(episode, question)
    em = exact_match(episode.answer, question.answers)
    return _total(em=em if has_looked or not is_unanswerable(question) else 0.0, looked=weights.looked * has_looked)


def _sum_of(*names: str) -> _Weighted:
    return lambda episode, question, weights: _total(
        **{name: _MEASURES[name](episode.answer, question.answers) for name in names}
    )


_REWARDS: dict[str, _Weighted] = {
    "em": _sum_of("em"),
    "f1": _sum_of("f1"),
    "em+f1": _sum_of("em", "f1"),
    "search-r1": search_r1_reward,
    "tinker": tinker_reward,
    "ternary": ternary_reward,
    "recovery": recovery_reward,
}


def make_reward(name: str, weights: RewardConfig | None = None) -> RewardFunction:
    """The reward function of a recipe's `rl.reward.kind`, with the weights of its parts.

    Returns:
        A pure function; a reward's total is the sum of its named parts. It raises as `check_scorable`.

    Raises:
        ConfigError: no such reward.
    """
    if name not in _REWARDS:
        raise ConfigError(f"no reward is called {name!r}; choose one of {', '.join(_REWARDS)}")
    given = weights or RewardConfig()

    def reward(episode: Episode, question: Question) -> Reward:
        check_scorable(episode, question)
        return _REWARDS[name](episode, question, given)

    return reward


def score_episode(episode: Episode, question: Question) -> dict[str, float]:
    """Every string measure of one episode's answer: em, f1, substring and rouge_l; raises as `check_scorable`."""
    check_scorable(episode, question)
    return score_answer(episode.answer, question.answers)


def score_answer(answer: str | None, golds: Iterable[str]) -> dict[str, float]:
    """Every string measure of one answer, each in [0, 1]; None scores 0."""
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


def is_unanswerable(question: Question) -> bool:
    """Whether no page says the answer."""
    return question.kind == UNANSWERABLE or bool(exact_match(UNKNOWN_ANSWER, question.answers))


def _total(**parts: float) -> Reward:
    return Reward(sum(parts.values()), parts)


def _is_well_formed(episode: Episode) -> bool:
    if not episode.turns or episode.turns[-1].kind != "answer":
        return False
    searches = all(turn.kind == "search" and _SEARCH_TURN.fullmatch(turn.action) for turn in episode.turns[:-1])
    return searches and _ANSWER_TURN.fullmatch(episode.turns[-1].action) is not None


def _is_retrieved(episode: Episode, question: Question) -> bool:
    observed = [normalize_answer(turn.observation) for turn in episode.turns]
    golds = [normalize_answer(gold) for gold in question.answers]
    return any(gold in text for gold in golds if gold for text in observed)


def _has_seen_pages(episode: Episode, question: Question) -> bool:
    """Whether text of every page that a question needs stood in an observation; lists of titles do not count."""
    seen = {page for turn in episode.turns for page in _seen(turn)}
    needed = {*question.supporting_ids, *(hop.document_id for hop in question.hops if hop.document_id)}
    return needed <= seen if needed else bool(seen)


def _seen(turn: Turn) -> set[str]:
    """Pages of which the policy was shown text: a program may fetch a page and print nothing of it."""
    return {page for call in turn.calls if _is_shown(call.result, turn.observation) for page in call.document_ids}


def _is_shown(text: str, observation: str) -> bool:
    pieces = (piece.strip() for piece in _BREAKS.split(text))
    return any(len(piece) >= PIECE_CHARS and piece in observation for piece in pieces)
