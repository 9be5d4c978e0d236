"""A directory becomes a policy, or one clear error."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seekling.errors import ModelError
from seekling.models import load_policy


@pytest.fixture
def copied(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def edit_json(path: Path, **changes: object) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps(value))


def test_a_saved_model_loads_in_eval_mode_with_pad_different_from_eos(tiny_model_dir: Path):
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    assert not model.training
    assert str(model.dtype) == "torch.float32"
    assert tokenizer.pad_token == "<|pad|>"
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert str(load_policy(tiny_model_dir, dtype="bfloat16")[0].dtype) == "torch.bfloat16"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variable is read on x86_64")
def test_bfloat16_is_not_picked_where_torch_was_told_to_leave_out_its_instructions():
    code = "from seekling.models import pick_dtype; print(pick_dtype('auto', 'cpu'))"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "float32\n"


def test_a_tokenizer_that_pads_with_its_end_token_is_given_another_padding_token(copied: Path):
    edit_json(copied / "tokenizer_config.json", pad_token="<|im_end|>")
    _, tokenizer = load_policy(copied, dtype="float32")
    assert tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer.eos_token == "<|im_end|>"


def test_weights_that_are_missing_from_the_file_are_not_replaced_by_random_ones(copied: Path):
    from safetensors.numpy import load_file, save_file

    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 weights .* model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(copied, dtype="float32")


def test_a_truncated_weight_file_is_one_clear_error(copied: Path):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load a model from"):
        load_policy(copied, dtype="float32")


def test_an_unknown_architecture_is_one_clear_error(copied: Path):
    edit_json(copied / "config.json", model_type="no-such-architecture")
    with pytest.raises(ModelError, match="no-such-architecture"):
        load_policy(copied, dtype="float32")
