"""Sections about measuring: how a policy is evaluated, and what a recipe is expected to reach."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from seekling.config.base import Fraction, Positive, Section


class EvalEnvConfig(Section):
    """Rules of the section `env` that are others when held-out questions are asked; what is left out is as there."""

    max_turns: Positive | None = None
    max_searches: Annotated[int, Field(ge=0)] | None = None
    forced_answer: bool | None = None
    observation_tokens: Positive | None = None
    failing_share: Fraction = 0.0


class EvalRolloutConfig(Section):
    """How held-out questions are sampled; a length that is left out is the section `rollout`'s."""

    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Fraction = 0.0
    turn_tokens: Positive | None = None
    episode_tokens: Positive | None = None
    """The sampler's caches are made for the longer of the two."""


Evaluation = Literal["base", "sft", "rl"]
EVALUATIONS: tuple[Evaluation, ...] = ("base", "sft", "rl")
"""On the test questions, in the order of training; tables have them in this order."""


class EvalConfig(Section):
    """Held-out evaluation."""

    num_questions: Annotated[int, Field(ge=0)] = 0
    """First N test questions; 0: all of them."""
    dev_questions: Annotated[int, Field(ge=0)] = 100
    """First N development questions, by which the best policy is chosen; 0 asks none, and the last policy is best."""
    every_steps: Annotated[int, Field(ge=0)] = 0
    """Ask them after every so many RL steps too; 0: only at the end of SFT and of RL."""
    promised_precision: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of right answers among those that `ask` shows; what is less sure is "not found"."""
    judge: bool = False
    """Ask the model of the section `judge` too whether answers are right: the measure `judge`, beside exact match."""
    stages: tuple[Evaluation, ...] = EVALUATIONS
    env: EvalEnvConfig = EvalEnvConfig()
    rollout: EvalRolloutConfig = EvalRolloutConfig()


class ExpectedConfig(Section):
    """What the full recipe is expected to reach; copied from its source, never measured here, and used by no stage."""

    metrics: tuple[str, ...] = ()
    """Each `benchmark/measure`, such as nq/em."""
    values: tuple[Fraction, ...] = ()
    """After training, one for each metric."""
    before: tuple[Fraction, ...] = ()
    """Before training, one for each metric; empty when the source does not say."""
    source: str = ""

    @pydantic.model_validator(mode="after")
    def _is_complete(self) -> ExpectedConfig:
        if len(self.values) != len(self.metrics) or len(self.before) not in (0, len(self.metrics)):
            raise ValueError(
                f"{len(self.metrics)} metrics, {len(self.values)} values and {len(self.before)} before; give one value "
                "for each metric, and one or none of before"
            )
        if self.metrics and not self.source:
            raise ValueError("figures without a source; name the paper, page or run that they are from")
        return self
