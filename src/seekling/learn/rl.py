"""The main flow: questions -> rollout -> reward -> advantages -> pack -> loss -> step -> publish weights -> log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from seekling.config import RlConfig
from seekling.errors import NothingToLearnError
from seekling.learn.advantage import (
    are_equal,
    group_advantages,
    leave_one_out_advantages,
    most_varied,
    num_represented,
)
from seekling.learn.batch import Batch
from seekling.learn.curriculum import Curriculum
from seekling.learn.learner import Learner, WeightSync
from seekling.learn.sft import Metrics, scheduled_rate
from seekling.learn.update import Updater
from seekling.reward.functions import RewardFunction
from seekling.reward.match import exact_match
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.sampler import Sampler, derive_seed, draft_rates
from seekling.types import (
    UNANSWERABLE,
    UNKNOWN_ANSWERS,
    Episode,
    EpisodeGroup,
    EpisodeRecord,
    Question,
    Reward,
    StopReason,
    Trajectory,
)

PATIENCE_STEPS = 10
"""This many steps in a row without a single group to learn from end the run."""

Demonstrate = Callable[[EpisodeGroup], tuple[Episode, Trajectory] | None]
"""An expert's right episode of a group's question; None where it has none."""
OnStep = Callable[[int, Metrics, list[EpisodeRecord]], None]


class RlRun:
    """State that must survive from step to step beside the weights; a resumed run finds it in its logs."""

    def __init__(self, questions: Sequence[Question], config: RlConfig, *, seed: int) -> None:
        self.questions, self.config, self.seed = questions, config, seed
        self.curriculum = Curriculum(questions, config.groups, seed=seed, per_step=config.questions_per_step)
        self.idle_steps = 0

    def questions_and_seeds(self, step: int) -> list[tuple[list[Question], int]]:
        """Those of a step, and of the coming ones that may be sampled with its weights."""
        last = min(step + self.config.optimizer.max_staleness, self.config.steps - 1)
        return [(self.curriculum.choose(each), derive_seed(self.seed, "rl", each)) for each in range(step, last + 1)]

    def rates(self, step: int) -> list[float]:
        """Learning rates of a step: the policy's and the critic's."""
        config = self.config
        schedules = (config.learning_rate, config.optimizer), (config.critic.learning_rate, config.critic)
        return [scheduled_rate(rate, step, total=config.steps, warmup=each.warmup_steps) for rate, each in schedules]


def train(
    learner: Learner,
    sampler: Sampler,
    roller: Roller,
    run: RlRun,
    *,
    sync: WeightSync,
    decoding: Decoding,
    reward: RewardFunction,
    on_step: OnStep,
    demonstrate: Demonstrate | None = None,
    first_step: int = 0,
) -> None:
    """Train by reinforcement learning, with the pieces that the settings name.

    Args:
        learner: with a KL term it must have kept its reference, with GAE it must have a critic.
        sampler: samples with the weights of the step before.
        roller: questions to episodes through the same sampler.
        run: questions, settings, seed.
        sync: brings the weights to the sampler before every rollout, and at the end.
        decoding: of the rollouts.
        reward: of an episode; not called for infrastructure failures.
        on_step: called with the step's number, from 1, its metrics and its scored episodes; may save, or raise to stop.
        demonstrate: shows what a group without a right episode could have done; None: such groups stay as they are.
        first_step: steps that an earlier process has done.

    Raises:
        NothingToLearnError: for PATIENCE_STEPS steps in a row all groups had equal rewards.

    Source: GRPO (arXiv:2402.03300) or PPO (arXiv:1707.06347) on search episodes as Search-R1 (arXiv:2503.09516).
    """
    config = run.config
    updater = Updater(learner, config)
    for step in range(first_step, config.steps):
        started = time.perf_counter()
        sync.publish(learner, sampler, version=step)
        teacher = Teacher(demonstrate, learner, decoding.temperature) if demonstrate is not None else None
        taken = _Taken(updater, reward, config, step + 1, teacher)
        (questions, seed), *coming = run.questions_and_seeds(step)
        groups = roller.rollout(
            questions, decoding, group_size=config.group_size, seed=seed, on_group=taken.as_it_ends, coming=coming
        )
        sampler.release_caches()
        sampled_s = time.perf_counter() - started - taken.seconds
        metrics, records = taken.finish(groups), taken.records
        if run.curriculum.is_on:
            metrics["num_questions_again"] = run.curriculum.num_again
            run.curriculum.take_in(records)
        metrics["learning_rate"], critic_rate = run.rates(step)
        metrics |= updater.finish(rate=metrics["learning_rate"], critic_rate=critic_rate)
        has_learned = has_difference(metrics, config) or metrics.get("num_demonstrations", 0) > 0
        run.idle_steps = 0 if has_learned else run.idle_steps + 1
        seconds = time.perf_counter() - started
        metrics |= {"sample_s": sampled_s, "learn_s": seconds - sampled_s, "tokens_per_s": taken.num_tokens / seconds}
        on_step(step + 1, metrics, records)
        if run.idle_steps >= PATIENCE_STEPS:
            raise NothingToLearnError(_nothing_to_learn(records, run.idle_steps))
    sync.publish(learner, sampler, version=config.steps)


class _Taken:
    """The groups of a step: scored and handed to the updater, all at once or, streamed, part by part as they end."""

    def __init__(
        self, updater: Updater, reward: RewardFunction, config: RlConfig, step: int, teacher: Teacher | None
    ) -> None:
        self._updater, self._reward, self._config, self._step = updater, reward, config, step
        self._teacher = teacher
        self._waiting: list[EpisodeGroup] = []
        self.groups: list[EpisodeGroup] = []
        self.records: list[EpisodeRecord] = []
        self.seconds = 0.0
        """Of learning before the last episode has ended."""

    def as_it_ends(self, group: EpisodeGroup) -> None:
        """When streaming, learn as soon as a part of the step is complete."""
        parts = self._config.optimizer.stream_minibatches
        if parts:
            self._waiting.append(group)
            if len(self._waiting) == self._config.questions_per_step // parts:
                started = time.perf_counter()
                self.take(self._waiting)
                self._waiting = []
                self.seconds += time.perf_counter() - started

    def finish(self, groups: Sequence[EpisodeGroup]) -> Metrics:
        """Take the groups, unless that has been done part by part; metrics of the step's episodes."""
        if not self._config.optimizer.stream_minibatches:
            self.take(groups)
        metrics = rollout_metrics(self.groups, self.records)
        if self._teacher is not None:
            metrics["num_demonstrations"] = self._teacher.num_given
        return metrics

    @property
    def num_tokens(self) -> int:
        """Of the step's episodes."""
        return sum(len(each.token_ids_T) for group in self.groups for each in group.trajectories)

    def take(self, groups: Sequence[EpisodeGroup]) -> None:
        """Score groups and hand on what can be learned from."""
        self.groups += groups
        sampled = {id(episode) for group in groups for episode in (*group.episodes, *group.failed)}
        if self._teacher is not None:
            groups = [self._teacher.join(group) for group in groups]
        charges = None
        if not self._config.has_critic:  # whose rewards belong to tokens, and are charged there
            charges = self._updater.charges([each for group in groups for each in group.trajectories])
        records, batch = score_groups(
            groups, self._reward, self._config, step=self._step, charges=charges, sampled=sampled
        )
        self._updater.add(batch, version=self._step - 1)  # as the sampler was told before this rollout
        self.records += [record for record in records if id(record.episode) in sampled]


class Teacher:
    """Joins an expert's episode to groups that have no right one, so that they have something to learn from.

    The learner's own log-probabilities stand in for those of a sampler, so that its weight in the correction is 1.

    Source: David-GRPO (arXiv:2601.21699), which joins one to every group.
    """

    def __init__(self, demonstrate: Demonstrate, learner: Learner, temperature: float) -> None:
        self._demonstrate, self._learner, self._temperature = demonstrate, learner, temperature
        self.num_given = 0

    def join(self, group: EpisodeGroup) -> EpisodeGroup:
        """The group, with the expert's episode where that is needed and there is one."""
        if not group.episodes or any(exact_match(each.answer, group.question.answers) for each in group.episodes):
            return group
        shown = self._demonstrate(group)
        if shown is None:
            return group
        self.num_given += 1
        episode, trajectory = shown
        trajectory = replace(trajectory, temperature=self._temperature)
        (logprobs_T,) = self._learner.logprobs([trajectory])
        trajectory = replace(trajectory, logprobs_T=logprobs_T.astype(np.float32))
        return replace(group, episodes=(*group.episodes, episode), trajectories=(*group.trajectories, trajectory))


def score_groups(
    groups: Sequence[EpisodeGroup],
    reward: RewardFunction,
    config: RlConfig,
    *,
    step: int,
    charges: Sequence[np.ndarray] | None = None,
    sampled: Collection[int] | None = None,
) -> tuple[list[EpisodeRecord], Batch]:
    """Rewards, advantages and the batch of those episodes from which something can be learned.

    With `learn_per_group` only the most varied episodes of a group are learned from and have an advantage, which is
    relative to the whole group; each weighs for those it stands for. Groups of fewer than two episodes, or of equal
    rewards before anything is charged, do not enter the batch (equal ones do with `constant_groups = "keep"`), but the
    records. Of others every chosen episode enters, also with advantage 0: it counts in means and feels the KL. With a
    critic every episode enters, with its reward in the place of the advantage that it does not have yet.

    Args:
        groups: of a step, or a part of one.
        reward: of an episode.
        config: baseline and what of a group is learned from.
        step: for the records.
        charges: of each trajectory in order, (T,) what its tokens cost; taken off rewards before advantages.
        sampled: `id` of the episodes that the policy sampled; the others are an expert's. None: all.
    """
    records: list[EpisodeRecord] = []
    is_sampled = (lambda episode: True) if sampled is None else (lambda episode: id(episode) in sampled)
    is_worth = _share_unknown(groups, is_sampled) <= config.reward.unknown_limit
    unknown_reward = config.reward.unknown if is_worth else 0.0
    kept: list[tuple[Trajectory, float, float]] = []
    costs = iter(charges) if charges is not None else itertools.repeat(np.zeros(1))
    for group in groups:
        rewards = [reward(each, group.question) for each in group.episodes]
        rewards = _with_unknown(rewards, group, unknown_reward, is_sampled)
        rewards_G = np.asarray([each.total for each in rewards])
        terms = _terms(rewards_G, np.asarray([next(costs).sum() for _ in rewards]), config)
        for index, episode in enumerate(group.episodes):
            advantage = terms[index][0] if index in terms and not config.has_critic else None
            records.append(
                EpisodeRecord("rl", group.question, episode, step=step, reward=rewards[index], advantage=advantage)
            )
        records += [EpisodeRecord("rl", group.question, episode, step=step) for episode in group.failed]
        if config.learns_from_equal_groups or (terms and not are_equal(rewards_G)):
            kept += [(group.trajectories[index], *term) for index, term in terms.items()]
    advantages_B, weights_B = (np.asarray([each[column] for each in kept]) for column in (1, 2))
    return records, Batch([each[0] for each in kept], advantages_B, weights_B=weights_B)


def _with_unknown(
    rewards: list[Reward], group: EpisodeGroup, unknown_reward: float, is_sampled: Callable[[Episode], bool]
) -> list[Reward]:
    """The rewards of a group, with what it is worth not to know where no episode of the policy is right."""
    golds = group.question.answers
    if not unknown_reward or any(exact_match(each.answer, golds) for each in group.episodes if is_sampled(each)):
        return rewards
    return [
        Reward(each.total + worth, {**each.parts, "unknown": worth})
        for each, worth in zip(rewards, (unknown_reward * _is_unknown(e) for e in group.episodes), strict=True)
    ]


def _share_unknown(groups: Sequence[EpisodeGroup], is_sampled: Callable[[Episode], bool]) -> float:
    """Of the policy's episodes of answerable questions, the share that says that the answer is unknown."""
    answerable = [group for group in groups if group.question.kind != UNANSWERABLE]
    said = [_is_unknown(episode) for group in answerable for episode in group.episodes if is_sampled(episode)]
    return sum(said) / len(said) if said else 0.0


def _is_unknown(episode: Episode) -> bool:
    return bool(exact_match(episode.answer, UNKNOWN_ANSWERS))


def _terms(rewards_G: np.ndarray, costs_G: np.ndarray, config: RlConfig) -> dict[int, tuple[float, float]]:
    """Advantage and weight by index of the episodes of a group that are learned from."""
    if config.has_critic:
        return {index: (float(reward), 1.0) for index, reward in enumerate(rewards_G)}
    if len(rewards_G) < 2:
        return {}
    if config.advantage.baseline == "leave_one_out":
        values_G = leave_one_out_advantages(rewards_G - costs_G)
    else:
        # Where only costs differ, their deviation would blow their noise up to advantages of 1.
        scale = "none" if are_equal(rewards_G) else config.advantage.scale
        values_G = group_advantages(rewards_G - costs_G, scale=scale)
    chosen = most_varied(rewards_G, config.groups.learn_per_group)
    weights = num_represented(rewards_G, chosen)
    terms = zip(values_G[chosen].tolist(), weights.tolist(), strict=True)
    return dict(zip(chosen.tolist(), terms, strict=True))


def has_difference(metrics: Mapping[str, float], config: RlConfig) -> bool:
    """Whether a step had anything to learn from: rewards that differ within a group, or a critic's errors."""
    num_equal = metrics.get("num_zero_variance_groups", 0) + metrics.get("num_dropped_groups", 0)
    return config.has_critic or metrics.get("num_groups", 0) > num_equal


def rollout_metrics(groups: Sequence[EpisodeGroup], records: Sequence[EpisodeRecord]) -> Metrics:
    """What the episodes of a step were like, by `score_groups`' records; means over those that did not fail."""
    kept = [(record.episode, record.reward) for record in records if record.reward is not None]
    # By position, not by question: at the seam of two epochs a step may hold a question twice.
    rest = iter(records)
    mine = [list(itertools.islice(rest, len(group.episodes) + len(group.failed))) for group in groups]
    totals = [[record.reward.total for record in each if record.reward is not None] for each in mine]
    metrics: Metrics = {
        "num_groups": len(groups),
        "num_zero_variance_groups": sum(len(each) >= 2 and are_equal(np.asarray(each)) for each in totals),
        "num_dropped_groups": sum(len(group.episodes) < 2 for group in groups),
        "num_failed_episodes": sum(len(group.failed) for group in groups),
        "num_truncated_episodes": sum(episode.stop_reason is StopReason.MAX_TOKENS for episode, _ in kept),
    }
    if not kept:
        return metrics
    episodes = [episode for episode, _ in kept]
    turns = [turn for episode in episodes for turn in episode.turns]
    means = {"reward_mean": [reward.total for _, reward in kept]}
    for part in dict.fromkeys(name for _, reward in kept for name in reward.parts):
        means[f"{part}_mean"] = [reward.parts.get(part, 0.0) for _, reward in kept]
    means["searches_mean"] = [episode.num_searches for episode in episodes]
    means["turns_mean"] = [len(episode.turns) for episode in episodes]
    means["action_tokens_mean"] = [sum(turn.num_action_tokens for turn in each.turns) for each in episodes]
    means["invalid_rate"] = [turn.kind == "invalid" for turn in turns]
    means["answered_rate"] = [episode.stop_reason is StopReason.ANSWERED for episode in episodes]
    return metrics | {name: float(np.mean(values)) for name, values in means.items()} | draft_rates(episodes)


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
        'rl.reward.kind = "f1"; with all 1 it always does: harder questions'
    )
