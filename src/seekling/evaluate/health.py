"""Signs that RL is collapsing, read from the metrics of its steps: pure functions of the history.

Each sign compares the median of the last few steps with that of the first few; one alone may be a change of style.

Source: likelihood of right episodes, Lazy Likelihood Displacement (arXiv:2512.04220); the limits are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from seekling.config import HealthConfig

Metrics = Mapping[str, float]
"""Of one step, by name; steps without anything to learn lack some."""

PREFIX = "health_"
"""Of the metrics that record a sign."""
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "entropy_low": "the policy hardly varies any more (entropy)",
        "entropy_high": "the policy writes at random (entropy)",
        "likelihood": "right episodes have become unlikely (log-probability per token)",
        "kl": "sampler and learner disagree (KL per token)",
        "repetition": "episodes repeat themselves (share)",
        "length": "episodes have grown long (action tokens)",
        "invalid": "actions cannot be read (share)",
        "reward": "the reward has fallen (mean)",
    }
)


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that is not as it was."""

    name: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{MEANINGS[self.name]}: {self.value:.3g}, limit {self.limit:.3g}"


def find_signs(history: Sequence[Metrics], config: HealthConfig) -> list[Sign]:
    """The signs of collapse after the newest of all RL steps so far, in the order of `MEANINGS`.

    The first `window` steps are taken for healthy; there is no sign before another has passed.
    """
    if config.action == "off" or len(history) < 2 * config.window:
        return []
    first, last = history[: config.window], history[-config.window :]
    return list(_signs(first, last, history, config))


def describe_health(history: Sequence[Mapping[str, object]]) -> list[str]:
    """What the logged metrics of a run's RL steps say about its health, as sentences for people.

    One for every sign at the step at which it came up, and every skipped update; damage is passed over.
    """
    sentences: list[str] = []
    shown: set[str] = set()
    for row in history:
        signs = {name.removeprefix(PREFIX) for name in row if name.startswith(PREFIX)} & MEANINGS.keys()
        for name in (name for name in MEANINGS if name in signs - shown):
            value = row[PREFIX + name]
            size = f": {value:.3g}" if isinstance(value, int | float) else ""
            sentences.append(f"Step {row.get('step')}: {MEANINGS[name]}{size}.")
        if row.get("num_skipped_steps"):
            sentences.append(f"Step {row.get('step')}: a gradient was not finite; its update was skipped.")
        shown = signs
    return sentences


def _signs(
    first: Sequence[Metrics], last: Sequence[Metrics], history: Sequence[Metrics], config: HealthConfig
) -> Iterator[Sign]:
    """Medians of now against limits by those at the beginning; a comparison with a NaN is never a sign."""
    entropy, likelihood = _median(first, "entropy"), _median(first, "logprob_right_mean")
    for name, metric, limit in (
        ("entropy_low", "entropy", entropy * config.entropy_fall),
        ("entropy_high", "entropy", entropy + config.entropy_rise),
        ("likelihood", "logprob_right_mean", likelihood - config.likelihood_fall),
        ("kl", "kl_sampler", config.kl_limit),
        ("repetition", "repetition_rate", _median(first, "repetition_rate") + config.repetition_rise),
        ("length", "action_tokens_mean", _median(first, "action_tokens_mean") * config.length_growth),
        ("invalid", "invalid_rate", _median(first, "invalid_rate") + config.invalid_rise),
    ):
        now = _median(last, metric)
        if now < limit if name in ("entropy_low", "likelihood") else now > limit:
            yield Sign(name, now, limit)
    size = config.window
    best = max(_mean(history[start : start + size], "reward_mean") for start in range(len(history) - size + 1))
    reward = _mean(last, "reward_mean")
    if best > 0 and reward < best * config.reward_fall:
        yield Sign("reward", reward, best * config.reward_fall)


def _median(rows: Sequence[Metrics], metric: str) -> float:
    values = [row[metric] for row in rows if metric in row]
    return float(np.median(values)) if values else float("nan")


def _mean(rows: Sequence[Metrics], metric: str) -> float:
    return float(np.mean([row.get(metric, 0.0) for row in rows]))
