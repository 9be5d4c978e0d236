"""Sampler and learner must have the same weights: a run in which they have not is stopped before it is saved."""

from __future__ import annotations

import pytest

from seekling.config import Recipe
from seekling.errors import InfrastructureError
from seekling.learn.local import LocalLearner
from seekling.learn.rl import RlRun, train
from seekling.models import load_model, load_policy
from seekling.pipeline.guard import HealthGuard
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.stages import _Run
from seekling.pipeline.sync import InMemorySync
from seekling.rollout.loop import Decoding
from tests.learn.test_rl import QUESTIONS, toy
from tests.pipeline.runs import QuietReporter
from tests.settings import recipe_of, rl_config


class StaleSync(InMemorySync):
    """Brings new weights for the first two steps only, and the sampler says that it has all of them."""

    def publish(self, learner, sampler, version):
        if version < 2:
            super().publish(learner, sampler, version)
        sampler.policy_version = version


def rl_steps(tiny_model_dir, folder, recipe: Recipe, *, sync=InMemorySync, **settings):
    """The metrics of the steps that passed the guard."""
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    learner = LocalLearner(model)
    sampler, roller, reward = toy(tiny_model_dir, tokenizer)
    config = rl_config(steps=8, questions_per_step=4, learning_rate=0.02, warmup_steps=0, **settings)
    run = RlRun(QUESTIONS, config, seed=0)
    guard = HealthGuard(recipe, RunFolder(folder, recipe), None, run, QuietReporter())
    passed = []
    train(
        learner,
        sampler,
        roller,
        run,
        sync=sync(load_model),
        decoding=Decoding(1, 64),
        reward=reward,
        on_step=lambda step, metrics, records: passed.append(guard.look(metrics, records)),
    )
    return passed


def test_stale_weights_stop_the_run_as_soon_as_they_show(tiny_model_dir, tmp_path):
    with pytest.raises(InfrastructureError, match=r"RL step [3-5]: .* stale or damaged.*rl\.loss\.drift_limit"):
        rl_steps(tiny_model_dir, tmp_path, Recipe(), sync=StaleSync)


@pytest.mark.parametrize("settings", [{"minibatches": 2}, {"stream_minibatches": 2}])
def test_the_same_weights_differ_by_rounding_in_every_step_also_where_later_updates_do_not(
    tiny_model_dir, tmp_path, settings
):
    passed = rl_steps(tiny_model_dir, tmp_path, Recipe(), **settings)
    learned = [metrics for metrics in passed if "logprob_drift" in metrics]
    assert len(learned) >= 3
    assert all(metrics["logprob_drift"] <= metrics["logprob_drift_max"] < 1e-4 for metrics in learned)


def test_a_limit_of_zero_asks_nothing(tiny_model_dir, tmp_path):
    passed = rl_steps(tiny_model_dir, tmp_path, recipe_of({"rl": {"drift_limit": 0.0}}), sync=StaleSync)
    assert len(passed) == 8
    assert max(metrics.get("logprob_drift", 0.0) for metrics in passed) > 0.2


def test_a_skipped_update_is_told_in_the_terminal_and_logged(tiny_model_dir, tmp_path):
    recipe, reporter = Recipe(), QuietReporter()
    folder = RunFolder(tmp_path / "run", recipe)
    run = _Run(recipe, folder, None, None, tiny_model_dir, reporter, lambda *row: None)
    with run._training("sft", 2, LocalLearner(load_policy(tiny_model_dir, dtype="float32")[0])) as after_step:
        after_step(1, {"num_skipped_steps": 0}, "", "")
        after_step(2, {"num_skipped_steps": 1}, "", "")
    assert reporter.lines == ["warning: sft step 2: a gradient was not finite; update skipped"]
    assert [row["num_skipped_steps"] for row in folder.read_metrics("sft")] == [0, 1]
