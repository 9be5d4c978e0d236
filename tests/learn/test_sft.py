"""Supervised fine-tuning: which batches, which rates, what is logged."""

from __future__ import annotations

import numpy as np
import pytest

from seekling.config import SftConfig
from seekling.errors import NothingToLearnError
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import clipped_policy_loss
from seekling.learn.sft import num_sft_steps, train_sft
from seekling.models import load_policy
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer, expert_trajectory
from seekling.types import Episode, StopReason
from tests.env.fakes import QUESTION, make_env
from tests.learn.models import group, small_model, trajectory
from tests.rollout.policies import open_sampler

CONFIG = SftConfig(learning_rate=0.01, epochs=2, episodes_per_step=3, warmup_steps=2, decay="linear")


def expert_set():
    return [*group(0), *group(1)]


@pytest.mark.parametrize(
    ("epochs", "per_step", "count", "steps"), [(1, 8, 8, 1), (1, 8, 9, 2), (2, 3, 8, 6), (3, 8, 1, 3), (1, 8, 0, 0)]
)
def test_the_number_of_steps_counts_the_last_smaller_batch(epochs, per_step, count, steps):
    assert num_sft_steps(SftConfig(epochs=epochs, episodes_per_step=per_step), count) == steps


def test_every_trajectory_is_seen_once_an_epoch_in_another_order_each_time():
    rows = []
    # Trajectory n has n trained tokens, so the logged counts say which were in a batch together.
    batch = [trajectory([3] * (2**n + 1), [0] + [1] * 2**n) for n in range(8)]
    train_sft(
        LocalLearner(small_model()), batch, CONFIG, seed=4, on_step=lambda step, metrics: rows.append((step, metrics))
    )
    assert [step for step, _ in rows] == [1, 2, 3, 4, 5, 6]
    seen = [metrics["trained_tokens"] for _, metrics in rows]
    assert sum(seen[:3]) == sum(seen[3:]) == 255
    assert [int(count).bit_count() for count in seen] == [3, 3, 2, 3, 3, 2]
    assert set(seen[:3]) != set(seen[3:])
    rates = [metrics["learning_rate"] for _, metrics in rows]
    np.testing.assert_allclose(rates, [0.005, 0.01, 0.01, 0.0075, 0.005, 0.0025], atol=1e-12)
    assert rows[-1][1]["loss"] < rows[0][1]["loss"]
    assert {"loss", "entropy", "grad_norm", "packed_tokens", "learn_s"} <= rows[0][1].keys()


@pytest.mark.parametrize("trajectories", [[], [trajectory([3, 4], [0, 0])] * 3, [trajectory([3, 4], [1, 0])]])
def test_a_set_without_a_trained_token_is_refused(trajectories):
    with pytest.raises(NothingToLearnError, match=f"{len(trajectories)} trajectories and not one trained token"):
        train_sft(LocalLearner(small_model()), trajectories, CONFIG, seed=0, on_step=lambda step, metrics: None)


def test_a_fine_tuned_model_acts_as_its_expert_did(tiny_model_dir):
    """From episodes to weights to episodes: the closing tag, sampled as three tokens, ends the turn and runs."""
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    renderer = Renderer(tokenizer)
    env = make_env(top_k=1, count_tokens=renderer.count_tokens)
    with env.start(QUESTION) as session:
        actions = ["<search> Fowey </search>", "<search> Maud born </search>", "<answer> Alnwick </answer>"]
        turns = [session.step(action, finish="stop").turn for action in actions]
        episode = Episode("7", "test", "tags", tuple(session.prompt), tuple(turns), "Alnwick", StopReason.ANSWERED)
    learner = LocalLearner(model)
    config = SftConfig(learning_rate=5e-3, epochs=100, episodes_per_step=1, warmup_steps=2)
    written = expert_trajectory(episode, env.protocol, renderer)
    train_sft(learner, [written], config, seed=0, on_step=lambda step, metrics: None)
    sampler = open_sampler(tiny_model_dir, episode_tokens=1024)
    sampler.load_weights(learner.export_weights(), version=1)
    roller = Roller(env, sampler, renderer)
    (group_,) = roller.rollout([QUESTION], Decoding(32, 1024, temperature=0.0))
    (acted,), (sampled,) = group_.episodes, group_.trajectories
    assert [turn.action for turn in acted.turns] == actions
    assert acted.answer == "Alnwick"
    assert sampled.token_ids_T.tolist() == written.token_ids_T.tolist()
    assert sampled.train_mask_T.tolist() == written.train_mask_T.tolist()
    assert acted.policy_version == 1


def test_a_batch_with_a_gradient_that_is_not_finite_is_passed_over(monkeypatch):
    learner, rows = LocalLearner(small_model()), []
    forward_backward = learner.forward_backward

    def spoiled(batch, loss, **more):
        spoilt = Batch(batch.trajectories, np.full(len(batch.trajectories), np.nan))
        return (
            forward_backward(spoilt, clipped_policy_loss) if learner.num_steps == 1 else forward_backward(batch, loss)
        )

    monkeypatch.setattr(learner, "forward_backward", spoiled)
    train_sft(learner, expert_set(), CONFIG, seed=1, on_step=lambda step, metrics: rows.append((step, metrics)))
    assert [step for step, _ in rows] == list(range(1, len(rows) + 1))
    assert [metrics["num_skipped_steps"] for _, metrics in rows] == [0, 1] + [0] * (len(rows) - 2)
    assert ["loss" in metrics for _, metrics in rows] == [True, False] + [True] * (len(rows) - 2)
