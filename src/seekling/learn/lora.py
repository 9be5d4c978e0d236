"""Low-rank adapters by PEFT, merged without touching the base weights.

Source: LoRA (arXiv:2106.09685).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from seekling.errors import ModelError
from seekling.models.lazy_weights import Adapters


def add_lora(model: PreTrainedModel, *, rank: int, alpha: int, seed: int = 0) -> PeftModel:
    """Put adapters on every linear layer but the head, in place, and freeze everything else.

    The adapters' first weights are drawn from the seed alone, so that a run that starts over is the same run.
    """
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # PEFT asks transformers for a property under its old name.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    return adapted


def adapters_of(adapted: PeftModel) -> Adapters:
    """The adapters alone, by the names of the weights that they change; the tensors are the model's own."""
    config = adapted.peft_config["default"]
    assert isinstance(config, LoraConfig)
    parameters = adapted.get_base_model().named_parameters()
    tensors: dict[str, Tensor] = {
        re.sub(r"\.(lora_[AB])\.default\.weight$", r".weight.\1", name): each
        for name, each in parameters
        if "lora_" in name
    }
    return Adapters(config.r, config.lora_alpha, tensors)


def base_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters by their plain transformers names, without those of adapters; the tensors are the model's own."""
    found = ((name, each) for name, each in model.named_parameters() if "lora_" not in name)
    return {name.replace(".base_layer.", "."): each for name, each in found}


def merged_weights(model: PreTrainedModel, adapted: PeftModel | None) -> Mapping[str, Tensor]:
    """Parameters by their plain transformers names, with base + delta where there is an adapter."""
    base = base_weights(model)
    return base if adapted is None else adapters_of(adapted).merged(base)


def save_adapter(
    adapted: PeftModel, folder: Path, *, base_model: str, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write adapters as PEFT, transformers and vLLM load them; `weights`, by their names, in place of their tensors."""
    config = adapted.peft_config["default"]
    assert isinstance(config, LoraConfig)
    assert isinstance(config.target_modules, set)
    config.base_model_name_or_path = base_model
    # "all-linear" was resolved to every layer's full name; the last parts say the same, to older loaders too.
    config.target_modules = {name.rpartition(".")[2] for name in config.target_modules}
    with warnings.catch_warnings():
        # PEFT looks up the base model's vocabulary on the hub, and says so when there is no hub.
        warnings.filterwarnings("ignore", message=".*Could not find a config file.*")
        adapted.save_pretrained(str(folder), save_embedding_layers=False, state_dict=weights)
    (folder / "README.md").unlink(missing_ok=True)  # a model card with nothing filled in


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Adapters in the layout of PEFT, by the names of the parameters that `add_lora` makes.

    Raises:
        ModelError: there are none, or they are damaged.
    """
    try:
        found = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{folder} has no readable adapter_model.safetensors ({error}); export it again") from None
    return {
        name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): each
        for name, each in found.items()
    }
