"""What a policy does when searching fails: tries again, invents, or gives up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seekling.evaluate.behaviours import detect_behaviours
from seekling.evaluate.evidence import is_abstention
from seekling.evaluate.intervals import Rate, rate_of
from seekling.reward.looking import is_unanswerable
from seekling.types import EpisodeRecord, StopReason


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """Three rates; each is 0/0 where there is no such episode."""

    recovered: Rate
    """Of episodes with a failed search, those in which a later one shows a needed page or fact (`BEHAVIOURS`)."""
    false_answers: Rate
    """Of unanswerable questions, those that were given an answer other than that it is not known."""
    false_unknowns: Rate
    """Of answerable questions, those whose answer is that it is not known."""


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
    return RecoverySummary(
        recovered=rate_of(sum("recovery" in names for names in failed), len(failed)),
        false_answers=rate_of(sum(a is not None and not is_abstention(a) for a in unanswerable), len(unanswerable)),
        false_unknowns=rate_of(sum(is_abstention(answer) for answer in answerable), len(answerable)),
    )
