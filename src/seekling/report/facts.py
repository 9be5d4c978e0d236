"""What the page counts and filters by: a few facts about each episode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seekling.evaluate.behaviours import detect_behaviours, error_cause
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, StopReason


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one episode besides its text."""

    outcome: str
    """right, wrong, none (no answer), failed (infrastructure), or unscored."""
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


def facts_of(record: EpisodeRecord) -> Facts:
    """Work out the facts of an episode from its record."""
    episode, question = record.episode, record.question
    made_of = outcome(record)
    em = _exact_match(record)
    is_judged = made_of == "failed" or em is not None
    searches = [
        call
        for turn in episode.turns
        for call in turn.calls
        if call.is_search or call.document_ids  # reading a page retrieves too
    ]
    found_at, rank = _first_found([call.document_ids for call in searches], set(question.supporting_ids))
    returned = {document for call in searches for document in call.document_ids}
    return Facts(
        outcome=made_of,
        behaviours=detect_behaviours(question, episode),
        cause=error_cause(question, episode, em or 0.0) if is_judged else "",
        num_searches=episode.num_searches,
        num_empty=sum(1 for call in searches if call.is_search and not call.document_ids),
        found_at=found_at,
        rank=rank,
        is_complete=bool(question.supporting_ids) and set(question.supporting_ids) <= returned,
        action_tokens=sum(turn.num_action_tokens for turn in episode.turns),
        observation_tokens=sum(turn.num_observation_tokens for turn in episode.turns),
    )


def outcome(record: EpisodeRecord) -> str:
    """What became of an episode: right, wrong, none (no answer), failed, or unscored (its question has no answer)."""
    if record.episode.stop_reason is StopReason.INFRA_FAILURE:
        return "failed"
    em = _exact_match(record)
    if em is not None and em >= 1:
        return "right"
    if record.episode.answer is None:
        return "none"
    return "unscored" if em is None else "wrong"


def _exact_match(record: EpisodeRecord) -> float | None:
    """As recorded; worked out for experts' episodes, which have no score, and for rewards without such a part."""
    parts = record.reward.parts if record.reward else {}
    em = record.scores.get("em", parts.get("em"))
    if em is None and record.question.answers:
        em = float(exact_match(record.episode.answer, record.question.answers))
    return em


def _first_found(calls: Iterable[tuple[str, ...]], support: set[str]) -> tuple[int | None, int | None]:
    if not support:
        return None, None
    for number, documents in enumerate(calls, start=1):
        for rank, document in enumerate(documents, start=1):
            if document in support:
                return number, rank
    return 0, None
