"""Sections about learning: rollouts, experts, SFT, RL and what watches over them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from seekling.config.base import Fraction, Positive, PositiveFloat, Section


class RolloutConfig(Section):
    """How episodes are sampled during training."""

    sampler: Literal["auto", "engine", "vllm"] = "auto"
    """engine: the one in this package; vllm: for GPUs, with the extra of that name (docs/ENGINE.md, vLLM). auto: vLLM
    where the model is on a GPU, vLLM is installed and can do what the recipe asks, else the engine."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    temperature_range: tuple[()] | tuple[PositiveFloat, PositiveFloat] = ()
    """Lowest and highest temperature; each training episode draws its own, evenly. Empty: all have `temperature`."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Fraction = 0.0
    """Draw no token less likely than this share of the most likely one, after temperature; 0: any."""
    turn_tokens: Positive = 96
    """New tokens per generation."""
    thought_tokens: Annotated[int, Field(ge=0)] = 0
    """New tokens inside thoughts per generation: a turn that reaches them ends as one that reached `turn_tokens`. 0: no
    limit of their own."""
    episode_tokens: Positive = 2048
    """Prompt, actions and observations together."""
    in_flight: Positive = 64
    """Episodes with a live cache at once."""
    cache_bytes: Positive = 2 * 1024**3
    """Memory for key/value caches."""
    draft_tokens: Annotated[int, Field(ge=0)] = 4
    """Tokens guessed ahead per episode and forward pass (lossless speculative decoding); 0 switches it off."""

    @pydantic.field_validator("temperature_range")
    @classmethod
    def _rises(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(value):
            raise ValueError("the lower temperature comes first")
        return value


class ExpertConfig(Section):
    """Expert episodes for SFT: scripted experts that act through the real environment, or a file of them."""

    file: str = ""
    """Instead of the scripted expert: episodes of `seekling collect`, or step-wise records of `seekling stepwise`."""
    balance: Literal["none", "kind", "question"] = "none"
    """kind: of no kind more than of the rarest one; question: one episode per question, the shortest."""

    num_questions: Annotated[int, Field(ge=0)] = 300
    """Training questions given to the scripted expert; 0 skips collection and SFT, unless there is a `file`."""
    attempts: Positive = 2
    """Of the scripted expert, for each fact: searches in other words before it takes a fact for not said."""
    own_words_share: Fraction = 0.33
    """Of the scripted expert's questions, those whose first search is in the question's own words: it misses what the
    page says in others, so that there is something to see and to mend."""
    num_queries: Annotated[int, Field(ge=0)] = 0
    """Further training questions of which SFT learns the scripted expert's first turn alone: what to search for. They
    cost a twentieth of an episode, since they share its instructions and show no passages."""
    max_episodes: Annotated[int, Field(ge=0)] = 0
    """Keep at most this many after failures and duplicates are dropped; 0 keeps all."""


class SftConfig(Section):
    """Supervised fine-tuning on expert episodes, action tokens only."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    epochs: Positive = 1
    episodes_per_step: Positive = 8
    warmup_steps: Annotated[int, Field(ge=0)] = 5
    decay: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    row_tokens: Positive = 2048
    """Tokens of one packed row."""


class RlConfig(Section):
    """Reinforcement learning; docs/ALGORITHMS.md lists the pieces and who uses which."""

    steps: Annotated[int, Field(ge=0)] = 20
    """Rollouts, each followed by `minibatches` x `rollout_epochs` optimizer steps; 0 skips the stage."""
    questions_per_step: Positive = 8
    group_size: Positive = 8
    """Episodes per question; 1 only with `baseline = "gae"`."""
    learn_per_group: Literal[0] | Annotated[int, Field(ge=2)] = 0
    """Learn from so many episodes of a group, those with the lowest and the highest rewards, each weighed for those it
    stands for; baseline and deviation are the whole group's. 0: from all."""
    constant_groups: Literal["drop", "keep"] = "drop"
    """Groups of equal rewards, before any KL in the reward: left out, or kept in means and KL. `baseline = "gae"`
    learns from them anyway."""
    demonstrations: Literal["none", "whole", "continued"] = "none"
    """Where no episode of a group is right, the scripted expert's joins it: from the question on, or going on after the
    searches of one of the group's own episodes. Needs questions that name their pages."""
    reward: Literal["em", "f1", "em+f1", "judge", "search-r1", "tinker", "recovery", "ternary"] = "em"
    """search-r1 and tinker are exact match shaped by form, recovery by what was looked at, ternary by whether a wrong
    answer is an invented one; their weights are in the section `reward`."""
    unknown_reward: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where no episode of a group is right, what it is worth to say that the answer is unknown (BAPO); none in a step,
    or a streamed part of one, in which more than `unknown_limit` of the episodes of answerable questions say so."""
    unknown_limit: Fraction = 0.05
    baseline: Literal["group_mean", "leave_one_out", "gae"] = "group_mean"
    """What a reward is compared with; gae trains a critic (section `critic`)."""
    advantage_scale: Literal["none", "std", "sample_std"] = "std"
    """With `group_mean`: divide by the group's deviation, with 1/G (std) or 1/(G-1) (sample_std)."""
    loss: Literal["ppo", "importance_sampling", "cispo", "gspo"] = "ppo"
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
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Rollouts by which the weights that sampled an episode may be older than those that learn from it; more stop the
    run."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL to the policy before RL; 0 keeps no reference model."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Its estimator: log-ratio, half its square, or the low-variance one."""
    kl_in: Literal["loss", "reward"] = "loss"
    minibatches: Positive = 1
    """Optimizer steps per pass over a rollout, each on its part of the episodes."""
    rollout_epochs: Positive = 1
    """Passes over a rollout."""
    stream_minibatches: Annotated[int, Field(ge=0)] = 0
    """Add up the gradients of so many parts of a step as their groups finish, before one optimizer step; sampling
    waits meanwhile. 0: when all have finished."""
    learning_rate: PositiveFloat = 1e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Of Adam."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """0: gradients are not scaled down."""
    row_tokens: Positive = 2048
    """Tokens of one packed row (the micro-batch): bounds memory, changes no result."""

    @property
    def learns_from_equal_groups(self) -> bool:
        """Whether a group of equal rewards enters the batch."""
        return self.baseline == "gae" or self.constant_groups == "keep"

    @pydantic.model_validator(mode="after")
    def _agrees_with_itself(self) -> RlConfig:
        problems = [text for is_wrong, text in self._contradictions() if is_wrong]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _contradictions(self) -> Iterable[tuple[bool, str]]:
        has_critic = self.baseline == "gae"
        has_several_steps = self.minibatches * self.rollout_epochs > 1
        yield (
            self.group_size == 1 and not has_critic,
            f'group_size = 1 leaves baseline = "{self.baseline}" nothing to compare with; use 2 or more, or "gae"',
        )
        yield (
            self.demonstrations != "none" and (has_critic or self.reward == "judge"),
            f'demonstrations = "{self.demonstrations}" gives groups an episode of the expert: baseline = "gae" has no '
            'groups, and a judge never saw the episode; use a reward that is computed, or "none"',
        )
        yield (
            self.learn_per_group > 0 and has_critic,
            'learn_per_group chooses within groups, which baseline = "gae" does not compare; set it to 0',
        )
        yield (
            self.loss == "gspo" and has_critic,
            'loss = "gspo" has one ratio for an episode and baseline = "gae" an advantage for each token; use "ppo"',
        )
        yield (
            self.correction != "none" and self.old_logprobs == "rollout",
            f'correction = "{self.correction}" weighs the learner against the sampler, which old_logprobs = "rollout" '
            'takes for one; set correction = "none" to clip against the sampler\'s numbers, or old_logprobs = '
            '"recomputed"',
        )
        yield (
            self.kl_coefficient > 0 and self.kl == "k1" and self.kl_in == "loss",
            'kl = "k1" in the loss has a gradient of mean zero; use "k2" or "k3", or kl_in = "reward"',
        )
        yield (
            self.stream_minibatches > 0 and (has_critic or has_several_steps),
            "stream_minibatches adds gradients up for one optimizer step before all episodes are there; it goes with "
            'neither baseline = "gae" nor minibatches or rollout_epochs above 1',
        )
        yield (
            self.stream_minibatches > 0 and self.questions_per_step % max(self.stream_minibatches, 1) > 0,
            f"stream_minibatches = {self.stream_minibatches} does not divide questions_per_step = "
            f"{self.questions_per_step}",
        )
        yield (
            self.minibatches > self.questions_per_step * self.group_size,
            f"minibatches = {self.minibatches} is more than the {self.questions_per_step * self.group_size} episodes "
            "of a step",
        )
        yield from self._without_effect()

    def _without_effect(self) -> Iterable[tuple[bool, str]]:
        """Settings that nothing reads; one at its default says nothing, since written recipes list every setting."""
        clips = ("loss", self.loss != "importance_sampling", 'loss = "ppo", "cispo" or "gspo"')
        settings = dict(self)
        for name, reader, is_read, needed in (
            ("advantage_scale", "baseline", self.baseline == "group_mean", 'baseline = "group_mean"'),
            ("clip_low", *clips),
            ("clip_high", *clips),
            ("aggregation_tokens", "aggregation", self.aggregation == "constant", 'aggregation = "constant"'),
            ("correction_cap", "correction", self.correction != "none", 'correction = "tis" or "mask"'),
        ):
            value, default = settings[name], type(self).model_fields[name].default
            yield (
                not is_read and value != default,
                f'{name} = {json.dumps(value)} has no effect with {reader} = "{settings[reader]}"; it needs {needed}: '
                f"set that, or leave {name} at {json.dumps(default)}",
            )


class RewardConfig(Section):
    """Weights of the rewards that have several parts."""

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
    compatible: bool = False
    """Score the text as the published code does, quirks included (reward/compat.py)."""


class CriticConfig(Section):
    """The value model of `rl.baseline = "gae"`: a model of its own that begins as a copy of the policy."""

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


class JudgeConfig(Section):
    """The model that scores episodes when `rl.reward` is "judge": any OpenAI-compatible one, or a local one."""

    url: str = ""
    """Base address, such as http://localhost:8000/v1; empty: `model` is loaded here."""
    model: str = "default"
    """Its name at `url`; without one a model spec as in `model.spec`."""
    key_env: str = ""
    """Environment variable that holds the key; empty sends none."""
    extra: str = ""
    """JSON object of further fields of every request."""
    max_tokens: Positive = 512
    """Of a verdict, hidden reasoning included."""
    tries: Positive = 3
    """How often an unreadable verdict is asked for, the first time included."""
    in_flight: Positive = 8
    """Episodes judged at once."""
    requests_per_minute: Annotated[float, Field(ge=0)] = 0.0
    """0: no limit."""
    cache: str = ""
    """File that keeps verdicts by content; empty: `judge-cache.jsonl` in the run folder."""


class TrackingConfig(Section):
    """Where metrics go besides `metrics.jsonl`."""

    to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Each needs the extra of its name."""
    project: str = "seekling"
    mode: Literal["online", "offline"] = "online"
    """offline: W&B keeps the run in the run folder, for `wandb sync`."""


class CheckpointConfig(Section):
    """Training states, from which an interrupted run goes on, and which of them stay until it is over."""

    every_s: PositiveFloat = 300.0
    """Seconds of training that a crash may cost."""
    every_steps: Annotated[int, Field(ge=0)] = 0
    """Save after every so many steps too; 0: by time only."""
    keep_last: Positive = 1
    best_every: Annotated[int, Field(ge=0)] = 0
    """Keep the state from which the so many RL steps with the highest mean reward were taken; 0 keeps no best."""


class CurriculumConfig(Section):
    """RL questions chosen by the policy's own success so far: those it always or never solves teach nothing."""

    skip_after: Annotated[int, Field(ge=0)] = 0
    """Pass over a question after so many groups in a row with equal rewards; 0 passes over none."""
    retry_steps: Positive = 50
    """Ask it again after so many steps."""


class HealthConfig(Section):
    """Signs of collapse in RL: medians over the last `window` steps beside those of the first `window` steps."""

    action: Literal["off", "warn", "rollback"] = "warn"
    """rollback: at two signs at once go back to the best state with a lower learning rate; needs
    `checkpoint.best_every`."""
    window: Positive = 5
    entropy_fall: Fraction = 0.1
    """Entropy of action tokens below this share of its beginning."""
    entropy_rise: PositiveFloat = 1.0
    """Or so many nats above it."""
    likelihood_fall: PositiveFloat = 0.5
    """Mean log-probability of the tokens of right episodes so many nats below its beginning."""
    kl_limit: PositiveFloat = 0.1
    """KL between sampler and learner, in nats per token."""
    drift_limit: Annotated[float, Field(ge=0)] = 0.2
    """Mean difference between the sampler's log-probabilities and the learner's, in nats per token, above which a step
    stops the run whatever `action` says; rounding alone stays below a third of it in bfloat16. 0: no limit."""
    repetition_rise: Fraction = 0.3
    """Share of episodes that repeat themselves, above its beginning."""
    length_growth: PositiveFloat = 2.0
    """Action tokens of an episode, as a multiple of their beginning."""
    invalid_rise: Fraction = 0.3
    """Share of unreadable actions, above its beginning."""
    reward_fall: Fraction = 0.5
    """Mean reward below this share of the best window's."""
    rate_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The learning rate is multiplied by this at each rollback."""
    max_rollbacks: Annotated[int, Field(ge=0)] = 3
