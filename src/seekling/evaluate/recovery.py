"""What a policy does when searching fails: tries again, invents, or gives up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from seekling.evaluate.behaviours import detect_behaviours
from seekling.evaluate.evidence import is_abstention, is_fact_shown, needs_of
from seekling.evaluate.intervals import Rate, rate_of
from seekling.reward.looking import is_unanswerable
from seekling.types import EpisodeRecord, StopReason, Turn


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """Three rates; each is 0/0 where there is no such episode."""

    recovered: Rate
    """Of episodes with a failed search, those in which a later one shows a needed page or fact (`BEHAVIOURS`)."""
    false_answers: Rate
    """Of unanswerable questions, those that were given an answer other than that it is not known."""
    false_unknowns: Rate
    """Of answerable questions, those whose answer is that it is not known."""
    stopped_when_shown: Rate | None = None
    """Of observations after which all that the question needs was shown, those that an answer followed which is not
    that it is unknown. None in files of older versions."""
    went_on_when_not: Rate | None = None
    """Of observations after which something was missing, those that another search followed, or that it is unknown."""


def summarize_recovery(records: Iterable[EpisodeRecord]) -> RecoverySummary:
    """Work out the rates; episodes that ended in an infrastructure failure are left out.

    Args:
        records: of one evaluation.
    """
    kept = [record for record in records if record.episode.stop_reason is not StopReason.INFRA_FAILURE]
    shown = [detect_behaviours(record.question, record.episode) for record in kept]
    failed = [names for names in shown if "failed_search" in names]
    unanswerable = [record.episode.answer for record in kept if is_unanswerable(record.question)]
    answerable = [record.episode.answer for record in kept if not is_unanswerable(record.question)]
    sufficient, insufficient = (
        [turn for record in kept for is_enough, turn in _followed(record) if is_enough is wanted]
        for wanted in (True, False)
    )
    return RecoverySummary(
        recovered=rate_of(sum("recovery" in names for names in failed), len(failed)),
        false_answers=rate_of(sum(a is not None and not is_abstention(a) for a in unanswerable), len(unanswerable)),
        false_unknowns=rate_of(sum(is_abstention(answer) for answer in answerable), len(answerable)),
        stopped_when_shown=rate_of(
            sum(turn.kind == "answer" and not is_abstention(turn.payload) for turn in sufficient), len(sufficient)
        ),
        went_on_when_not=rate_of(
            sum(turn.kind != "answer" or is_abstention(turn.payload) for turn in insufficient), len(insufficient)
        ),
    )


def _followed(record: EpisodeRecord) -> Iterator[tuple[bool, Turn]]:
    """Whether what had been observed by then was enough, and the turn that followed, for every observation."""
    question, episode = record.question, record.episode
    # Of questions side by side without hops only the pages are known; text of all of them is taken for enough.
    has_answer = bool(needs_of(question)[-1].answers) or (question.is_side_by_side and not question.hops)
    for number, (turn, following) in enumerate(pairwise(episode.turns), 1):
        if turn.calls and following.kind != "invalid":
            seen = replace(episode, turns=episode.turns[:number])
            yield has_answer and is_fact_shown(question, seen), following
