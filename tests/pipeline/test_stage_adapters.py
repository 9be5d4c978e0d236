"""Stages that train adapters beside stages that train all weights: SFT's adapters are merged, and RL begins there."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from seekling.config import build_recipe
from seekling.errors import ConfigError
from seekling.pipeline.export import export_run
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, village_recipe, what_must_repeat

# PEFT asks transformers for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
EMBEDDINGS = "model.embed_tokens.weight"
"""Weights that have no adapter."""
PPO = {
    "steps": 2,
    "baseline": "gae",
    "group_size": 2,
    "kl": "k1",
    "kl_in": "reward",
    "kl_coefficient": 0.01,
    "learning_rate": 1e-3,
}


def recipe_of(folder, model_dir, stages, **rl):
    return village_recipe(
        folder,
        model_dir,
        model={"lora_rank": 4, "lora_alpha": 8, "lora_stages": stages},
        sft={"epochs": 3, "learning_rate": 2e-2},
        rl=rl,
        eval={"stages": ["sft", "rl"], "num_questions": 2},
        checkpoint={"every_steps": 1},
    )


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_model_dir):
    """SFT with adapters, then PPO of all weights: what process-distill-ppo.toml does."""
    return recipe_of(tmp_path_factory.mktemp("village"), tiny_model_dir, ["sft"], **PPO)


@pytest.fixture(scope="module")
def straight(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "straight"
    run_recipe(recipe, folder, QuietReporter())
    return folder


def weights(folder, name):
    return load_file(folder / "checkpoints" / name / "model.safetensors")


def test_sft_trains_adapters_and_rl_all_weights(straight, tiny_model_dir):
    untrained, sft, rl = (
        load_file(tiny_model_dir / "model.safetensors"),
        weights(straight, "sft"),
        weights(straight, "rl"),
    )
    assert (straight / "checkpoints" / "sft-adapter" / "adapter_model.safetensors").exists()
    assert not (straight / "checkpoints" / "rl-adapter").exists()
    assert torch.equal(sft[EMBEDDINGS], untrained[EMBEDDINGS])
    assert not torch.equal(rl[EMBEDDINGS], sft[EMBEDDINGS])
    # RL began with the adapters merged: it is nearer to what SFT made than to the untrained model.
    moved = [name for name in sft if not torch.equal(sft[name], untrained[name])]
    assert len(moved) >= 7
    for name in moved:
        assert (rl[name] - sft[name]).norm() < (sft[name] - untrained[name]).norm() / 2


@pytest.mark.parametrize(("stage", "after"), [("sft", 2), ("eval-sft", 1), ("rl", 1), ("eval-rl", 1)])
def test_it_goes_on_from_any_interruption_as_if_there_had_been_none(recipe, straight, tmp_path, stage, after):
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "run", QuietReporter(stage, after))
    if stage == "eval-rl":  # a training state of RL holds all weights, and is exported as such
        assert export_run(tmp_path / "run", tmp_path / "out", policy="state-rl-2") == "state-rl-2"
        exported = load_file(tmp_path / "out" / "model.safetensors")
        assert all(torch.equal(exported[name], value) for name, value in weights(straight, "rl").items())
    run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert what_must_repeat(tmp_path / "run") == what_must_repeat(straight)


def test_adapters_of_rl_alone_are_put_on_what_sft_made(tiny_model_dir, tmp_path):
    recipe = recipe_of(tmp_path / "village", tiny_model_dir, ["rl"], **PPO)
    run_recipe(recipe, tmp_path / "run", QuietReporter())
    sft, rl = weights(tmp_path / "run", "sft"), weights(tmp_path / "run", "rl")
    untrained = load_file(tiny_model_dir / "model.safetensors")
    assert not torch.equal(sft[EMBEDDINGS], untrained[EMBEDDINGS])
    assert torch.equal(rl[EMBEDDINGS], sft[EMBEDDINGS])
    assert not torch.equal(*(each["model.layers.0.mlp.up_proj.weight"] for each in (sft, rl)))
    assert not (tmp_path / "run" / "checkpoints" / "sft-adapter").exists()
    assert (tmp_path / "run" / "checkpoints" / "rl-adapter").exists()
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "stopped", QuietReporter("rl", 1))
    run_recipe(recipe, tmp_path / "stopped", QuietReporter())
    resumed = weights(tmp_path / "stopped", "rl")
    assert all(torch.equal(resumed[name], value) for name, value in rl.items())


@pytest.mark.long
def test_a_critic_with_adapters_goes_on_upon_what_sft_made(tiny_model_dir, tmp_path):
    """Its state has the adapters alone: what they are put on is the policy after SFT, also in a later process."""
    recipe = recipe_of(tmp_path / "village", tiny_model_dir, ["sft", "rl"], **PPO)
    run_recipe(recipe, tmp_path / "straight", QuietReporter())
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "run", QuietReporter("rl", 2))
    run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert what_must_repeat(tmp_path / "run") == what_must_repeat(tmp_path / "straight")


def test_stages_without_a_rank_mean_nothing():
    with pytest.raises(ConfigError, match=r"no effect with model\.lora_rank = 0"):
        build_recipe({"model": {"lora_stages": ["sft"]}})
