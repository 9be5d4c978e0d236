"""Exported policies are what transformers and PEFT load, merged and as adapters, from finished and unfinished runs."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from seekling.cli.main import main
from seekling.errors import ConfigError
from seekling.learn.local import LocalLearner
from seekling.models import load_policy
from seekling.pipeline.export import export_run
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, village_recipe

IDS = torch.arange(5, 45)[None]


# PEFT asks transformers for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_model_dir):
    """A finished run with adapters, and the same one as it was when it was interrupted in SFT."""
    folder = tmp_path_factory.mktemp("lora")
    recipe = village_recipe(
        folder / "village",
        tiny_model_dir,
        model={"lora_rank": 4, "lora_alpha": 8},
        sft={"epochs": 3},
        rl={"steps": 1, "kl_coefficient": 0.0},
        checkpoint={"every_steps": 1, "keep_last": 2},
        eval={"stages": []},
    )
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, folder / "run", QuietReporter("sft", 3))
    shutil.copytree(folder / "run", folder / "unfinished")
    run_recipe(recipe, folder / "run", QuietReporter())
    return folder / "run", folder / "unfinished"


@pytest.fixture
def run(runs):
    return runs[0]


@torch.no_grad()
def logits(model):
    return model.eval()(IDS).logits


def test_merged_weights_and_adapter_on_its_base_say_the_same_and_not_what_the_base_says(run, tmp_path, tiny_model_dir):
    assert export_run(run, tmp_path / "merged", policy="sft") == "sft"
    assert export_run(run, tmp_path / "adapter", policy="sft", is_adapter=True) == "sft"
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    plain = logits(base)
    adapted = logits(PeftModel.from_pretrained(base, tmp_path / "adapter"))
    assert torch.allclose(adapted, logits(merged), atol=1e-5)
    assert not torch.allclose(plain, logits(merged), atol=1e-3)
    # transformers by itself finds the base model where the adapter says it is.
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")), adapted, atol=1e-5)


def test_an_adapter_has_the_files_that_loaders_ask_for(run, tmp_path, tiny_model_dir):
    best = "best: RL step 1 (the last; no dev questions were asked)"
    assert export_run(run, tmp_path / "out", is_adapter=True) == best
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8)
    assert config["base_model_name_or_path"] == str(tiny_model_dir)
    linear = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert sorted(config["target_modules"]) == linear
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template is not None


def test_an_unfinished_run_gives_its_training_states_the_newest_without_a_name(runs, tmp_path):
    assert export_run(runs[1], tmp_path / "newest") == "state-sft-2"
    assert export_run(runs[1], tmp_path / "older", policy="state-sft-1") == "state-sft-1"
    assert export_run(runs[1], tmp_path / "adapter", is_adapter=True) == "state-sft-2"
    newest, older = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("newest", "older"))
    assert not torch.allclose(logits(newest), logits(older), atol=1e-4)
    adapted = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.allclose(logits(adapted), logits(newest), atol=1e-5)


def test_the_command_writes_and_says_what_it_wrote(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--out", str(tmp_path / "out"), "--policy", "sft", "--adapter"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"wrote sft (adapter) of {run} to {tmp_path / 'out'}"


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(run, tmp_path, tiny_model_dir):
    with pytest.raises(ConfigError, match=r"it has .*sft"):
        export_run(run, tmp_path / "out", policy="later")
    with pytest.raises(ConfigError, match="not a run folder"):
        export_run(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="exists already"):
        export_run(run, run)
    assert not any(tmp_path.iterdir())


def test_adapters_begin_with_what_the_seed_says_whatever_was_drawn_before(tiny_model_dir):
    """A run that is killed before its first state starts over, and has to be the same run."""
    first = []
    for number, seed in enumerate((3, 3, 4)):
        torch.manual_seed(number)
        model, _ = load_policy(tiny_model_dir, dtype="float32")
        before = torch.get_rng_state()
        LocalLearner(model, lora_rank=2, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        weights = dict(model.named_parameters())
        first.append(next(weights[name] for name in sorted(weights) if "lora_A" in name).detach())
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
