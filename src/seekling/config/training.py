"""Sections about how and where a run learns and reports, but for RL: rollouts, experts, SFT, states, machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

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
    """New tokens inside thoughts per generation, which end the turn as `turn_tokens` does. 0: no limit."""
    episode_tokens: Positive = 2048
    """Prompt, actions and observations together."""
    in_flight: Positive = 64
    """Episodes with a live cache at once."""
    cache_bytes: Positive = 2 * 1024**3
    """Memory for key/value caches."""
    draft_tokens: Annotated[int, Field(ge=0)] = 4
    """Tokens guessed ahead per episode and forward pass (lossless speculative decoding); 0 switches it off."""
    weight_bits: Literal["auto", "full", 8] = "auto"
    """8: on a CPU the engine rounds the weights of matrices to eight bits. full: as `model.dtype` has them. auto: 8 for
    `ask`, `chat` and `serve` where `model.dtype = "auto"` means float32, full for training and evaluation."""

    @pydantic.field_validator("temperature_range")
    @classmethod
    def _rises(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(value):
            raise ValueError("the lower temperature comes first")
        return value


class ExpertConfig(Section):
    """Expert episodes for SFT: scripted experts that act through the real environment, or a file of them."""

    file: str = ""
    """Instead of the scripted expert: episodes of `seekling collect`, or records of `seekling data stepwise`."""
    balance: Literal["none", "kind", "question"] = "none"
    """kind: of no kind more than of the rarest one; question: one episode per question, the shortest."""

    num_questions: Annotated[int, Field(ge=0)] = 300
    """Training questions given to the scripted expert; 0 skips collection and SFT, unless there is a `file`."""
    attempts: Positive = 2
    """Of the scripted expert, for each fact: searches in other words before it takes a fact for not said."""
    own_words_share: Fraction = 0.33
    """Of the scripted expert's questions, those that it first searches in their own words, and misses."""
    num_plans: Annotated[int, Field(ge=0)] = 0
    """Further questions of which SFT learns the expert's plan alone, at a tenth of an episode's cost."""
    max_episodes: Annotated[int, Field(ge=0)] = 0
    """Keep at most this many after failures and duplicates are dropped; 0 keeps all."""

    @pydantic.model_validator(mode="after")
    def _has_one_expert(self) -> ExpertConfig:
        if self.file and self.num_plans:
            raise ValueError("num_plans are the scripted expert's, and file stands in its place; leave out one of them")
        return self


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


class TrackingConfig(Section):
    """Where metrics go besides `metrics.jsonl`."""

    to: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Each needs the extra of its name."""
    project: str = "seekling"
    mode: Literal["online", "offline"] = "online"
    """offline: W&B keeps the run in the run folder, for `wandb sync`."""


class CheckpointConfig(Section):
    """Training states, from which an interrupted run goes on, and which of them stay until it is over."""

    former: ClassVar[Mapping[str, object]] = {"best_every": 0}

    every_s: PositiveFloat = 300.0
    """Seconds of training that a crash may cost."""
    every_steps: Annotated[int, Field(ge=0)] = 0
    """Save after every so many steps too; 0: by time only."""
    keep_last: Positive = 1


class ScaleConfig(Section):
    """On which machines a recipe runs: changes nothing that is learned. With `engine = "local"` the rest is unused."""

    engine: Literal["local", "ray", "tinker"] = "local"
    """local: this process; ray: actors of a Ray cluster; tinker: a service that speaks the Tinker API."""
    address: str = ""
    """Of the Ray cluster ("auto", "10.0.0.1:6379"; empty: started here), or URL of the Tinker service."""
    key_env: str = "TINKER_API_KEY"
    """Name of the environment variable that holds the Tinker service's key."""
    plain_http: bool = False
    """Send that key over http:// to another machine too, where anybody on the way can read it."""
    num_samplers: Positive = 1
    """Ray actors that roll out, each with an engine, an environment and an index of its own."""
    sampler_cpus: PositiveFloat = 1.0
    """Processor cores of each of them: what Ray reserves, and how many threads its engine uses."""
    sampler_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that Ray reserves for each of them."""
    learner_ranks: Positive = 1
    """Processes among which the learner's weights are divided (FSDP2)."""
    learner_timeout_s: PositiveFloat = 1800.0
    """A learner process that takes longer for one batch or step hangs: all of them are started again."""
    weights_dir: str = ""
    """Folder that all machines have, in which each version is written once; empty: in the run folder."""
    straggler_s: PositiveFloat = 900.0
    """A group that is not back after so many seconds is given to another sampler too; the first result counts."""
    max_restarts: Positive = 5
    """A sampler that dies so often without a group in between ends the run, which can be gone on with."""
