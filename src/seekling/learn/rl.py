"""The main flow: questions -> rollout -> reward -> advantages -> pack -> loss -> step -> publish weights -> log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from seekling.config import RlConfig
from seekling.errors import NothingToLearnError
from seekling.learn.advantage import group_advantages, most_varied
from seekling.learn.learner import Batch, Learner, LearnStats
from seekling.learn.loss import clipped_policy_loss
from seekling.learn.schedule import scheduled_rate
from seekling.learn.sft import Metrics
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.sampler import Sampler, derive_seed
from seekling.types import Episode, EpisodeGroup, EpisodeRecord, Question, Reward, StopReason, Trajectory

PATIENCE_STEPS = 10
"""This many steps in a row without a single group to learn from end the run."""

RewardFunction = Callable[[Episode, Question], Reward]
OnStep = Callable[[int, Metrics, list[EpisodeRecord]], None]


class RlRun:
    """State that must survive from step to step beside the weights; a resumed run starts it from the step number."""

    def __init__(self, questions: Sequence[Question], config: RlConfig, *, seed: int) -> None:
        self.questions, self.config, self.seed = questions, config, seed
        self.idle_steps = 0

    def step_questions(self, step: int) -> list[Question]:
        """The questions of a step: an endless walk through reshuffled epochs, a function of seed and step alone."""
        count = len(self.questions)
        first = step * self.config.questions_per_step
        chosen = []
        for position in range(first, first + self.config.questions_per_step):
            epoch, index = divmod(position, count)
            order = np.random.default_rng([self.seed, epoch]).permutation(count)
            chosen.append(self.questions[order[index]])
        return chosen


def train(
    learner: Learner,
    sampler: Sampler,
    roller: Roller,
    run: RlRun,
    *,
    decoding: Decoding,
    reward: RewardFunction,
    on_step: OnStep,
    first_step: int = 0,
) -> None:
    """Train by group-relative policy optimisation.

    Args:
        learner: weights to train; with a KL term it must have kept its reference.
        sampler: gets the weights before every rollout.
        roller: questions to episodes through the same sampler.
        run: questions, settings, seed.
        decoding: of the rollouts.
        reward: of an episode; not called for infrastructure failures.
        on_step: called with the step's number, from 1, its metrics and its scored episodes; may save, or raise to stop.
        first_step: steps that an earlier process has done.

    Raises:
        NothingToLearnError: for PATIENCE_STEPS steps in a row all groups had equal rewards.

    Source: GRPO (arXiv:2402.03300) on search episodes as Search-R1 (arXiv:2503.09516).
    """
    config = run.config
    loss = partial(
        clipped_policy_loss,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_coefficient=config.kl_coefficient,
    )
    for step in range(first_step, config.steps):
        started = time.perf_counter()
        sampler.load_weights(learner.export_weights(), version=step)
        groups = roller.rollout(
            run.step_questions(step),
            decoding,
            group_size=config.group_size,
            seed=derive_seed(run.seed, "rl", step),
        )
        sampler.release_caches()
        sampled_s = time.perf_counter() - started
        records, batch = score_groups(groups, reward, config, step=step + 1)
        metrics = rollout_metrics(groups, records)
        metrics["learning_rate"] = scheduled_rate(
            config.learning_rate, step, total=config.steps, warmup=config.warmup_steps
        )
        if batch.trajectories:
            reference = None
            if config.kl_coefficient > 0:
                reference = learner.reference_logprobs(batch.trajectories)
            stats = learner.forward_backward(batch, loss, reference_logprobs=reference)
            metrics["grad_norm"] = learner.optim_step(metrics["learning_rate"])
            metrics |= _learn_metrics(stats)
            run.idle_steps = 0
        else:
            run.idle_steps += 1
        metrics["sample_s"], metrics["learn_s"] = sampled_s, time.perf_counter() - started - sampled_s
        metrics["tokens_per_s"] = sum(len(t.token_ids_T) for g in groups for t in g.trajectories) / (
            time.perf_counter() - started
        )
        on_step(step + 1, metrics, records)
        if run.idle_steps >= PATIENCE_STEPS:
            raise NothingToLearnError(_nothing_to_learn(records, run.idle_steps))
    sampler.load_weights(learner.export_weights(), version=config.steps)


def score_groups(
    groups: Sequence[EpisodeGroup], reward: RewardFunction, config: RlConfig, *, step: int
) -> tuple[list[EpisodeRecord], Batch]:
    """Rewards, advantages and the batch of those episodes from which something can be learned.

    With `learn_per_group` only the most varied episodes of a group have an advantage, relative to each other. Groups of
    fewer than two episodes (the others failed) have no advantage; groups of equal rewards have advantage 0.
    Neither enters the batch, all enter the records.
    """
    records: list[EpisodeRecord] = []
    trajectories: list[Trajectory] = []
    advantages: list[float] = []
    for group in groups:
        rewards = [reward(episode, group.question) for episode in group.episodes]
        totals_G = np.asarray([each.total for each in rewards])
        is_group = len(rewards) >= 2
        chosen = most_varied(totals_G, config.learn_per_group).tolist() if is_group else []
        scale = config.advantage_scale
        found = dict(zip(chosen, group_advantages(totals_G[chosen], scale=scale), strict=True)) if chosen else {}
        for index, episode in enumerate(group.episodes):
            advantage = float(found[index]) if index in found else None
            records.append(
                EpisodeRecord("rl", group.question, episode, step=step, reward=rewards[index], advantage=advantage)
            )
            if advantage:
                trajectories.append(group.trajectories[index])
                advantages.append(advantage)
        records += [EpisodeRecord("rl", group.question, episode, step=step) for episode in group.failed]
    return records, Batch(trajectories, np.asarray(advantages))


def rollout_metrics(groups: Sequence[EpisodeGroup], records: Sequence[EpisodeRecord]) -> Metrics:
    """What the episodes of a step were like; means over those that did not fail.

    Args:
        groups: of the step.
        records: of `score_groups`, in its order.
    """
    kept = [record for record in records if record.reward is not None]
    # By position, not by question: at the seam of two epochs a step may hold a question twice.
    rest = iter(records)
    mine = [list(itertools.islice(rest, len(group.episodes) + len(group.failed))) for group in groups]
    totals = [[record.reward.total for record in each if record.reward is not None] for each in mine]
    metrics: Metrics = {
        "num_groups": len(groups),
        "num_zero_variance_groups": sum(len(each) >= 2 and len(set(each)) == 1 for each in totals),
        "num_dropped_groups": sum(len(group.episodes) < 2 for group in groups),
        "num_failed_episodes": sum(len(group.failed) for group in groups),
        "num_truncated_episodes": sum(r.episode.stop_reason is StopReason.MAX_TOKENS for r in kept),
    }
    if not kept:
        return metrics
    turns = [turn for record in kept for turn in record.episode.turns]
    metrics["reward_mean"] = float(np.mean([record.reward.total for record in kept if record.reward]))
    for part in kept[0].reward.parts if kept[0].reward else ():
        metrics[f"{part}_mean"] = float(np.mean([record.reward.parts[part] for record in kept if record.reward]))
    metrics["searches_mean"] = float(np.mean([record.episode.num_searches for record in kept]))
    metrics["turns_mean"] = len(turns) / len(kept)
    metrics["action_tokens_mean"] = sum(turn.num_action_tokens for turn in turns) / len(kept)
    metrics["invalid_rate"] = float(np.mean([turn.kind == "invalid" for turn in turns]))
    metrics["answered_rate"] = float(np.mean([r.episode.stop_reason is StopReason.ANSWERED for r in kept]))
    return metrics


def _learn_metrics(stats: LearnStats) -> Metrics:
    return {
        "loss": stats.loss,
        "entropy": stats.entropy,
        "kl_sampler": stats.kl_behaviour,
        "trained_tokens": stats.num_trained_tokens,
        "packed_tokens": stats.num_packed_tokens,
        "plain_tokens": stats.num_plain_tokens,
    }


def _nothing_to_learn(records: Sequence[EpisodeRecord], idle_steps: int) -> str:
    kept = [record for record in records if record.reward is not None]
    if not kept:
        return f"every episode of the last {idle_steps} steps ended in an infrastructure failure, such as: " + next(
            (record.episode.failure for record in records), "none was started"
        )
    totals = sorted({record.reward.total for record in kept if record.reward})
    return (
        f"for {idle_steps} steps in a row all episodes of each group had the same reward (last step: {totals}), so no "
        "group had anything to learn from; with all 0 the policy never succeeds: more SFT, easier questions or "
        'rl.reward = "f1"; with all 1 it always does: harder questions'
    )
