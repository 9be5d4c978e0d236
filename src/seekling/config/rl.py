"""The section `rl` and those below it; docs/ALGORITHMS.md lists the pieces and who uses which."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

import pydantic
from pydantic import Field

from seekling.config.base import Fraction, Positive, PositiveFloat, Section, raise_for


def _without_effect(section: Section, name: str, is_read: bool, needed: str) -> Iterable[str]:
    """A setting that nothing reads; one at its default says nothing, since written recipes list every setting."""
    value, default = dict(section)[name], type(section).model_fields[name].default
    if not is_read and value != default:
        yield (
            f"{name} = {json.dumps(value)} has no effect here; it needs {needed}: set that, or leave {name} at "
            f"{json.dumps(default)}"
        )


class RewardConfig(Section):
    """What an episode is worth: the name of the reward, and weights of those that have several parts."""

    former: ClassVar[Mapping[str, object]] = {"compatible": False}

    kind: Literal["em", "f1", "em+f1", "judge", "search-r1", "tinker", "recovery", "ternary"] = "em"
    """search-r1, tinker: exact match shaped by form; recovery: by what was looked at; ternary: inventing costs."""
    unknown: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where no episode of a group is right, what it is worth to say that the answer is unknown (BAPO); none in a step,
    or a streamed part of one, in which more than `unknown_limit` of the episodes of answerable questions say so."""
    unknown_limit: Fraction = 0.05
    structure: Fraction = 0.2
    """search-r1: for think (search information think)* answer with a wrong answer; off a right one without."""
    final: Fraction = 0.1
    """search-r1: for a wrong answer in another form."""
    retrieval: Fraction = 0.0
    """search-r1: on top of `structure` when a gold stands in an observation."""
    format_coefficient: Fraction = 0.1
    """tinker: taken off when there is no readable answer, or the episode was cut off."""
    looked: Fraction = 0.2
    """recovery: for having looked at what the question needs, at the first try or after a failed one."""
    wrong: PositiveFloat = 1.0
    """ternary: what a wrong answer costs; to say that it is unknown costs nothing."""


class GroupConfig(Section):
    """The episodes of one question: which of them teach, who joins them, and which questions are asked again."""

    learn_per_group: Literal[0] | Annotated[int, Field(ge=2)] = 0
    """Learn from so many episodes of a group, those with the lowest and the highest rewards, each weighed for those it
    stands for; baseline and deviation are the whole group's. 0: from all."""
    constant_groups: Literal["drop", "keep"] = "drop"
    """Groups of equal rewards: left out, or kept in means and KL; `baseline = "gae"` learns from them anyway."""
    demonstrations: Literal["none", "whole", "continued"] = "none"
    """Where no episode of a group is right, the scripted expert's joins it: from the question on, or going on after the
    searches of one of the group's own episodes. Needs questions that name their pages."""
    fresh: bool = False
    """Ask only training questions that SFT has not learned from, neither whole episodes nor plans, and no twins."""
    ask_again: Fraction = 0.0
    """At most this share of a step's questions are those whose last group had rewards that differ; others are new."""


class AdvantageConfig(Section):
    """What a reward is compared with."""

    baseline: Literal["group_mean", "leave_one_out", "gae"] = "group_mean"
    """gae trains a critic (section `rl.critic`)."""
    scale: Literal["none", "std", "sample_std"] = "std"
    """With `group_mean`: divide by the group's deviation, with 1/G (std) or 1/(G-1) (sample_std)."""

    @pydantic.model_validator(mode="after")
    def _is_read(self) -> AdvantageConfig:
        return raise_for(_without_effect(self, "scale", self.baseline == "group_mean", 'baseline = "group_mean"'), self)


class LossConfig(Section):
    """The policy loss, its correction for the sampler's arithmetic, and the KL to the policy before RL."""

    kind: Literal["ppo", "importance_sampling", "cispo", "gspo"] = "ppo"
    clip_low: PositiveFloat = 0.2
    """Ratios are bounded below by 1 - clip_low; importance_sampling bounds nothing."""
    clip_high: PositiveFloat = 0.28
    aggregation: Literal["token_mean", "sequence_mean", "sum", "constant"] = "token_mean"
    """Of the tokens' losses. Learning rates do not carry over from one to another."""
    aggregation_tokens: Positive = 1024
    """With `constant`: each episode's sum is divided by this."""
    old_logprobs: Literal["rollout", "recomputed"] = "recomputed"
    """Denominator of the ratios: as the sampler gave them, or as the learner finds them before the first step, which
    takes a pass of its own only where a rollout has several steps."""
    correction: Literal["none", "tis", "mask"] = "tis"
    """Weight tokens by learner/sampler, cut off at `correction_cap` (tis) or 0 above it (mask); needs recomputed."""
    correction_cap: PositiveFloat = 2.0
    drift_limit: Annotated[float, Field(ge=0)] = 0.2
    """Mean difference between the sampler's log-probabilities and the learner's, in nats per token, above which a step
    stops the run; rounding alone stays below a third of it in bfloat16. 0: no limit."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL to the policy before RL; 0 keeps no reference model."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Its estimator: log-ratio, half its square, or the low-variance one."""
    kl_in: Literal["loss", "reward"] = "loss"

    @pydantic.model_validator(mode="after")
    def _agrees_with_itself(self) -> LossConfig:
        return raise_for(self._contradictions(), self)

    def _contradictions(self) -> Iterable[str]:
        if self.correction != "none" and self.old_logprobs == "rollout":
            yield (
                f'correction = "{self.correction}" weighs the learner against the sampler, which old_logprobs = '
                '"rollout" takes for one; set correction = "none" to clip against the sampler\'s numbers, or '
                'old_logprobs = "recomputed"'
            )
        if self.kl_coefficient > 0 and self.kl == "k1" and self.kl_in == "loss":
            yield 'kl = "k1" in the loss has a gradient of mean zero; use "k2" or "k3", or kl_in = "reward"'
        clips = (self.kind != "importance_sampling", 'kind = "ppo", "cispo" or "gspo"')
        yield from _without_effect(self, "clip_low", *clips)
        yield from _without_effect(self, "clip_high", *clips)
        is_constant = self.aggregation == "constant"
        yield from _without_effect(self, "aggregation_tokens", is_constant, 'aggregation = "constant"')
        yield from _without_effect(self, "correction_cap", self.correction != "none", 'correction = "tis" or "mask"')


class OptimizerConfig(Section):
    """Optimizer steps on what a rollout has brought; the learning rate is `rl.learning_rate`."""

    warmup_steps: Annotated[int, Field(ge=0)] = 2
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Of Adam."""
    keep_moments: bool = False
    """Begin with the second moments of SFT: Adam's first steps afresh are large whatever the gradient is."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """0: gradients are not scaled down."""
    minibatches: Positive = 1
    """Optimizer steps per pass over a rollout, each on its part of the episodes."""
    rollout_epochs: Positive = 1
    """Passes over a rollout."""
    stream_minibatches: Annotated[int, Field(ge=0)] = 0
    """Add up the gradients of so many parts of a step as their groups finish; 0: when all have finished."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Rollouts by which the weights that sampled an episode may be older than those that learn from it. Above 0
    samplers go on while learning happens (asynchronous RL), with groups of so many coming steps at most; needs Ray."""


class CriticConfig(Section):
    """The value model of `rl.advantage.baseline = "gae"`: a model of its own that begins as a copy of the policy."""

    learning_rate: PositiveFloat = 1e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    gamma: Fraction = 1.0
    """Discount per action token; observations are not counted."""
    gae_lambda: Fraction = 1.0
    value_clip: PositiveFloat = 0.5
    """A value may move so far from what it was before the step before its error stops pulling."""
    whiten: bool = True
    """Advantages of a step's action tokens get mean 0 and deviation 1."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0


class HealthConfig(Section):
    """Signs of collapse in RL: medians over the last `window` steps beside those of the first `window` steps."""

    former: ClassVar[Mapping[str, object]] = {"rate_factor": 0.5, "max_rollbacks": 3}

    action: Literal["off", "warn"] = "warn"
    window: Positive = 5
    entropy_fall: Fraction = 0.1
    """Entropy of action tokens below this share of its beginning."""
    entropy_rise: PositiveFloat = 1.0
    """Or so many nats above it."""
    likelihood_fall: PositiveFloat = 0.5
    """Mean log-probability of the tokens of right episodes so many nats below its beginning."""
    kl_limit: PositiveFloat = 0.1
    """KL between sampler and learner, in nats per token."""
    repetition_rise: Fraction = 0.3
    """Share of episodes that repeat themselves, above its beginning."""
    length_growth: PositiveFloat = 2.0
    """Action tokens of an episode, as a multiple of their beginning."""
    invalid_rise: Fraction = 0.3
    """Share of unreadable actions, above its beginning."""
    reward_fall: Fraction = 0.5
    """Mean reward below this share of the best window's."""


class RlConfig(Section):
    """Reinforcement learning."""

    steps: Annotated[int, Field(ge=0)] = 20
    """Rollouts, each followed by `minibatches` x `rollout_epochs` optimizer steps; 0 skips the stage."""
    questions_per_step: Positive = 8
    group_size: Positive = 8
    """Episodes per question; 1 only with `advantage.baseline = "gae"`."""
    learning_rate: PositiveFloat = 1e-5
    row_tokens: Positive = 2048
    """Tokens of one packed row (the micro-batch): bounds memory, changes no result."""
    reward: RewardConfig = RewardConfig()
    groups: GroupConfig = GroupConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    critic: CriticConfig = CriticConfig()
    health: HealthConfig = HealthConfig()

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained."""
        return self.advantage.baseline == "gae"

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps of one rollout."""
        return self.optimizer.minibatches * self.optimizer.rollout_epochs

    @property
    def learns_from_equal_groups(self) -> bool:
        """Whether a group of equal rewards enters the batch."""
        return self.has_critic or self.groups.constant_groups == "keep"

    @pydantic.model_validator(mode="after")
    def _agrees_with_itself(self) -> RlConfig:
        return raise_for(self._contradictions(), self)

    def _contradictions(self) -> Iterable[str]:
        groups, optimizer = self.groups, self.optimizer
        if self.group_size == 1 and not self.has_critic:
            yield (
                f'group_size = 1 leaves advantage.baseline = "{self.advantage.baseline}" nothing to compare with; use '
                '2 or more, or "gae"'
            )
        if groups.demonstrations != "none" and (self.has_critic or self.reward.kind == "judge"):
            yield (
                f'groups.demonstrations = "{groups.demonstrations}" gives groups an episode of the expert: '
                'advantage.baseline = "gae" has no groups, and a judge never saw the episode; use a reward that is '
                'computed, or "none"'
            )
        if groups.learn_per_group and self.has_critic:
            yield (
                'groups.learn_per_group chooses within groups, which advantage.baseline = "gae" does not compare; set '
                "it to 0"
            )
        if groups.ask_again and self.group_size == 1:
            yield (
                "groups.ask_again asks those questions again whose groups have rewards that differ, and group_size = 1 "
                "makes no groups; set one of them to another value"
            )
        if self.loss.kind == "gspo" and self.has_critic:
            yield (
                'loss.kind = "gspo" has one ratio for an episode and advantage.baseline = "gae" an advantage for each '
                'token; use "ppo"'
            )
        if optimizer.stream_minibatches and (self.has_critic or self.updates_per_rollout > 1):
            yield (
                "optimizer.stream_minibatches adds gradients up for one optimizer step before all episodes are there; "
                'it goes with neither advantage.baseline = "gae" nor minibatches or rollout_epochs above 1'
            )
        if optimizer.stream_minibatches and self.questions_per_step % optimizer.stream_minibatches:
            yield (
                f"optimizer.stream_minibatches = {optimizer.stream_minibatches} does not divide questions_per_step = "
                f"{self.questions_per_step}"
            )
        num_episodes = self.questions_per_step * self.group_size
        if optimizer.minibatches > num_episodes:
            yield f"optimizer.minibatches = {optimizer.minibatches} is more than the {num_episodes} episodes of a step"
