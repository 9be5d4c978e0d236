"""Rewards for data with unanswerable questions: when to have looked pays, and when to say "unknown".

Exact match alone teaches to say "unknown" without a search, which is right on every unanswerable question and costs
nothing. In the recovery recipes "unknown" counts only when the environment has shown text of the pages that the
question is about. Having seen them pays a little by itself, the same at the first try and after a failed one: an
episode whose search failed earns it by searching again, and nothing is gained by failing first.
"""

from __future__ import annotations

import re

from seekling.reward.match import exact_match
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, UNKNOWN_ANSWERS, Episode, Question, Reward, Turn

PIECE_CHARS = 20
"""A stretch of a page this long, between full stops, is not in an observation by chance."""
_BREAKS = re.compile(r"[.\n]|: ")


def recovery_reward(episode: Episode, question: Question, *, looked: float) -> Reward:
    """Exact match, which an unanswerable question gives only after looking, and a part for having looked.

    The question's hops or supporting pages say what there is to look at; without them any page counts. `looked` is the
    weight of the part.
    """
    has_looked = has_seen_pages(episode, question)
    em = exact_match(episode.answer, question.answers)
    if is_unanswerable(question) and not has_looked:
        em = 0.0
    parts = {"em": em, "looked": looked * has_looked}
    return Reward(total=sum(parts.values()), parts=parts)


def ternary_reward(episode: Episode, question: Question, *, wrong: float) -> Reward:
    """1 for a right answer, 0 for saying that it is unknown or for no answer, and less for a wrong one.

    Where no page says the answer, to say so is right. `wrong` is what a wrong answer costs, such as 1.

    Source: TruthRL (arXiv:2509.25760).
    """
    em = exact_match(episode.answer, question.answers)
    is_wrong = episode.answer is not None and not em and not exact_match(episode.answer, UNKNOWN_ANSWERS)
    parts = {"em": em, "wrong": -wrong * is_wrong}
    return Reward(total=sum(parts.values()), parts=parts)


def is_unanswerable(question: Question) -> bool:
    """Whether no page says the answer."""
    return question.kind == UNANSWERABLE or bool(exact_match(UNKNOWN_ANSWER, question.answers))


def has_seen_pages(episode: Episode, question: Question) -> bool:
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
