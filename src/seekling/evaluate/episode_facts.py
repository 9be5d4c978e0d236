"""What is known of one episode besides its text: what became of it, why, and what it did. Worked out once for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seekling.evaluate.behaviours import detect_behaviours, error_cause
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, StopReason

OUTCOMES = ("right", "wrong", "none", "failed", "unscored")
"""What becomes of an episode: none is no answer, failed is infrastructure, unscored has no gold answer."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What counts and filters are made of."""

    outcome: str
    """One of `OUTCOMES`."""
    behaviours: tuple[str, ...]
    cause: str
    """Why it is not right; empty when it is, or when that was never scored."""
    num_searches: int
    num_empty: int
    """Searches that failed or returned no document."""
    found_at: int | None
    """The retrieval call, counted from 1, that first returned a supporting page; 0 when none did, None when no
    supporting page is known."""
    rank: int | None
    """Rank of that page among the documents of that call, counted from 1; None when none was found."""
    is_complete: bool
    """All supporting pages were returned."""
    action_tokens: int
    observation_tokens: int


def facts_of(record: EpisodeRecord, em: float | None = None) -> EpisodeFacts:
    """Work out the facts of an episode.

    Args:
        record: with its question.
        em: its exact match. None takes the recorded one; it is worked out for experts' episodes, which have no score,
            and for rewards without such a part.
    """
    episode, question = record.episode, record.question
    em = _exact_match(record) if em is None else em
    outcome = _outcome(record, em)
    calls = [call for turn in episode.turns for call in turn.calls]
    searches = [call for call in calls if call.is_search or call.document_ids]  # reading a page retrieves too
    support = set(question.supporting_ids)
    found_at, rank = _first_found([call.document_ids for call in searches], support)
    return EpisodeFacts(
        outcome=outcome,
        behaviours=detect_behaviours(question, episode),
        cause="" if em is None and outcome != "failed" else error_cause(question, episode, em or 0.0),
        num_searches=episode.num_searches,
        num_empty=sum(1 for call in searches if call.is_search and not call.document_ids),
        found_at=found_at,
        rank=rank,
        is_complete=bool(support) and support <= {document for call in searches for document in call.document_ids},
        action_tokens=sum(turn.num_action_tokens for turn in episode.turns),
        observation_tokens=sum(turn.num_observation_tokens for turn in episode.turns),
    )


def _outcome(record: EpisodeRecord, em: float | None) -> str:
    if record.episode.stop_reason is StopReason.INFRA_FAILURE:
        return "failed"
    if em is not None and em >= 1:
        return "right"
    if record.episode.answer is None:
        return "none"
    return "unscored" if em is None else "wrong"


def _exact_match(record: EpisodeRecord) -> float | None:
    recorded = record.scores.get("em", record.reward.parts.get("em") if record.reward else None)
    if recorded is None and record.question.answers:
        return exact_match(record.episode.answer, record.question.answers)
    return recorded


def _first_found(calls: Iterable[tuple[str, ...]], support: set[str]) -> tuple[int | None, int | None]:
    if not support:
        return None, None
    for number, documents in enumerate(calls, start=1):
        for rank, document in enumerate(documents, start=1):
            if document in support:
                return number, rank
    return 0, None
