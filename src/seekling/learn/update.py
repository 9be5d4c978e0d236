"""From a rollout's batch to optimizer steps: critic, old log-probabilities, KL costs, minibatches, streaming.

`rl.py` decides what is learned from; here it is learned. Everything is a function of batch, settings and weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from seekling.config import RlConfig
from seekling.errors import InfrastructureError, NothingToLearnError
from seekling.learn.advantage import generalized_advantages, whiten
from seekling.learn.batch import MAXIMA, MEANS, Batch, LearnStats
from seekling.learn.learner import Learner
from seekling.learn.loss import (
    KL_ESTIMATORS,
    TokenField,
    denominator,
    make_policy_loss,
    make_policy_measure,
    value_loss,
)
from seekling.learn.sft import Metrics
from seekling.types import Trajectory


class Updater:
    """Learns from the batches of one step after the other.

    Args:
        learner: weights to train; with a KL term it must have kept its reference, with GAE it must have a critic.
        config: of the loss, the steps and, with GAE, the critic.
    """

    def __init__(self, learner: Learner, config: RlConfig) -> None:
        self._learner, self._config = learner, config
        self._loss, self._measure = make_policy_loss(config.loss), make_policy_measure(config.loss)
        self._value_loss = partial(value_loss, value_clip=config.critic.value_clip)
        self._batches: list[Batch] = []
        self._streamed: list[LearnStats] = []

    def add(self, batch: Batch, *, version: int) -> None:
        """Take the batch of some groups of a step, maybe empty; when streaming, its gradients are added up now.

        `version` is that of the weights as they are now, counted in rollouts as the sampler was told.

        Raises:
            InfrastructureError: an episode was sampled with weights older than `rl.optimizer.max_staleness` allows.
        """
        if not batch.trajectories:
            return
        self._refuse_stale(batch.trajectories, version)
        if self._config.optimizer.stream_minibatches and not batch.num_trained_B.any():
            return  # of a whole step such trajectories are left out too
        self._batches.append(batch)
        if self._config.optimizer.stream_minibatches:
            part = self._with_logprobs(batch)
            # The step's size is not known yet: divided by it in `finish`.
            stats = self._learner.forward_backward(
                part, self._loss, aggregation=self._config.loss.aggregation, divide_by=1.0, measure=self._measure
            )
            self._streamed.append(stats)

    def _refuse_stale(self, trajectories: Sequence[Trajectory], version: int) -> None:
        oldest = min((number for each in trajectories for number in each.policy_versions), default=version)
        limit = self._config.optimizer.max_staleness
        if version - oldest > limit:
            raise InfrastructureError(
                f"an episode was sampled with weights of version {oldest}, and the learner is at version {version}: "
                f"{version - oldest} rollouts older, where rl.optimizer.max_staleness = {limit} allows {limit}; the "
                "sampler did not take the newest weights. Mend that, or raise rl.optimizer.max_staleness where "
                "sampling runs ahead on purpose"
            )

    def finish(self, *, rate: float, critic_rate: float) -> Metrics:
        """Take the optimizer steps, at these learning rates of policy and critic.

        Returns:
            Means over the optimizer steps; none when there was nothing to learn from, of skipped steps the number.
        """
        batches, self._batches = self._batches, []
        streamed, self._streamed = self._streamed, []
        if not batches:
            return {}
        if streamed:
            divisor = self._divisor(*batches)
            norm = self._learner.optim_step(rate, divide_by=divisor)
            if not math.isfinite(norm):
                return {"num_skipped_steps": 1}
            whole = _merge(streamed, loss=sum(stats.loss for stats in streamed) / divisor)
            return _metrics(whole) | _drift(whole) | {"grad_norm": norm, "num_skipped_steps": 0}
        (batch,) = batches
        return self._take_steps(batch, rate, critic_rate)

    def charges(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray] | None:
        """B arrays (T,): what the KL to the reference costs each action token, where `kl_in` is "reward", else None."""
        config = self._config.loss
        if config.kl_coefficient == 0 or config.kl_in == "loss" or not trajectories:
            return None
        estimate, charges = KL_ESTIMATORS[config.kl], []
        for each, reference_T in zip(trajectories, self._learner.reference_logprobs(trajectories), strict=True):
            kl_T = estimate(torch.from_numpy(each.logprobs_T), torch.from_numpy(reference_T)).numpy()
            charges.append(np.where(_trained(each), config.kl_coefficient * kl_T, 0.0))
        return charges

    def _take_steps(self, batch: Batch, rate: float, critic_rate: float) -> Metrics:
        config, learner, critic = self._config, self._learner, self._learner.critic
        if not batch.num_trained_B.any():
            raise NothingToLearnError(f"none of the {len(batch.trajectories)} trajectories has a trained token")
        more: Metrics = {}
        if config.has_critic:
            batch, more = self._with_critic(batch)
        batch = self._with_logprobs(batch)
        num_parts = min(config.optimizer.minibatches, len(batch.trajectories))
        bounds = np.linspace(0, len(batch.trajectories), num_parts + 1).astype(int).tolist()
        stats, norms, value_losses, num_skipped = [], [], [], 0
        spoilt: set[int] = set()  # once is enough: three skipped steps in a row would end the run
        passes = config.optimizer.rollout_epochs
        for start, stop in zip(bounds[:-1] * passes, bounds[1:] * passes, strict=True):
            part = batch.part(start, stop)
            if start in spoilt or not part.num_trained_B.any():
                continue
            if critic is not None:
                error = critic.forward_backward(part, self._value_loss).loss
                if math.isfinite(critic.optim_step(critic_rate)):
                    value_losses.append(error)
                else:
                    num_skipped += 1
                    spoilt.add(start)
            found = learner.forward_backward(
                part,
                self._loss,
                aggregation=config.loss.aggregation,
                divide_by=self._divisor(part),
                measure=self._measure,
            )
            norm = learner.optim_step(rate)
            if math.isfinite(norm):
                stats.append(found)
                norms.append(norm)
            else:
                num_skipped += 1
                spoilt.add(start)
        more["num_skipped_steps"] = num_skipped
        if value_losses:
            more["value_loss"] = float(np.mean(value_losses))
        if not stats:
            return more
        loss = float(np.mean([each.loss for each in stats]))
        # Only before the first update do sampler and learner have the same weights.
        return _metrics(_merge(stats, loss=loss)) | _drift(stats[0]) | more | {"grad_norm": float(np.mean(norms))}

    def _with_critic(self, batch: Batch) -> tuple[Batch, Metrics]:
        """Turn rewards, earned by the last action token, into advantages of tokens; add what the critic is to learn."""
        critic, config = self._learner.critic, self._config.critic
        assert critic is not None, 'baseline = "gae" needs a critic'
        values, charges = critic.values(batch.trajectories), self.charges(batch.trajectories)
        places = [np.flatnonzero(_trained(each)) for each in batch.trajectories]
        advantages, returns = [], []
        for index, where_A in enumerate(places):
            rewards_A = np.zeros(len(where_A)) if charges is None else -charges[index][where_A]
            rewards_A[-1:] += batch.advantages_B[index]
            found = generalized_advantages(
                rewards_A, values[index][where_A], gamma=config.gamma, gae_lambda=config.gae_lambda
            )
            advantages.append(found[0])
            returns.append(found[1])
        joined, errors = np.concatenate(returns), np.concatenate(advantages)
        metrics: Metrics = {"value_mean": float((joined - errors).mean()), "value_error": float(np.abs(errors).mean())}
        if config.whiten:
            advantages = whiten(advantages)
        per_token: dict[TokenField, Sequence[np.ndarray]] = {
            "advantages_A": _spread(advantages, places, batch.trajectories),
            "returns_A": _spread(returns, places, batch.trajectories),
            "old_values_A": values,
        }
        return replace(batch, per_token={**batch.per_token, **per_token}), metrics

    def _with_logprobs(self, batch: Batch) -> Batch:
        """Add what the loss divides by and is anchored to, where that takes passes of their own."""
        config = self._config.loss
        per_token: dict[TokenField, Sequence[np.ndarray]] = dict(batch.per_token)
        # In the only step after a rollout the current weights are the old ones: the loss needs no second pass.
        if config.old_logprobs == "recomputed" and self._config.updates_per_rollout > 1:
            per_token["old_logprobs_A"] = self._learner.logprobs(batch.trajectories)
        if config.kl_coefficient > 0 and config.kl_in == "loss":
            per_token["reference_logprobs_A"] = self._learner.reference_logprobs(batch.trajectories)
        return replace(batch, per_token=per_token)

    def _divisor(self, *batches: Batch) -> float:
        return denominator(
            np.concatenate([batch.num_trained_B for batch in batches]),
            self._config.loss.aggregation,
            represented_B=np.concatenate([batch.represented_B for batch in batches]),
            constant=self._config.loss.aggregation_tokens,
        )


def _trained(trajectory: Trajectory) -> np.ndarray:
    """(T,) bool: tokens that are learned from; a first token has nothing before it that could predict it."""
    mask_T = trajectory.train_mask_T.copy()
    mask_T[:1] = False
    return mask_T


def _spread(
    values: Sequence[np.ndarray], places: Sequence[np.ndarray], trajectories: Sequence[Trajectory]
) -> list[np.ndarray]:
    """(A,) arrays of action tokens -> (T,) arrays with 0 elsewhere."""
    spread = [np.zeros(len(each.token_ids_T)) for each in trajectories]
    for array_T, where_A, values_A in zip(spread, places, values, strict=True):
        array_T[where_A] = values_A
    return spread


def _merge(parts: Sequence[LearnStats], *, loss: float) -> LearnStats:
    num_trained = sum(part.num_trained_tokens for part in parts)
    means = {name: sum(part.num_trained_tokens * getattr(part, name) for part in parts) for name in MEANS}
    return LearnStats(
        loss=loss,
        num_trained_tokens=num_trained,
        num_packed_tokens=sum(part.num_packed_tokens for part in parts),
        num_plain_tokens=sum(part.num_plain_tokens for part in parts),
        **{name: total / num_trained for name, total in means.items()},
        **{name: max(getattr(part, name) for part in parts) for name in MAXIMA},
    )


def _drift(stats: LearnStats) -> Metrics:
    return {"logprob_drift": stats.drift_mean, "logprob_drift_max": stats.drift_max}


def _metrics(stats: LearnStats) -> Metrics:
    return {
        "loss": stats.loss,
        "entropy": stats.entropy,
        "kl_sampler": stats.kl_behaviour,
        "ratio_mean": stats.ratio_mean,
        "ratio_max": stats.ratio_max,
        "clip_fraction": stats.clip_fraction_low + stats.clip_fraction_high,
        "clip_fraction_low": stats.clip_fraction_low,
        "clip_fraction_high": stats.clip_fraction_high,
        "correction_ess": stats.weight_share,
        "trained_tokens": stats.num_trained_tokens,
        "packed_tokens": stats.num_packed_tokens,
        "plain_tokens": stats.num_plain_tokens,
    }
