"""Which implementations a run samples and learns with: the one place that names them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
from transformers import PreTrainedTokenizerBase

from seekling.config import Recipe
from seekling.doctor.machine import free_bytes
from seekling.doctor.memory import MemoryPlan, Stage, opened_memory
from seekling.doctor.shape import read_model_shape
from seekling.errors import MissingExtraError, ModelError
from seekling.kernels.backend import use_kernels
from seekling.kernels.memory import release_free_memory
from seekling.learn.learner import Checkpoint, Learner, WeightSync
from seekling.learn.local import LocalLearner
from seekling.models import cache_home, load_model, pick_device, pick_dtype, resolve_model
from seekling.models.load import load_tokenizer
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.sync import PROBE, CheckedSync, InMemorySync
from seekling.retrieval.library import Library
from seekling.rollout.sampler import Sampler, takes_vllm
from seekling.scale.state import AnyCheckpoint
from seekling.serve.agent import Agent, open_agent
from seekling.types import Message


def new_checkpoint(recipe: Recipe) -> Checkpoint:
    """Keeps the weights of what `new_learner` and `open_learner` make."""
    if recipe.scale.engine != "tinker":
        return AnyCheckpoint()
    _need_tinker()
    from seekling.scale.tinker_weights import TinkerCheckpoint

    return TinkerCheckpoint(pick_dtype(recipe.model.dtype, recipe.model.device))


class _Settings(TypedDict):
    """Of every learner that is ours."""

    lora_rank: int
    lora_alpha: int
    seed: int
    weight_decay: float
    row_tokens: int
    max_grad_norm: float


def _settings(recipe: Recipe, stage: Stage) -> _Settings:
    section = recipe.sft if stage == "sft" else recipe.rl
    optimizer = recipe.sft if stage == "sft" else recipe.rl.optimizer
    return {
        "lora_rank": recipe.model.rank_in(stage),
        "lora_alpha": recipe.model.lora_alpha,
        "seed": recipe.seed,
        "weight_decay": optimizer.weight_decay,
        "row_tokens": section.row_tokens,
        "max_grad_norm": optimizer.max_grad_norm,
    }


def new_learner(
    recipe: Recipe, model_dir: Path, stage: Stage = "sft", *, log: Callable[[str], None] = lambda line: None
) -> Learner:
    """A learner at the weights of a directory that `resolve_model` or `stage_base` returned, for a stage."""
    settings = _settings(recipe, stage)
    if recipe.scale.engine == "tinker":
        _need_tinker()
        from seekling.scale.tinker_client import Service, TinkerLearner

        return TinkerLearner(Service.of(recipe, model_dir), rank=settings["lora_rank"], seed=recipe.seed)
    # Before the model is loaded, since what is free then is for it too.
    checkpoint_layers = _must_checkpoint(recipe, model_dir)
    if checkpoint_layers:
        log("memory is short: layers are computed twice in learning (gradient checkpointing)")
    # What trains begins with all digits that the file has; what stays as it is, with those it is used with.
    dtype = pick_dtype(recipe.model.dtype, recipe.model.device)
    return LocalLearner(
        load_model(model_dir, dtype=dtype if settings["lora_rank"] else "float32", device=recipe.model.device),
        checkpoint_layers=checkpoint_layers,
        dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32,
        **settings,
    )


def open_learner(recipe: Recipe, model_dir: Path, stage: Stage, *, run: Path, log: Callable[[str], None]) -> Learner:
    """The learner of a run, in this process or among those that `recipe.scale` asks for; see `new_learner`.

    `model_dir` and the run's folder are on a disk that all machines see.

    Raises:
        SeeklingError: the engine is not installed, or its processes do not start.
    """
    scale = recipe.scale
    if scale.engine != "ray" or scale.learner_ranks == 1:
        return new_learner(recipe, model_dir, stage, log=log)
    from seekling.scale.cluster import connect, need_ray

    need_ray()
    from seekling.scale.rank import LearnerSpec
    from seekling.scale.sharded import Ranks, ShardedLearner

    connect(scale, log)
    ranks = Ranks(scale.learner_ranks, device=recipe.model.device, timeout_s=scale.learner_timeout_s)
    spec = LearnerSpec(
        model_dir.absolute(),
        dtype=recipe.model.dtype,
        device=ranks.device,
        # What a GPU of another machine has free is not known here.
        checkpoint_layers=ranks.device == "cuda" or _must_checkpoint(recipe, model_dir),
        **_settings(recipe, stage),
    )
    scratch = run / "checkpoints" / f".learner.{os.getpid()}.tmp"  # what a crash leaves is removed at the next start
    return ShardedLearner(ranks, spec, scratch=scratch, max_restarts=scale.max_restarts, log=log)


def new_sync(recipe: Recipe, agent: Agent) -> WeightSync:
    """How weights reach the agent's sampler; one that is not ours is asked each time whether it has them."""
    if recipe.scale.engine == "tinker":
        from seekling.scale.tinker_weights import TinkerSync

        return TinkerSync(resolve_model(recipe.model.spec, log=lambda line: None))
    load = partial(load_model, dtype=recipe.model.dtype, device=recipe.model.device)
    sync: WeightSync = InMemorySync(load)
    if recipe.scale.engine == "ray":
        from seekling.scale.pool import StoreSync

        sync = StoreSync(load, keeps_digits=recipe.rollout.weight_bits == 8)
    if not takes_vllm(recipe):
        return sync
    prompt = agent.renderer.prompt([Message("user", PROBE)])
    return CheckedSync(sync, load, prompt, limit=recipe.rl.loss.drift_limit)


@contextmanager
def open_sampling(
    recipe: Recipe, folder: RunFolder, library: Library, model_dir: Path, log: Callable[[str], None]
) -> Iterator[Agent]:
    """The agent of a run: its episodes are made in this process, or by the samplers that `recipe.scale` asks for.

    This process searches `library`, other samplers open their own; `log` is told of episodes lost or counted twice.

    Raises:
        SeeklingError: the engine is not installed, or a sampler cannot start.
    """
    if recipe.scale.engine != "ray":
        open_far = _open_tinker_sampler if recipe.scale.engine == "tinker" else None
        with open_agent(recipe, library, model_dir, open_far) as agent:
            yield agent
        return
    from seekling.scale.cluster import need_ray

    need_ray()
    from seekling.scale.ledger import Ledger, problems
    from seekling.scale.pool import SamplerPool, open_place
    from seekling.scale.roller import Dispatcher, PoolRoller

    ledger = folder.path / "ledger.jsonl"

    def open_pool(recipe: Recipe, model_dir: Path) -> tuple[SamplerPool, PreTrainedTokenizerBase]:
        use_kernels(recipe.model.kernels)  # what learns computes with them, too
        tokenizer = load_tokenizer(model_dir)
        return SamplerPool(recipe, open_place(recipe, folder.path, model_dir), Ledger(ledger), log), tokenizer

    with open_agent(recipe, library, model_dir, open_pool) as agent:
        assert isinstance(agent.sampler, SamplerPool)
        roller = PoolRoller(agent.env, agent.sampler, agent.renderer, Dispatcher(agent.sampler))
        yield replace(agent, roller=roller)
    for problem in problems(ledger, folder.count_episodes("rl")):
        log(f"warning: {ledger.name} does not balance: {problem}")


def _open_tinker_sampler(recipe: Recipe, model_dir: Path) -> tuple[Sampler, PreTrainedTokenizerBase]:
    _need_tinker()
    from seekling.scale.tinker_client import Service, TinkerSampler

    service, tokenizer = Service.of(recipe, model_dir), load_tokenizer(model_dir)
    slots, tokens = recipe.rollout.in_flight, recipe.cache_tokens
    return TinkerSampler(service, tokenizer, model_dir, num_slots=slots, episode_tokens=tokens), tokenizer


def _need_tinker() -> None:
    if importlib.util.find_spec("tinker") is None:
        raise MissingExtraError(
            "scale.engine = \"tinker\" needs the tinker SDK; install it with: pip install 'seekling[tinker]'"
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
