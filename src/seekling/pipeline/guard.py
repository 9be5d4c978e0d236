"""The health guard of a run: looks at every RL step, warns, and goes back to the best state when asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from seekling.config import Recipe
from seekling.errors import InfrastructureError
from seekling.evaluate.behaviours import repeats_itself
from seekling.evaluate.health import PREFIX, ROLLED_BACK, find_signs, is_best_yet, is_collapse, num_rollbacks
from seekling.learn.rl import RlRun, has_difference
from seekling.pipeline.reporter import Reporter
from seekling.pipeline.run_folder import Mark, RunFolder, TrainingState
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord


class HealthGuard:
    """Watches a run's RL stage. Its memory is the metrics on record, so it goes on where an earlier process stopped.

    Args:
        recipe: its sections checkpoint and rl.
        folder: of the run; its logs end at the step from which training goes on.
        restore: called with the state to go back to at a rollback.
        run: gets the steps without anything to learn from, and the lower learning rate.
        reporter: gets the warnings.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        restore: Callable[[TrainingState], None],
        run: RlRun,
        reporter: Reporter,
    ) -> None:
        self._config, self._best_every = recipe.rl.health, recipe.checkpoint.best_every
        self._drift_limit = recipe.rl.loss.drift_limit
        self._folder, self._restore, self._run, self._reporter = folder, restore, run, reporter
        rows = {int(row["step"]): row for row in folder.read_metrics("rl")}
        # A damaged row is missing from the log; the others keep their places.
        self._history: list[Mapping[str, float]] = [rows.get(step, {}) for step in range(1, max(rows, default=0) + 1)]
        self.mark: Mark = ""
        """What the state after the newest step is."""
        run.rate_scale = self._config.rate_factor ** num_rollbacks(self._history)
        steps = enumerate(self._history, start=1)
        busy = [step for step, row in steps if has_difference(row, recipe.rl) or ROLLED_BACK in row]
        run.idle_steps = len(self._history) - max(busy, default=0)

    def look(self, metrics: Mapping[str, float], records: Sequence[EpisodeRecord]) -> dict[str, float]:
        """Take in a step: its metrics and its episodes.

        Returns:
            The metrics, with those that only health needs, the signs of collapse, and where training went back to.

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
        if is_collapse(signs) and self._config.action == "rollback":
            self._roll_back(row)
        self.mark = self._judge()
        return row

    def _judge(self) -> Mark:
        if not self._best_every or len(self._history) % self._best_every:
            return ""
        return "better" if is_best_yet(self._history, self._best_every) else "candidate"

    def _roll_back(self, row: dict[str, float]) -> None:
        best = self._folder.rollback_state
        if best is None or num_rollbacks(self._history) >= self._config.max_rollbacks:
            return
        self._restore(best)
        self._run.idle_steps = 0
        row[ROLLED_BACK] = best.step
        self._run.rate_scale = scale = self._run.rate_scale * self._config.rate_factor
        step = len(self._history)
        self._reporter.line(f"step {step}: back to the weights of step {best.step}, learning rate x {scale:g}")


def check_drift(where: str, mean: float, largest: float, limit: float) -> None:
    """Stop when a sampler has not the learner's weights.

    Args:
        where: for the message.
        mean: absolute difference between their log-probabilities of sampled tokens, in nats per token.
        largest: of the differences.
        limit: `rl.loss.drift_limit`; 0 stops nothing.

    Raises:
        InfrastructureError: the mean is above the limit.
    """
    if limit and not mean <= limit:  # NaN is no agreement
        raise InfrastructureError(
            f"{where}: sampler and learner differ by {mean:.3g} nats in the log-probability of a sampled token (mean; "
            f"the largest is {largest:.3g}); the same weights stay below {limit:g}, so the sampler's are stale or "
            "damaged. Nothing after the last saved state is kept; give the same command to go on from there, or raise "
            "rl.loss.drift_limit when the sampler's arithmetic is coarser"
        )


def health_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """What only the guard needs to know of a step's episodes.

    Args:
        records: of the step; those without a reward failed and are left out.

    Returns:
        The share that repeats itself, and the mean log-probability per token of right episodes, where there are any.
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
