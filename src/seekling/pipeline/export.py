"""Policies as plain directories that transformers, PEFT and vLLM load: merged weights, or the adapter alone."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import cast

import safetensors.torch
import torch
from transformers import PreTrainedTokenizerBase

from seekling.config import Recipe
from seekling.doctor import MemoryPlan, free_bytes, opened_memory, read_model_shape
from seekling.doctor.memory import Stage
from seekling.errors import ConfigError, ModelError
from seekling.files import replacing
from seekling.kernels.memory import release_free_memory
from seekling.learn.critic import Critic
from seekling.learn.learner import Learner
from seekling.models import cache_home, load_policy, pick_device, pick_dtype, resolve_model
from seekling.serve.local_model import chosen_policy, recipe_of_run, trained_policy

WEIGHTS = "policy.pt"
"""File of a training state that holds the policy's weights and its optimizer."""
_ADAPTER = "-adapter"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def stage_base(recipe: Recipe, model_dir: Path, run: Path, stage: Stage) -> Path:
    """The directory whose weights a stage's learner is made of.

    It is the untrained model, which a training state then brings up to date; but where one of SFT and RL trains
    adapters and the other all weights, RL begins with what SFT exported, its adapters merged.

    Args:
        recipe: says what each stage trains.
        model_dir: of the untrained model.
        run: the run folder.
        stage: of the learner.
    """
    ranks = [recipe.model.rank_in(each) for each in ("sft", "rl")]
    is_other = stage == "rl" and recipe.has_sft and ranks[0] != ranks[1]
    return run / "checkpoints" / "sft" if is_other else model_dir


def new_learner(recipe: Recipe, model_dir: Path, stage: Stage = "sft") -> Learner:
    """A learner at the weights of a directory.

    Args:
        recipe: its model section and the settings of the stage.
        model_dir: a directory that `resolve_model` or `stage_base` returned.
        stage: which it learns in.
    """
    settings = recipe.sft if stage == "sft" else recipe.rl
    optimizer = recipe.sft if stage == "sft" else recipe.rl.optimizer
    # Before the model is loaded, since what is free then is for it too.
    checkpoint_layers = _must_checkpoint(recipe, model_dir)
    # What trains begins with all digits that the file has; what stays as it is, with those it is used with.
    dtype = pick_dtype(recipe.model.dtype, recipe.model.device)
    rank = recipe.model.rank_in(stage)
    loaded_as = dtype if rank else "float32"
    model, _ = load_policy(model_dir, dtype=loaded_as, device=recipe.model.device)
    return Learner(
        model,
        lora_rank=rank,
        lora_alpha=recipe.model.lora_alpha,
        seed=recipe.seed,
        weight_decay=optimizer.weight_decay,
        row_tokens=settings.row_tokens,
        max_grad_norm=optimizer.max_grad_norm,
        checkpoint_layers=checkpoint_layers,
        dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32,
    )


def new_critic(recipe: Recipe, policy: Learner, begins_at: Path | None = None) -> Critic:
    """A critic that begins where a policy stands.

    Args:
        recipe: its sections model and rl.
        policy: with the weights.
        begins_at: a directory that has them instead.
    """
    config = recipe.model
    model = None if begins_at is None else load_policy(begins_at, dtype=config.dtype, device=config.device)[0]
    return Critic(
        policy,
        begins_at=model,
        lora_rank=recipe.model.rank_in("rl"),
        lora_alpha=recipe.model.lora_alpha,
        row_tokens=recipe.rl.row_tokens,
        max_grad_norm=recipe.rl.critic.max_grad_norm,
    )


def _must_checkpoint(recipe: Recipe, model_dir: Path) -> bool:
    try:
        shape = read_model_shape(model_dir)
    except ModelError:  # of a layout whose size cannot be read without loading it
        return False
    dtype = pick_dtype(recipe.model.dtype, recipe.model.device)
    # What an evaluation left behind is free too.
    release_free_memory()
    free = free_bytes(pick_device(recipe.model.device), cache_home())
    if free is not None:
        # Process and sampler are there already and part of the prediction. Not what the process really holds: pages of
        # files count in it and as free, and a large index is no room for learning.
        free += opened_memory(shape, dtype=dtype).total_bytes
    return MemoryPlan(recipe, shape, dtype=dtype, free_bytes=free).checkpoints


def export_policy(learner: Learner, tokenizer: PreTrainedTokenizerBase, model_dir: Path, out: Path) -> None:
    """Write the policy as a plain Hugging Face directory, adapters merged, atomically.

    Args:
        learner: has the weights.
        tokenizer: of the model.
        model_dir: where the model came from; its configuration is copied.
        out: the directory; replaced if it exists.
    """
    with replacing(out) as building:
        building.mkdir()
        for name in ("config.json", "generation_config.json"):
            if (model_dir / name).exists():
                shutil.copy(model_dir / name, building / name)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in learner.export_weights().items()}
        safetensors.torch.save_file(weights, building / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((building / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
        (building / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(str(building))


def export_adapter(learner: Learner, tokenizer: PreTrainedTokenizerBase, spec: str, model_dir: Path, out: Path) -> None:
    """Write the low-rank adapters alone in the layout of PEFT, atomically.

    Args:
        learner: has the adapters.
        tokenizer: of the model.
        spec: of the model; loaders are told to put the adapters on it when it is a hub id.
        model_dir: what they are told otherwise.
        out: the directory; replaced if it exists.

    Raises:
        ModelError: all weights are trained, so there are no adapters.
    """
    is_hub_id = _HUB_ID.fullmatch(spec) is not None and not Path(spec).exists()
    with replacing(out) as building:
        learner.save_adapter(building, base_model=spec if is_hub_id else str(model_dir.resolve()))
        tokenizer.save_pretrained(str(building))


def export_stage(learner: Learner, tokenizer: PreTrainedTokenizerBase, spec: str, model_dir: Path, out: Path) -> None:
    """Write what a run keeps of a policy: the merged directory and, beside it, the adapter when there is one.

    The arguments are those of `export_adapter`.
    """
    if learner.has_adapters:
        export_adapter(learner, tokenizer, spec, model_dir, out.with_name(out.name + _ADAPTER))
    export_policy(learner, tokenizer, model_dir, out)


def copy_policy(source: Path, out: Path) -> None:
    """Write what `export_stage` wrote under another name too, atomically; where the disk can, without its bytes."""

    def link(file: str, copy: str) -> None:
        try:
            os.link(file, copy)
        except OSError:
            shutil.copy2(file, copy)

    for suffix in (_ADAPTER, ""):
        folder = source.with_name(source.name + suffix)
        if folder.is_dir():
            with replacing(out.with_name(out.name + suffix)) as building:
                shutil.copytree(folder, building, copy_function=link)


def export_run(run: Path, out: Path, *, policy: str = "", is_adapter: bool = False) -> str:
    """Export a policy of a run, finished or not.

    Args:
        run: a run folder.
        out: the directory to write; must not exist.
        policy: a name in the run's `checkpoints`: best, rl, sft, or a training state such as state-rl-20. Empty: the
            best, and where none is chosen yet the newest training state, else rl, else sft.
        is_adapter: the adapter alone instead of the merged weights.

    Returns:
        What was exported, in words.

    Raises:
        ConfigError: no such run, policy or adapter, or `out` exists.
    """
    recipe = recipe_of_run(run)
    if out.exists():
        raise ConfigError(f"{out} exists already; name a folder that does not")
    source, words = _choose(run, policy)
    if source.name.startswith("state-"):
        stage = cast("Stage", source.name.split("-")[1])
        model_dir = resolve_model(recipe.model.spec)
        base = stage_base(recipe, model_dir, run, stage)
        _, tokenizer = load_policy(base, dtype=recipe.model.dtype)
        learner = new_learner(recipe, base, stage)
        learner.load(source / WEIGHTS)
        if is_adapter:
            spec = recipe.model.spec if base == model_dir else str(base)
            export_adapter(learner, tokenizer, spec, base, out)
        else:
            export_policy(learner, tokenizer, base, out)
        return words
    chosen = source.with_name(source.name + _ADAPTER) if is_adapter else source
    if not chosen.is_dir():
        raise ConfigError(
            f"{source} has no adapter beside it: that stage trained all weights (model.lora_rank, lora_stages)"
        )
    with replacing(out) as building:
        shutil.copytree(chosen, building)
    return words


def _choose(run: Path, policy: str) -> tuple[Path, str]:
    folders = [path for path in (run / "checkpoints").glob("[!.]*") if path.is_dir()]
    folders = [path for path in folders if not path.name.endswith(_ADAPTER)]
    found = {path.name: path for path in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)}
    if policy and policy not in found:
        raise ConfigError(f"{run} has no policy {policy!r}; it has {', '.join(found) or 'none yet'}")
    states = [name for name in found if name.startswith("state-")]
    if policy not in states and (policy or not states or chosen_policy(run)):
        return trained_policy(run, policy)
    return found[policy or states[0]], policy or states[0]
