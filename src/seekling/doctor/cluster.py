"""How the samplers of a Ray run are doing, from what the run itself writes: `metrics.jsonl` and `ledger.jsonl`.

It can be asked while the run goes on, on any machine that sees the run folder. Nothing is written, no cluster is asked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from seekling.errors import DataError
from seekling.types import Json

_RATE = re.compile(r"sampler_(\d+)_tokens_per_s")
HIGH_IDLE, HIGH_LEARNING, HIGH_SYNC, UNEVEN = 0.25, 0.5, 0.1, 2.0
"""From where on there is advice: shares of the samplers' time, of a step, and of sampling; fastest over slowest."""


@dataclass(frozen=True, slots=True)
class SamplerHealth:
    """One sampler; its processes, where one took another's place, together."""

    number: int
    tokens_per_s: float
    """Of its groups, by the seconds of the rollout."""
    num_groups: int
    """Handed to it in the whole run."""
    num_used: int
    num_dropped: int
    num_out: int
    """Not back yet; in a run that was killed, those that it had then."""
    num_deaths: int


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Means over the last RL steps, unless said otherwise."""

    first_step: int
    last_step: int
    samplers: tuple[SamplerHealth, ...]
    idle_share: float
    """Of all samplers' time during rollouts, that in which they had nothing."""
    queue_depth: float
    """Groups that waited for a sampler."""
    staleness: float
    """Versions behind the learner, of a step's oldest token."""
    max_staleness: int
    weights_write_s: float
    weights_read_s: float
    """The slowest sampler's."""
    sample_s: float
    learn_s: float
    num_redispatched: int
    """Groups that were handed out again, in these steps."""
    reasons: Mapping[str, int]
    """Why groups were dropped, in the whole run."""

    @property
    def advice(self) -> list[str]:
        """What to change, the costliest first; empty where nothing stands out."""
        found = []
        if self.learn_s > HIGH_LEARNING * (self.sample_s + self.learn_s):
            found.append("learning is most of a step: more scale.learner_ranks help, more samplers do not")
        if self.idle_share > HIGH_IDLE and self.queue_depth < 1:
            found.append(
                "samplers had nothing to do while others finished: fewer of them, more rl.questions_per_step, or "
                "rl.optimizer.max_staleness above 0"
            )
        elif self.queue_depth >= len(self.samplers):
            found.append("groups queue for samplers: more scale.num_samplers, or a larger rollout.in_flight")
        if self.weights_write_s + self.weights_read_s > HIGH_SYNC * self.sample_s:
            found.append(
                "weights take long to arrive: a faster disk for scale.weights_dir, fewer samplers with more cores, or "
                "adapters alone (model.lora_rank)"
            )
        rates = [each.tokens_per_s for each in self.samplers]
        if min(rates) * UNEVEN < max(rates):
            slowest = min(self.samplers, key=lambda each: each.tokens_per_s).number
            found.append(f"sampler {slowest} is far slower than the fastest: look at its machine")
        if dead := [each.number for each in self.samplers if each.num_deaths]:
            found.append(f"samplers {', '.join(map(str, dead))} died: `ledger.jsonl` has when and why")
        return found


def cluster_health(run: Path, *, last: int = 20) -> ClusterHealth:
    """Read what a run says of its samplers.

    Args:
        run: its folder.
        last: RL steps to average over.

    Raises:
        DataError: it has no RL step with samplers on Ray, perhaps not yet.
    """
    by_step = {step: row for row in _rows(run / "metrics.jsonl") if (step := _step_on_ray(row))}
    if not by_step:
        raise DataError(
            f"{run} has no finished RL step whose episodes were sampled on Ray; name the folder of a run with "
            'scale.engine = "ray" that has reached RL'
        )
    rows = [by_step[step] for step in sorted(by_step)[-last:]]
    events = _rows(run / "ledger.jsonl")
    return ClusterHealth(
        first_step=int(_number(rows[0], "step")),
        last_step=int(_number(rows[-1], "step")),
        samplers=_samplers(rows, events),
        idle_share=_mean(rows, "samplers_idle_share"),
        queue_depth=_mean(rows, "queue_depth"),
        staleness=_mean(rows, "staleness"),
        max_staleness=int(max(_number(row, "staleness") for row in rows)),
        weights_write_s=_mean(rows, "weights_write_s"),
        weights_read_s=_mean(rows, "weights_read_s"),
        sample_s=_mean(rows, "sample_s"),
        learn_s=_mean(rows, "learn_s"),
        num_redispatched=int(sum(_number(row, "num_redispatched_groups") for row in rows)),
        reasons=Counter(str(event["why"]) for event in events if event.get("event") == "dropped"),
    )


def _samplers(rows: Sequence[Mapping[str, Json]], events: Sequence[Mapping[str, Json]]) -> tuple[SamplerHealth, ...]:
    owners = {event["attempt"]: event["sampler"] for event in events if event.get("event") == "dispatched"}
    ends: dict[Json, str] = {}
    for event in events:  # a group that was used may be dropped after all, when the run goes on from an earlier state
        if event.get("event") in ("used", "dropped"):
            ends[event["attempt"]] = str(event["event"])
    handed, ended = Counter(owners.values()), Counter((owners.get(attempt), end) for attempt, end in ends.items())
    deaths = Counter(event["sampler"] for event in events if event.get("event") == "died")
    numbers = sorted({int(found[1]) for row in rows for name in row if (found := _RATE.fullmatch(name))})
    return tuple(
        SamplerHealth(
            number=number,
            tokens_per_s=_mean(rows, f"sampler_{number}_tokens_per_s"),
            num_groups=handed[number],
            num_used=ended[number, "used"],
            num_dropped=ended[number, "dropped"],
            num_out=handed[number] - ended[number, "used"] - ended[number, "dropped"],
            num_deaths=deaths[number],
        )
        for number in numbers
    )


def _step_on_ray(row: Mapping[str, Json]) -> int:
    """The step's number; 0: it is none of RL on Ray."""
    return int(_number(row, "step")) if row.get("stage") == "rl" and "samplers_idle_share" in row else 0


def _rows(path: Path) -> list[dict[str, Json]]:
    """The JSON objects of a file that may be growing; a line that is cut short, as the last may be, is passed over."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _mean(rows: Sequence[Mapping[str, Json]], name: str) -> float:
    return fmean(_number(row, name) for row in rows)


def _number(row: Mapping[str, Json], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
