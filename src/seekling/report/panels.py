"""Figures over the episodes of a stage: behaviours, errors, retrieval, time. Counted from facts, each with its n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from seekling.evaluate.behaviour_rates import behaviour_rates
from seekling.evaluate.behaviours import ERROR_CAUSES
from seekling.evaluate.episode_facts import EpisodeFacts
from seekling.evaluate.intervals import rate_of
from seekling.types import EpisodeRecord, Json

_MANY = 8
"""Episodes with this many searches or more are counted together."""


def panels(records: Sequence[EpisodeRecord], facts: Sequence[EpisodeFacts]) -> dict[str, Json]:
    """The panels of every stage of a run, by its records and the facts of each."""
    by_stage: dict[str, list[tuple[EpisodeRecord, EpisodeFacts]]] = {}
    for record, one in zip(records, facts, strict=True):
        by_stage.setdefault(record.stage, []).append((record, one))
    stages: dict[str, Json] = {}
    for stage, pairs in by_stage.items():
        kept = [record for record, one in pairs if one.outcome != "failed"]
        mine = [one for _, one in pairs if one.outcome != "failed"]
        behaviours = behaviour_rates([one.behaviours for one in mine])
        stages[stage] = {
            "episodes": len(pairs),
            # Episodes of one question are no independent trials; an interval that takes them for such is too narrow.
            "is_sample": len({record.question.key for record in kept}) == len(kept),
            "behaviours": {name: asdict(rate) for name, rate in behaviours.items()},
            "causes": _causes([one for _, one in pairs]),
            "retrieval": _retrieval(mine),
            "time": _time(kept, mine),
        }
    return stages


def _rate(k: int, n: int) -> Json:
    rate: Json = asdict(rate_of(k, n))
    return rate


def _causes(facts: Sequence[EpisodeFacts]) -> dict[str, Json]:
    """Every episode once: right, a cause, or unscored."""
    counted = Counter(
        "right" if one.outcome == "right" else one.cause or ("failed" if one.outcome == "failed" else "unscored")
        for one in facts
    )
    return {name: counted[name] for name in ("right", *ERROR_CAUSES, "failed", "unscored") if counted[name]}


def _retrieval(facts: Sequence[EpisodeFacts]) -> dict[str, Json]:
    known = [one for one in facts if one.found_at is not None]
    found = [one for one in known if one.found_at]
    scored = [one for one in known if one.outcome != "unscored"]
    hits = [one for one in scored if one.found_at]
    misses = [one for one in scored if not one.found_at]
    num_searches = sum(one.num_searches for one in facts)
    return {
        "found": _rate(len(found), len(known)),
        "complete": _rate(sum(one.is_complete for one in known), len(known)),
        "right_if_found": _rate(sum(one.outcome == "right" for one in hits), len(hits)),
        "right_if_not": _rate(sum(one.outcome == "right" for one in misses), len(misses)),
        "empty": [sum(one.num_empty for one in facts), num_searches],
        "found_at": _histogram([one.found_at or 0 for one in found]),
        "rank": _histogram([one.rank or 0 for one in found]),
        "searches": _histogram([one.num_searches for one in facts]),
    }


def _histogram(values: Sequence[int]) -> list[Json]:
    counted = Counter(min(value, _MANY) for value in values)
    return [counted[value] for value in range(max(counted, default=-1) + 1)]


def _time(records: Sequence[EpisodeRecord], facts: Sequence[EpisodeFacts]) -> dict[str, Json]:
    return {
        "seconds": _quantiles([record.episode.duration_s for record in records]),
        "action_tokens": _quantiles([one.action_tokens for one in facts]),
        "observation_tokens": _quantiles([one.observation_tokens for one in facts]),
        "turns": _quantiles([len(record.episode.turns) for record in records]),
    }


def _quantiles(values: Sequence[float]) -> Json:
    """Smallest, tenth, half, nine tenths, largest; nothing when there are no values or all are 0."""
    ordered = sorted(values)
    if not ordered or not any(ordered):
        return None
    return [round(float(ordered[round(share * (len(ordered) - 1))]), 3) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]
