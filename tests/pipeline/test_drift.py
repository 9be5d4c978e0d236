"""Sampler and learner must have the same weights: a run in which they have not is stopped before it is saved."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from seekling.config import Recipe
from seekling.errors import InfrastructureError
from seekling.learn.local import LocalLearner
from seekling.learn.rl import RlRun, train
from seekling.models import load_model, load_policy
from seekling.pipeline.guard import HealthGuard
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.stages import _Run
from seekling.pipeline.sync import InMemorySync
from seekling.pipeline.trackers import Trackers
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from tests.learn.test_rl import QUESTIONS, OneTokenEnv, toy
from tests.pipeline.runs import QuietReporter
from tests.settings import recipe_of, rl_config


class StaleSync(InMemorySync):
    """Brings new weights for the first two steps only, and the sampler says that it has all of them."""

    def publish(self, learner, sampler, version):
        if version < 2:
            super().publish(learner, sampler, version)
        sampler.policy_version = version


class UntemperedSampler(LocalSampler):
    """Draws at the temperature that it is asked for, and records log-probabilities of temperature 1."""

    async def sample(self, request):
        sample = await super().sample(request)
        ids = torch.tensor([[*request.prompt_ids, *sample.token_ids]])
        logprobs_TV = self.plain(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        places = range(len(request.prompt_ids) - 1, ids.shape[1] - 1)
        return replace(sample, logprobs=tuple(logprobs_TV[places, sample.token_ids].tolist()))

    def load_weights(self, weights, version):
        super().load_weights(weights, version)
        self.plain = copy.deepcopy(self.fresh)
        with torch.no_grad():
            for name, parameter in self.plain.named_parameters():
                parameter.copy_(weights[name])


def rl_steps(
    tiny_model_dir,
    folder,
    recipe: Recipe,
    *,
    sync=InMemorySync,
    sampler_class=LocalSampler,
    temperature=1.0,
    **settings,
):
    """The metrics of the steps that passed the guard."""
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    learner = LocalLearner(model)
    _, _, reward = toy(tiny_model_dir, tokenizer)
    sampler = sampler_class(load_policy(tiny_model_dir, dtype="float32")[0], tokenizer, episode_tokens=64)
    sampler.fresh = load_policy(tiny_model_dir, dtype="float32")[0]
    roller = Roller(OneTokenEnv(), sampler, Renderer(tokenizer))
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
        decoding=Decoding(1, 64, temperature=temperature),
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


@pytest.mark.parametrize("temperature", [0.7, 1.15])
def test_logprobs_of_another_temperature_than_the_draws_stop_the_run(tiny_model_dir, tmp_path, temperature):
    recipe = recipe_of({"rl": {"drift_limit": 0.05}})
    passed = rl_steps(tiny_model_dir, tmp_path / "right", recipe, temperature=temperature)
    assert max(metrics.get("logprob_drift_max", 0.0) for metrics in passed) < 1e-4
    with pytest.raises(InfrastructureError, match=r"RL step \d: .*rl\.loss\.drift_limit"):
        rl_steps(tiny_model_dir, tmp_path / "wrong", recipe, sampler_class=UntemperedSampler, temperature=temperature)


def test_a_limit_of_zero_asks_nothing(tiny_model_dir, tmp_path):
    passed = rl_steps(tiny_model_dir, tmp_path, recipe_of({"rl": {"drift_limit": 0.0}}), sync=StaleSync)
    assert len(passed) == 8
    assert max(metrics.get("logprob_drift", 0.0) for metrics in passed) > 0.2


def test_a_skipped_update_is_told_in_the_terminal_and_logged(tiny_model_dir, tmp_path):
    recipe, reporter = Recipe(), QuietReporter()
    folder = RunFolder(tmp_path / "run", recipe)
    run = _Run(recipe, folder, None, None, tiny_model_dir, reporter, Trackers(()))
    with run._training("sft", 2, LocalLearner(load_policy(tiny_model_dir, dtype="float32")[0])) as after_step:
        after_step(1, {"num_skipped_steps": 0}, "", "")
        after_step(2, {"num_skipped_steps": 1}, "", "")
    assert reporter.lines == ["warning: sft step 2: a gradient was not finite; update skipped"]
    assert [row["num_skipped_steps"] for row in folder.read_metrics("sft")] == [0, 1]


def test_a_damaged_row_of_metrics_moves_no_other_step(tmp_path):
    """Step 4 closes the second stretch of two, also where the row of step 2 cannot be read."""
    recipe = recipe_of({"checkpoint": {"best_every": 2}})
    folder = RunFolder(tmp_path / "run", recipe)
    for step, reward in enumerate((0.1, 0.1, 0.5), start=1):
        folder.log_metrics("rl", step, {"reward_mean": reward, "num_groups": 4})
    lines = (folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (folder.path / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:20], lines[2], ""]), encoding="utf-8")
    guard = HealthGuard(recipe, folder, None, RlRun(QUESTIONS, rl_config(steps=8), seed=0), QuietReporter())
    guard.look({"reward_mean": 0.5}, [])
    assert guard.mark in ("candidate", "better")
