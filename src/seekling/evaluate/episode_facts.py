"""What is known of episodes besides their text: what became of each, why, what it did, and how often that happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from seekling.evaluate.behaviours import BEHAVIOURS, PROGRAM_BEHAVIOURS, detect_behaviours, error_cause
from seekling.evaluate.evidence import is_abstention, is_fact_shown, needs_of
from seekling.evaluate.intervals import Rate, rate_of
from seekling.reward.functions import is_unanswerable
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, StopReason, Turn


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What counts and filters are made of."""

    outcome: str
    """right, wrong, none (no answer), failed (infrastructure) or unscored (no gold answer)."""
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
    """Work out the facts of an episode; `em` is its exact match, None takes the recorded one or works it out."""
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
        num_empty=sum(call.is_search and not call.document_ids for call in searches),
        found_at=found_at,
        rank=rank,
        is_complete=bool(support) and support <= {document for call in searches for document in call.document_ids},
        action_tokens=sum(turn.num_action_tokens for turn in episode.turns),
        observation_tokens=sum(turn.num_observation_tokens for turn in episode.turns),
    )


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A behaviour's rate among the episodes of a few steps."""

    step: int
    """The last of the steps."""
    rate: Rate


def behaviour_rates(shown: Sequence[Collection[str]], *, has_programs: bool = True) -> dict[str, Rate]:
    """The share of episodes that show each behaviour, in the order of `BEHAVIOURS`.

    `shown` has the behaviours of each episode that did not fail. Where none could write a program (`has_programs`),
    what only programs show is left out.
    """
    counts = Counter(name for names in shown for name in names)
    possible = (name for name in BEHAVIOURS if has_programs or name not in PROGRAM_BEHAVIOURS)
    return {name: rate_of(counts[name], len(shown)) for name in possible}


def behaviour_curves(
    shown: Iterable[tuple[int, Collection[str]]], *, max_points: int = 40
) -> dict[str, list[CurvePoint]]:
    """How often each behaviour that was ever shown is shown as training goes on, in the order of steps.

    `shown` has step and behaviours of every episode that did not fail. Neighbouring steps share one point until a curve
    has no more than `max_points`. Episodes of one question are not independent: the intervals are a little narrow.
    """
    by_step: dict[int, list[Collection[str]]] = {}
    for step, names in shown:
        by_step.setdefault(step, []).append(names)
    steps = sorted(by_step)
    window = max(1, -(-len(steps) // max_points))
    curves: dict[str, list[CurvePoint]] = {name: [] for name in BEHAVIOURS}
    for start in range(0, len(steps), window):
        some = steps[start : start + window]
        for name, rate in behaviour_rates([names for step in some for names in by_step[step]]).items():
            curves[name].append(CurvePoint(some[-1], rate))
    return {name: points for name, points in curves.items() if any(point.rate.k for point in points)}


def first_change(curve: Sequence[CurvePoint]) -> CurvePoint | None:
    """When a behaviour appears or goes: the first point whose interval lies wholly above or below the first point's."""
    first = curve[0].rate
    return next((point for point in curve if point.rate.low > first.high or point.rate.high < first.low), None)


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """What a policy does when searching fails: tries again, invents, or gives up."""

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


def _outcome(record: EpisodeRecord, em: float | None) -> str:
    if record.episode.stop_reason is StopReason.INFRA_FAILURE:
        return "failed"
    if em is not None and em >= 1:
        return "right"
    if record.episode.answer is None:
        return "none"
    return "unscored" if em is None else "wrong"


def _exact_match(record: EpisodeRecord) -> float | None:
    """Experts' episodes have no score, and some rewards no such part."""
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
