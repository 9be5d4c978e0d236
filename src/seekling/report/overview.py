"""What a page says of a run besides tables and curves: what was run, how far it is, and counts over its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from seekling.config import Recipe
from seekling.evaluate.behaviours import ERROR_CAUSES
from seekling.evaluate.episode_facts import EpisodeFacts, behaviour_rates
from seekling.evaluate.intervals import rate_of
from seekling.report.read import RunFolder
from seekling.types import EpisodeRecord, Json

_COURSE = ("expert", "sft", "rl", "eval-base", "eval-sft", "eval-rl")
"""In the order of a run."""
_UNITS = {"_bytes": (1e9, " GB"), "_gb": (1, " GB"), "_gib": (1, " GiB"), "_s": (1, " s")}
_MANY = 8
"""Episodes with this many searches or more are counted together."""


def headline_of(run: RunFolder) -> Iterator[list[Json]]:
    """Name and text of what a reader wants to know first; the run's own title comes first, under no name."""
    record, settings = run.record, run.settings
    yield ["", _text(run.recipe.get("name")) or run.name]
    model = record.get("model")
    spec = settings.model.spec if settings is not None else None
    versions = _object(record.get("versions"))
    facts: dict[str, Json] = {
        "model": _text(model.get("resolved") if isinstance(model, dict) else model) or spec,
        "protocol": settings.env.protocol if settings is not None else None,
        "best policy": _best(_object(run.progress.get("chosen"))),
        "seed": record.get("seed", settings.seed if settings is not None else None),
        "machine": _machine(record.get("machine")),
        "versions": ", ".join(f"{name} {versions[name]}" for name in ("seekling", "torch") if versions.get(name)),
        "time": _duration(sum(seconds_of(run).values())),
        "commit": _text(record.get("git_commit"))[:10],
        "episodes": f"{sum(len(file.all_items) for file in run.files):,}",
    }
    for name, text in facts.items():
        if text not in (None, "", "0"):
            yield [name, str(text)]


def seconds_of(run: RunFolder) -> dict[str, float]:
    """Seconds by stage: from the record of a finished run, or from the progress of one that goes on."""
    times = _object(run.record.get("seconds")) or _object(run.progress.get("seconds"))
    return {name: float(value) for name, value in times.items() if isinstance(value, int | float)}


def course_of(run: RunFolder) -> dict[str, Json] | None:
    """Which stages are done and which are open; None for a run that is finished, or does not say what it does.

    What a recipe of another version asks for is not known; that of a run without any is the default's.
    """
    done = run.progress.get("done")
    recipe = run.settings or (None if run.recipe else Recipe())
    if not isinstance(done, list) or recipe is None:
        return None
    planned = {"expert": recipe.has_sft, "sft": recipe.has_sft, "rl": recipe.rl.steps > 0}
    planned |= {f"eval-{name}": True for name in recipe.evaluations}
    left = [stage for stage in _COURSE if planned.get(stage) and stage not in done]
    if not left:
        return None
    steps = [step for row in run.metrics.get(left[0], []) if isinstance(step := row.get("step"), int)]
    of = f" of {recipe.rl.steps}" if left[0] == "rl" else ""
    return {
        "done": [stage for stage in _COURSE if stage in done],
        "open": list[Json](left),
        "where": f"step {steps[-1]}{of}" if steps else "",
    }


def panels(records: Sequence[EpisodeRecord], facts: Sequence[EpisodeFacts]) -> dict[str, Json]:
    """Behaviours, errors, retrieval and time of every stage of a run, by its records and the facts of each."""
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
            "time": {
                "seconds": _quantiles([record.episode.duration_s for record in kept]),
                "action_tokens": _quantiles([one.action_tokens for one in mine]),
                "observation_tokens": _quantiles([one.observation_tokens for one in mine]),
                "turns": _quantiles([len(record.episode.turns) for record in kept]),
            },
        }
    return stages


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
    return {
        "found": _share([bool(one.found_at) for one in known]),
        "complete": _share([one.is_complete for one in known]),
        "right_if_found": _share([one.outcome == "right" for one in scored if one.found_at]),
        "right_if_not": _share([one.outcome == "right" for one in scored if not one.found_at]),
        "empty": [sum(one.num_empty for one in facts), sum(one.num_searches for one in facts)],
        "found_at": _histogram([one.found_at or 0 for one in found]),
        "rank": _histogram([one.rank or 0 for one in found]),
        "searches": _histogram([one.num_searches for one in facts]),
    }


def _share(values: Sequence[bool]) -> Json:
    rate: Json = asdict(rate_of(sum(values), len(values)))
    return rate


def _histogram(values: Sequence[int]) -> list[Json]:
    counted = Counter(min(value, _MANY) for value in values)
    return [counted[value] for value in range(max(counted, default=-1) + 1)]


def _quantiles(values: Sequence[float]) -> Json:
    """Smallest, tenth, half, nine tenths, largest; nothing when there are no values or all are 0."""
    ordered = sorted(values)
    if not ordered or not any(ordered):
        return None
    return [round(float(ordered[round(share * (len(ordered) - 1))]), 3) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]


def _best(chosen: Mapping[str, Json]) -> str:
    """Which policy was chosen, by which figure; it is no test figure."""
    if not chosen:
        return ""
    name = f"RL step {chosen.get('step')}" if chosen.get("stage") == "rl" else "SFT"
    return f"{name} ({chosen.get('k')}/{chosen['n']} on dev)" if chosen.get("n") else f"{name}, the last"


def _machine(value: Json) -> str:
    """What the run recorded, or what any other version did, such as "Xeon, 15.6 GB memory, 2 cores"."""
    parts = []
    for name, part in _object(value).items():
        if isinstance(part, str) or part is True:
            parts.append(part if isinstance(part, str) else name)
        elif isinstance(part, int | float) and part:
            suffix, (size, unit) = next(((s, u) for s, u in _UNITS.items() if name.endswith(s)), ("", (1, "")))
            words = name.removesuffix(suffix).removeprefix("num_").replace("_", " ")
            parts.append(f"{part / size:.3g}{unit} {words}")
    return ", ".join(part for part in parts[:5] if part) or _text(value)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds else ""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
