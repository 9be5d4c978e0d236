"""Sampler and learner must have the same weights: asked after every sync, and seen in every step of RL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from seekling.config import Recipe
from seekling.errors import InfrastructureError
from seekling.learn.local import LocalLearner
from seekling.learn.rl import RlRun, train
from seekling.models import load_model, load_policy
from seekling.pipeline import sync as sync_module
from seekling.pipeline.guard import HealthGuard
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.stages import _Run, run_recipe
from seekling.pipeline.sync import NUM_PROBES, CheckedSync, InMemorySync
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from tests.learn.test_rl import QUESTIONS, OneTokenEnv, toy
from tests.pipeline.runs import QuietReporter, rows, village_recipe
from tests.rollout.policies import changed, encode, open_sampler
from tests.rollout.vllm_models import skip_without_vllm, wide_model
from tests.settings import rl_config

LOAD = partial(load_model, dtype="float32")


@pytest.fixture
def learner(tiny_model_dir):
    """One whose weights are no longer those on disk."""
    return LocalLearner(changed(LOAD(tiny_model_dir)))


@pytest.fixture
def checked(tiny_model_dir):
    prompt = encode(load_policy(tiny_model_dir, dtype="float32")[1], "Bergen has a harbour built in")
    return lambda inner, limit, load=LOAD: CheckedSync(inner, load, prompt, limit=limit)


class Deaf(InMemorySync):
    """Says that the sampler has the weights."""

    def publish(self, learner, sampler, version):
        pass

    def publish_exported(self, folder, sampler, version):
        pass


def test_a_sampler_that_has_the_weights_passes_and_its_caches_are_given_back(tiny_model_dir, learner, checked):
    sampler = open_sampler(tiny_model_dir)
    checked(InMemorySync(LOAD), 1e-4).publish(learner, sampler, version=7)
    assert sampler.policy_version == 7
    assert sampler.stats.decoded_tokens >= NUM_PROBES
    assert not sampler._cache.keys[0].any()


def test_a_sampler_that_kept_the_old_weights_is_stopped_unless_there_is_no_limit(tiny_model_dir, learner, checked):
    sampler = open_sampler(tiny_model_dir)
    with pytest.raises(InfrastructureError, match=r"weights of version 7: .* stale or damaged.*rl\.loss\.drift_limit"):
        checked(Deaf(LOAD), 0.2).publish(learner, sampler, version=7)
    with pytest.raises(InfrastructureError, match="weights of version 2"):
        checked(Deaf(LOAD), 0.2, load=lambda folder: changed(LOAD(folder))).publish_exported(tiny_model_dir, sampler, 2)
    checked(Deaf(LOAD), 0.0).publish(learner, sampler, version=7)


class Untempered(LocalSampler):
    """Draws, and records, at temperature 1 whatever it is asked for."""

    async def sample(self, request):
        return await super().sample(replace(request, temperature=1.0))


def test_a_sampler_that_records_another_temperature_is_stopped(tiny_model_dir, learner, checked):
    sampler = Untempered(*load_policy(tiny_model_dir, dtype="float32"), in_flight=8, episode_tokens=256)
    with pytest.raises(InfrastructureError, match="weights of version 7"):
        checked(InMemorySync(LOAD), 0.01).publish(learner, sampler, version=7)


class StaleSync(InMemorySync):
    """Brings new weights for the first two steps only, and the sampler says that it has all of them."""

    def publish(self, learner, sampler, version):
        if version < 2:
            super().publish(learner, sampler, version)
        sampler.policy_version = version


def rl_steps(model_dir, folder, recipe: Recipe, *, sync=InMemorySync, sampler=None, limit=None, **settings):
    """The metrics of the steps that passed the guard, learning to say a token; with a limit every sync is checked."""
    model, tokenizer = load_policy(model_dir, dtype="float32")
    learner, sync = LocalLearner(model), sync(load_model)
    if limit is not None:
        sync = CheckedSync(sync, load_model, encode(tokenizer, "Bergen has a harbour built in"), limit=limit)
    own, _, reward = toy(model_dir, tokenizer)
    sampler = sampler or own
    roller = Roller(OneTokenEnv(), sampler, Renderer(tokenizer))
    config = rl_config(steps=8, questions_per_step=4, learning_rate=0.02, warmup_steps=0, **settings)
    run = RlRun(QUESTIONS, config, seed=0)
    guard = HealthGuard(recipe, RunFolder(folder, recipe), run, QuietReporter())
    passed = []
    train(
        learner,
        sampler,
        roller,
        run,
        sync=sync,
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


def test_a_skipped_update_is_told_in_the_terminal_and_logged(tiny_model_dir, tmp_path):
    recipe, reporter = Recipe(), QuietReporter()
    folder = RunFolder(tmp_path / "run", recipe)
    run = _Run(recipe, folder, None, None, tiny_model_dir, reporter, lambda *row: None)
    with run._training("sft", 2, LocalLearner(load_policy(tiny_model_dir, dtype="float32")[0])) as after_step:
        after_step(1, {"num_skipped_steps": 0}, "")
        after_step(2, {"num_skipped_steps": 1}, "")
    assert reporter.lines == ["warning: sft step 2: a gradient was not finite; update skipped"]
    assert [row["num_skipped_steps"] for row in folder.read_metrics("sft")] == [0, 1]


@pytest.mark.filterwarnings("default")  # vLLM warns of what is not ours to change
def test_a_whole_run_samples_with_vllm_and_every_handover_agrees_with_the_learner(
    tiny_model_dir, tmp_path, monkeypatch
):
    skip_without_vllm()
    found = {}

    def check(what, mean, largest, limit):
        found[what] = largest

    monkeypatch.setattr(sync_module, "check_drift", check)
    model_dir = wide_model(tiny_model_dir, tmp_path / "wide")
    recipe = village_recipe(tmp_path, model_dir, rollout={"sampler": "vllm", "cache_bytes": 64 * 1024**2})
    summaries = run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert [(each.stage, each.num_questions) for each in summaries] == [(f"eval-{n}", 4) for n in ("base", "sft", "rl")]
    assert len([row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]) == 3
    assert len(found) >= 3
    assert max(found.values()) < 1e-3
