"""What was run, how far it is and how long it took, in words, from files that may hold anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from seekling.config import Recipe
from seekling.report.read import RunFolder
from seekling.types import Json

_COURSE = ("expert", "sft", "rl", "eval-base", "eval-sft", "eval-rl")
"""In the order of a run."""
_UNITS = {"_bytes": (1e9, " GB"), "_gb": (1, " GB"), "_gib": (1, " GiB"), "_s": (1, " s")}


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


def _best(chosen: Mapping[str, Json]) -> str:
    """Which policy was chosen, by which figure; it is no test figure."""
    if not chosen:
        return ""
    name = f"RL step {chosen.get('step')}" if chosen.get("stage") == "rl" else "SFT"
    return f"{name} ({chosen.get('k')}/{chosen['n']} on dev)" if chosen.get("n") else f"{name}, the last"


def _machine(value: Json) -> str:
    """What `describe_machine` recorded, or what any other version did, such as "Xeon, 15.6 GB memory, 2 cores"."""
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
