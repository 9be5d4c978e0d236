"""Supervised fine-tuning: expert trajectories -> weights, on action tokens only, by the learner that RL uses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from seekling.config import SftConfig
from seekling.errors import NothingToLearnError
from seekling.learn.batch import Batch
from seekling.learn.learner import Learner
from seekling.learn.loss import cross_entropy
from seekling.types import Trajectory

Metrics = dict[str, float]


def scheduled_rate(
    peak: float, step: int, *, total: int, warmup: int, decay: Literal["constant", "linear", "cosine"] = "constant"
) -> float:
    """The learning rate of a step, from 0, of `total`.

    It rises linearly for `warmup` steps, the first of which already learns, to `peak`, and then stays or falls to 0
    just after the last step.

    Example:
        >>> [round(scheduled_rate(1.0, step, total=6, warmup=2, decay="linear"), 2) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if decay == "constant":
        return peak
    progress = (step - warmup) / max(total - warmup, 1)
    return peak * (1 - progress) if decay == "linear" else peak * 0.5 * (1 + math.cos(math.pi * progress))


def num_sft_steps(config: SftConfig, num_trajectories: int) -> int:
    """Optimizer steps of the stage; the last batch of an epoch may be smaller."""
    return config.epochs * -(-num_trajectories // config.episodes_per_step)


def train_sft(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    config: SftConfig,
    *,
    seed: int,
    on_step: Callable[[int, Metrics], None],
) -> None:
    """Fine-tune; continues after `learner.num_steps`, so a resumed run sees the same batches.

    `seed` decides the order, in which trajectories are given nothing. `on_step` is called with the number of the step,
    from 1, and its metrics, of a skipped one only that it was; it may save, or raise to stop.

    Raises:
        NothingToLearnError: no trajectory has a trained token, or gradients are not finite time and again.
    """
    if not any(t.train_mask_T[1:].any() for t in trajectories):
        raise NothingToLearnError(
            f"SFT has {len(trajectories)} trajectories and not one trained token; check the expert episodes"
        )
    total = num_sft_steps(config, len(trajectories))
    per_epoch = total // config.epochs
    while learner.num_steps < total:
        started = time.perf_counter()
        epoch, batch_number = divmod(learner.num_steps, per_epoch)
        order = np.random.default_rng([seed, epoch]).permutation(len(trajectories))
        chosen = order[batch_number * config.episodes_per_step :][: config.episodes_per_step]
        batch = Batch([trajectories[index] for index in chosen], np.ones(len(chosen)))
        stats = learner.forward_backward(batch, cross_entropy)
        rate = scheduled_rate(
            config.learning_rate, learner.num_steps, total=total, warmup=config.warmup_steps, decay=config.decay
        )
        grad_norm = learner.optim_step(rate)
        metrics: Metrics = {"num_skipped_steps": 0, "learning_rate": rate, "learn_s": time.perf_counter() - started}
        if math.isfinite(grad_norm):
            metrics |= {
                "loss": stats.loss,
                "entropy": stats.entropy,
                "grad_norm": grad_norm,
                "trained_tokens": stats.num_trained_tokens,
                "packed_tokens": stats.num_packed_tokens,
            }
        else:
            metrics["num_skipped_steps"] = 1
        on_step(learner.num_steps, metrics)
