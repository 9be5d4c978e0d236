"""What a policy does when searching fails: tries again, invents, or gives up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from seekling.evaluate.episode_facts import EpisodeFacts
from seekling.evaluate.evidence import is_abstention, is_fact_shown, needs_of
from seekling.evaluate.intervals import Rate, rate_of
from seekling.reward.functions import is_unanswerable
from seekling.types import EpisodeRecord, Turn


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """Rates; each is 0/0 where there is no such episode."""

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


def summarize_recovery(kept: Sequence[tuple[EpisodeRecord, EpisodeFacts]]) -> RecoverySummary:
    """Work out the rates of one evaluation's episodes, those that failed left out."""
    answers = {
        wanted: [record.episode.answer for record, _ in kept if is_unanswerable(record.question) is wanted]
        for wanted in (True, False)
    }
    followed = [pair for record, _ in kept for pair in _followed(record)]
    return RecoverySummary(
        recovered=_share("recovery" in facts.behaviours for _, facts in kept if "failed_search" in facts.behaviours),
        false_answers=_share(answer is not None and not is_abstention(answer) for answer in answers[True]),
        false_unknowns=_share(is_abstention(answer) for answer in answers[False]),
        stopped_when_shown=_share(is_claim for is_enough, is_claim in followed if is_enough),
        went_on_when_not=_share(not is_claim for is_enough, is_claim in followed if not is_enough),
    )


def _share(facts: Iterable[bool]) -> Rate:
    values = list(facts)
    return rate_of(sum(values), len(values))


def _followed(record: EpisodeRecord) -> Iterator[tuple[bool, bool]]:
    """For every observation: whether all observed by then was enough, and whether the next turn claims an answer."""
    question, episode = record.question, record.episode
    # Of questions side by side without hops only the pages are known; text of all of them is taken for enough.
    has_answer = bool(needs_of(question)[-1].answers) or (question.is_side_by_side and not question.hops)
    for number, (turn, following) in enumerate(pairwise(episode.turns), 1):
        if turn.calls and following.kind != "invalid":
            seen = replace(episode, turns=episode.turns[:number])
            yield has_answer and is_fact_shown(question, seen), _is_claim(following)


def _is_claim(turn: Turn) -> bool:
    return turn.kind == "answer" and not is_abstention(turn.payload)
