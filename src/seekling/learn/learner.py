"""What a learner is, how its weights reach a sampler, and where they are kept: the seams of training.

`train` and `train_sft` know these alone. A learner may be in this process or a service far away: nobody is handed its
model, tensors have no names here, and weights are spoken of by their version.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from seekling.config import RlConfig
from seekling.learn.batch import Batch, LearnStats
from seekling.learn.loss import Aggregation, TokenLoss, TokenMeasure
from seekling.rollout.sampler import Sampler
from seekling.types import Trajectory


class Trained(Protocol):
    """Weights that train: `forward_backward` adds gradients, `optim_step` applies them."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the stage, skipped ones included."""
        ...

    def forward_backward(
        self,
        batch: Batch,
        loss: TokenLoss,
        *,
        aggregation: Aggregation = "token_mean",
        divide_by: float | None = None,
        measure: TokenMeasure | None = None,
    ) -> LearnStats:
        """Add the gradients of a batch to those already waiting for `optim_step`.

        Args:
            batch: B trajectories with (B,) advantages.
            loss: per token, a function of what it is given alone: it may be called anywhere.
            aggregation: how the tokens' losses become one number.
            divide_by: what their weighted sum is divided by; None: what the aggregation says for this batch alone.
            measure: of a policy loss, for the statistics.

        Raises:
            NothingToLearnError: no token of the batch is trained.
        """
        ...

    def optim_step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        """Divide the waiting gradients, apply them and forget them; skip the step when they are not finite.

        A skipped step leaves weights and moments as they were, and counts in `num_steps`.

        Returns:
            The norm of the gradients before clipping; not finite when the step was skipped.

        Raises:
            NothingToLearnError: there are no gradients, or several steps in a row had none that were finite.
        """
        ...


class Critic(Trained, Protocol):
    """The value model of PPO."""

    def values(self, trajectories: Sequence[Trajectory]) -> Sequence[np.ndarray]:
        """B arrays (T,) float32: at an action token, the reward expected before it was chosen; 0 elsewhere."""
        ...


class Learner(Trained, Protocol):
    """The policy's weights."""

    @property
    def critic(self) -> Critic | None:
        """The value model of PPO; saved and loaded with the policy."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether the anchor of a KL term was kept, or loaded with the weights."""
        ...

    def logprobs(self, trajectories: Sequence[Trajectory]) -> Sequence[np.ndarray]:
        """B arrays (T,) float32: log-probabilities of the trained tokens under the current weights, 0 elsewhere."""
        ...

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> Sequence[np.ndarray]:
        """As `logprobs`, under the policy that `keep_reference` froze."""
        ...

    def keep_reference(self, folder: Path | None = None) -> None:
        """Freeze the anchor of a KL term: the policy of a model directory, or else the policy as it is now."""
        ...

    def add_critic(self, config: RlConfig, *, lora_rank: int, begins_at: Path | None = None) -> None:
        """Begin a critic at a model directory, or else at the policy as it is now."""
        ...

    def start_stage(
        self,
        *,
        row_tokens: int,
        max_grad_norm: float,
        betas: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        keep_moments: bool = False,
    ) -> None:
        """Begin a new stage with these weights: the optimizer's moments and the step count start afresh.

        Args:
            row_tokens: tokens that go through the model at once, at most.
            max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
            betas: of AdamW; None keeps those of the stage before.
            weight_decay: of AdamW; None keeps that of the stage before.
            keep_moments: the second moments stay, with the number of steps that they are averages of; the first
                ones, which are a direction, are forgotten anyway.
        """
        ...

    def close(self) -> None:
        """Give its memory back; nothing can be learned afterwards."""
        ...


class WeightSync(Protocol):
    """Brings weights to a sampler. An implementation knows its kinds of learner and sampler, and says so."""

    def publish(self, learner: Learner, sampler: Sampler, version: int) -> None:
        """Let the sampler sample with the learner's weights as they are now, under this version.

        Raises:
            InfrastructureError: samples are still running, or the weights did not arrive.
        """
        ...

    def publish_exported(self, folder: Path, sampler: Sampler, version: int) -> None:
        """The same with a policy that `Checkpoint.export` wrote, or with another model directory."""
        ...


class Checkpoint(Protocol):
    """Keeps weights in folders: to go on training from, and as policies that others load."""

    def save(self, learner: Learner, folder: Path) -> None:
        """Write all that training goes on from into a folder that exists."""
        ...

    def load(self, learner: Learner, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            DataError: it is missing, damaged, or of another model. Nothing has changed.
        """
        ...

    def export(self, learner: Learner, folder: Path, *, base: Path) -> None:
        """Write, or replace, a plain Hugging Face directory of the policy atomically, adapters merged.

        Configuration and tokenizer are copied from `base`, the directory that the learner was made of.
        """
        ...

    def export_adapter(self, learner: Learner, folder: Path, *, base: Path, base_name: str) -> None:
        """Write the low-rank adapters alone in the layout of PEFT, atomically.

        `base` is as for `export`, `base_name` what loaders put the adapters on: a hub id or a directory.

        Raises:
            ModelError: all weights are trained, so there are no adapters.
        """
        ...
