"""The health guard of a run: looks at every RL step, and warns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seekling.config import Recipe
from seekling.errors import InfrastructureError
from seekling.evaluate.behaviours import repeats_itself
from seekling.evaluate.health import PREFIX, find_signs
from seekling.learn.rl import RlRun, has_difference
from seekling.pipeline.reporter import Reporter
from seekling.pipeline.run_folder import RunFolder
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord


class HealthGuard:
    """Watches a run's RL stage. Its memory is the metrics on record, so it goes on where an earlier process stopped.

    `folder` has logs that end at the step from which training goes on; `run` gets the steps without anything to learn
    from.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, run: RlRun, reporter: Reporter) -> None:
        self._config, self._reporter = recipe.rl.health, reporter
        # Episodes sampled ahead differ from the learner as they should; what is published is probed all the same.
        self._drift_limit = 0.0 if recipe.runs_ahead else recipe.rl.loss.drift_limit
        rows = {int(row["step"]): row for row in folder.read_metrics("rl")}
        # A damaged row is missing from the log; the others keep their places.
        self._history: list[Mapping[str, float]] = [rows.get(step, {}) for step in range(1, max(rows, default=0) + 1)]
        busy = [step for step, row in enumerate(self._history, start=1) if has_difference(row, recipe.rl)]
        run.idle_steps = len(self._history) - max(busy, default=0)

    def look(self, metrics: Mapping[str, float], records: Sequence[EpisodeRecord]) -> dict[str, float]:
        """Take in a step; gives its metrics, with those that only health needs and the signs of collapse.

        Raises:
            InfrastructureError: the sampler did not have the learner's weights.
        """
        drift, largest = metrics.get("logprob_drift", 0.0), metrics.get("logprob_drift_max", 0.0)
        check_drift(f"RL step {len(self._history) + 1}", drift, largest, self._drift_limit)
        row = {**metrics, **health_metrics(records)}
        before = self._history[-1] if self._history else {}
        self._history.append(row)
        signs = find_signs(self._history, self._config)
        row |= {f"{PREFIX}{sign.name}": sign.value for sign in signs}
        for sign in signs:
            if f"{PREFIX}{sign.name}" not in before:
                self._reporter.line(f"warning: step {len(self._history)}: {sign}")
        return row


def check_drift(where: str, mean: float, largest: float, limit: float) -> None:
    """Stop when a sampler has not the learner's weights.

    `mean` and `largest` are absolute differences between their log-probabilities of sampled tokens, in nats per token.

    Raises:
        InfrastructureError: the mean is above the limit, `rl.loss.drift_limit`; 0 stops nothing.
    """
    if limit and not mean <= limit:  # NaN is no agreement
        raise InfrastructureError(
            f"{where}: sampler and learner differ by {mean:.3g} nats in the log-probability of a sampled token (mean; "
            f"the largest is {largest:.3g}); the same weights stay below {limit:g}, so the sampler's are stale or "
            "damaged. Nothing after the last saved state is kept; give the same command to go on from there, or raise "
            "rl.loss.drift_limit when the sampler's arithmetic is coarser"
        )


def health_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """The share of a step's episodes that repeats itself, and the mean log-probability per token of right ones.

    Those without a reward failed, and are left out.
    """
    kept = [record for record in records if record.reward is not None]
    if not kept:
        return {}
    found = {"repetition_rate": float(np.mean([repeats_itself(record.episode) for record in kept]))}
    right = [record.episode for record in kept if exact_match(record.episode.answer, record.question.answers)]
    logprobs = [value for episode in right for turn in episode.turns for value in turn.action_logprobs]
    if logprobs:
        found["logprob_right_mean"] = float(np.mean(logprobs))
    return found
