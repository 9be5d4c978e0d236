"""The learner and sampler over a Tinker service, against our own server of it, beside those of this process."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from seekling.config import LossConfig, Recipe, build_recipe
from seekling.errors import ConfigError
from seekling.evaluate.result_files import read_summary
from seekling.learn.batch import Batch
from seekling.learn.learner import Learner
from seekling.learn.local import LocalLearner
from seekling.learn.loss import cross_entropy, make_policy_loss, make_policy_measure
from seekling.models import load_model
from seekling.pipeline.implementations import new_learner
from seekling.pipeline.stages import run_recipe
from seekling.types import Trajectory
from tests.app_server import JsonHandler, running
from tests.pipeline.runs import QuietReporter, rows, village_recipe

pytest.importorskip("tinker", reason="the tinker SDK is not installed: pip install 'seekling[tinker]'")

from seekling.scale.tinker_client import Service
from seekling.scale.tinker_weights import _request
from tests.tinker_server import tinker_server

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RANK = 8
TOOLS = {"protocol": "tools", "observation_tokens": 240}
"""Without thoughts. A turn that the service ends inside one goes on with other random numbers than here."""
LOSSES = {
    "native": (
        "importance_sampling",
        LossConfig(kind="importance_sampling", old_logprobs="rollout", correction="none"),
        "sum",
    ),
    "bounded": ("ppo", LossConfig(kind="ppo", old_logprobs="rollout", correction="none", clip_high=0.1), "token_mean"),
    "own": (None, LossConfig(kind="cispo", correction_cap=1.1, kl_coefficient=0.1), "sequence_mean"),
}


@pytest.fixture(scope="module")
def url(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tinker_server(tiny_model_dir, tmp_path_factory.mktemp("saves"), context_tokens=1024) as address:
        yield address


def recipe_on(url: str, folder: Path, **changes: dict[str, object]) -> Recipe:
    raw: dict[str, dict[str, object]] = {
        "model": {"spec": str(folder), "lora_rank": RANK, "dtype": "float32"},
        "scale": {"engine": "tinker", "address": url},
        "rollout": {"episode_tokens": 700},
    }
    return build_recipe({"seed": 3, **{name: raw.get(name, {}) | changes.get(name, {}) for name in raw | changes}})


def episodes(behaviour: float = -2.0) -> Batch:
    """Four of different lengths, trained in two places each, with advantages of both signs."""
    generator = np.random.default_rng(0)
    trajectories = []
    for length in (20, 33, 41, 57):
        mask_T = np.zeros(length, bool)
        mask_T[5:12] = mask_T[length - 6 :] = True
        logprobs_T = np.where(mask_T, behaviour + generator.normal(0, 0.3, length), 0.0)
        trajectories.append(Trajectory(generator.integers(4, 480, length), mask_T, logprobs_T.astype(np.float32)))
    return Batch(trajectories, np.asarray([1.0, -0.5, 0.25, -1.5]), weights_B=np.asarray([1.0, 2.0, 1.0, 1.0]))


@pytest.mark.parametrize("kind", ["sft", *LOSSES])
def test_steps_are_those_of_the_local_learner(kind, url, tiny_model_dir):
    far: Learner = new_learner(recipe_on(url, tiny_model_dir), tiny_model_dir)
    near = LocalLearner(load_model(tiny_model_dir, dtype="float32"), lora_rank=RANK, seed=3)
    losses: dict[str, list[float]] = {"far": [], "near": []}
    for name, learner in (("far", far), ("near", near)):
        learner.start_stage(row_tokens=512, max_grad_norm=0.5, betas=(0.9, 0.95), weight_decay=0.01)
        batch, loss, aggregation, measure = episodes(), cross_entropy, "token_mean", None
        if kind != "sft":
            _, config, aggregation = LOSSES[kind]
            loss, measure = make_policy_loss(config), make_policy_measure(config)
            current = learner.logprobs(batch.trajectories)
            noise = [each.logprobs_T + 2.0 for each in batch.trajectories]
            batch = replace(batch, trajectories=[
                replace(each, logprobs_T=np.where(each.train_mask_T, values_T + more_T, 0).astype(np.float32))
                for each, values_T, more_T in zip(batch.trajectories, current, noise, strict=True)
            ])  # fmt: skip
            if config.kl_coefficient:
                learner.keep_reference()
        for _ in range(4):
            if kind == "own":
                batch = replace(batch, per_token={
                    "reference_logprobs_A": learner.reference_logprobs(batch.trajectories)
                })  # fmt: skip
            stats = learner.forward_backward(batch, loss, aggregation=aggregation, measure=measure)
            losses[name] += [
                stats.loss,
                stats.drift_mean,
                stats.ratio_max,
                stats.clip_fraction_high,
                learner.optim_step(5e-3),
            ]
    assert losses["near"][0] != pytest.approx(losses["near"][-5], rel=1e-2)  # something was learned
    assert losses["far"] == pytest.approx(losses["near"], rel=2e-4, abs=1e-6)
    np.testing.assert_allclose(
        np.concatenate(far.logprobs(batch.trajectories)), np.concatenate(near.logprobs(batch.trajectories)), atol=1e-4
    )
    far.close()


@pytest.fixture(scope="module")
def trained_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that sometimes answers right, so that groups have something to learn from."""
    folder = tmp_path_factory.mktemp("trained")
    run_recipe(
        village_recipe(folder, tiny_model_dir, env=TOOLS, rl={"steps": 0}, eval={"stages": []}),
        folder / "run",
        QuietReporter(),
    )
    return folder / "run" / "checkpoints" / "sft"


def village_on(url: str, folder: Path, model: Path) -> Recipe:
    """The village's recipe with adapters; with an address on the service there."""
    return village_recipe(
        folder,
        model,
        model={"lora_rank": RANK},
        env=TOOLS,
        sft={"learning_rate": 1e-4, "epochs": 4, "warmup_steps": 0},
        rollout={"temperature": 1.0},
        rl={"steps": 3, "warmup_steps": 0},
        checkpoint={"every_steps": 1},
        eval={"stages": ["base", "rl"]},
        scale={"engine": "tinker", "address": url} if url else {},
    )


def test_a_run_is_the_local_one_and_goes_on_when_the_server_was_started_anew(trained_dir, tmp_path):
    run_recipe(village_on("", tmp_path / "village", trained_dir), tmp_path / "near", QuietReporter())
    for reporter in (QuietReporter("rl", 2), QuietReporter()):
        with (
            tinker_server(trained_dir, tmp_path / "saves", context_tokens=1024) as url,
            contextlib.suppress(KeyboardInterrupt),
        ):
            run_recipe(village_on(url, tmp_path / "village", trained_dir), tmp_path / "far", reporter)
    near, far = (rows(tmp_path / name / "metrics.jsonl") for name in ("near", "far"))
    assert [(row["stage"], row["step"]) for row in far] == [(row["stage"], row["step"]) for row in near]
    for name in ("loss", "grad_norm", "reward_mean", "learning_rate"):
        found, expected = ([float(row[name]) for row in each if name in row] for each in (far, near))
        assert len(set(expected)) > 1
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    for file, folder in (("model", "best"), ("adapter_model", "best-adapter")):
        one, other = (
            safetensors.torch.load_file(tmp_path / name / "checkpoints" / folder / f"{file}.safetensors")
            for name in ("near", "far")
        )
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, atol=1e-4, rtol=0)
    for name in ("base", "rl"):
        one, other = (read_summary(tmp_path / run / "eval" / f"{name}.json") for run in ("near", "far"))
        assert (one.em, one.answered) == (other.em, other.answered)


def test_what_the_service_cannot_do_is_refused_before_anything_starts(url, tiny_model_dir, monkeypatch):
    for changes, words in (
        ({"model": {"lora_rank": 0}}, "set model.lora_rank"),
        ({"model": {"lora_alpha": 16}}, "leave model.lora_alpha"),
        ({"rollout": {"temperature": 0.7}}, "rollout.temperature = 1"),
        ({"rl": {"advantage": {"baseline": "gae", "scale": "std"}}}, "rl.advantage.baseline"),
        ({"rl": {"optimizer": {"stream_minibatches": 4}}}, 'rl.loss.aggregation = "sum"'),
    ):
        with pytest.raises(ConfigError, match=words):
            recipe_on(url, tiny_model_dir, **changes)
    with pytest.raises(ConfigError, match="set model\\.spec to one of"):
        new_learner(recipe_on(url, tiny_model_dir.parent), tiny_model_dir.parent)
    with pytest.raises(ConfigError, match="takes 1024 tokens"):
        new_learner(recipe_on(url, tiny_model_dir, rollout={"episode_tokens": 2000}), tiny_model_dir)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        new_learner(recipe_on("https://tinker.invalid", tiny_model_dir), tiny_model_dir)


def test_the_key_is_not_sent_in_the_clear_to_another_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    recipe = recipe_on("http://tinker.invalid:8000", tmp_path)
    with pytest.raises(ConfigError, match=r"tinker\.invalid .*plain http.*scale\.plain_http = true") as raised:
        Service.of(recipe, tmp_path)
    assert "tml-secret" not in str(raised.value)
    assert "tml-secret" not in repr(Service("http://127.0.0.1:1", "tml-secret", "model"))


def test_the_key_goes_to_the_service_alone_and_not_where_it_redirects_to():
    seen: list[tuple[str, str | None]] = []

    class Redirecting(JsonHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("X-API-Key")))
            there = f"http://localhost:{self.server.server_address[1]}/second"
            self.answer(302 if self.path == "/first" else 200, b"", {"Location": there})

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)) as here:
        service = Service(here, "tml-secret", "model")
        for url in (f"{here}/first", f"{here}/other".replace("127.0.0.1", "localhost")):
            urllib.request.urlopen(_request(url, service), timeout=30).close()
    assert seen == [("/first", "tml-secret"), ("/second", None), ("/other", None)]
