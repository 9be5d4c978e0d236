"""LOCK: change these numbers only with a decision.

The loss curve of a fixed model, fixed data and fixed seeds. A refactor of learn/ must reproduce it; a change that is
meant to alter the arithmetic (a loss, an aggregation, the packing, the optimizer, the schedule) says so and writes the
new numbers here. On one machine the curve repeats bit for bit; between processors rounding differs, hence 1e-4.
"""

from __future__ import annotations

import numpy as np

from seekling.config import LossConfig, SftConfig
from seekling.learn.advantage import group_advantages
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import make_policy_loss
from seekling.learn.sft import train_sft
from tests.learn.models import group, small_model

SFT_LOSS = [4.998219, 4.481844, 4.636003, 3.235717, 3.432502, 3.314957]
SFT_GRAD_NORM = [5.215724, 4.702436, 4.282374, 3.466008, 3.072369, 3.987095]
RL_LOSS = [0.04174037, 0.01117206, 0.137672, 0.01197599]
RL_GRAD_NORM = [2.427744, 2.112619, 2.221121, 1.728101]


def sft_curve(learner):
    rows = []
    config = SftConfig(learning_rate=0.01, epochs=2, episodes_per_step=4, warmup_steps=2, decay="cosine")
    trajectories = [each for seed in range(3) for each in group(seed)]
    train_sft(learner, trajectories, config, seed=0, on_step=lambda _, m: rows.append((m["loss"], m["grad_norm"])))
    return rows


def rl_curve(learner):
    learner.keep_reference()
    learner.start_stage(row_tokens=60, max_grad_norm=1.0)
    rows = []
    for step in range(4):
        trajectories = [*group(10 + step), *group(20 + step)]
        rewards = np.random.default_rng(step).integers(0, 2, (2, 4)).astype(float)
        rewards[:, 0], rewards[:, 1] = 1.0, 0.0
        reference = {"reference_logprobs_A": learner.reference_logprobs(trajectories)}
        batch = Batch(trajectories, np.concatenate([group_advantages(row) for row in rewards]), reference)
        stats = learner.forward_backward(batch, make_policy_loss(LossConfig(kl_coefficient=0.05)))
        rows.append((stats.loss, learner.optim_step(0.01)))
    return rows


def test_the_loss_curves_are_those_that_were_locked():
    learner = LocalLearner(small_model(), row_tokens=100, weight_decay=0.01)
    sft, rl = sft_curve(learner), rl_curve(learner)
    np.testing.assert_allclose([loss for loss, _ in sft], SFT_LOSS, rtol=1e-4)
    np.testing.assert_allclose([norm for _, norm in sft], SFT_GRAD_NORM, rtol=1e-4)
    np.testing.assert_allclose([loss for loss, _ in rl], RL_LOSS, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([norm for _, norm in rl], RL_GRAD_NORM, rtol=1e-3)


def test_the_loss_curves_repeat_bit_for_bit():
    curves = []
    for _ in range(2):
        learner = LocalLearner(small_model(), row_tokens=100, weight_decay=0.01)
        curves.append((sft_curve(learner), rl_curve(learner)))
    assert curves[0] == curves[1]
