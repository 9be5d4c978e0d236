"""A model by its spec, or the newest policy of a run, opened to be asked: for judges and for our own server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from seekling.errors import ConfigError
from seekling.models import load_policy, resolve_model
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.local_chat import LocalChat
from seekling.rollout.render import Renderer

CONTEXT_TOKENS = 4096
"""Prompt and reply, unless the model or the caller allows less."""


def trained_policy(run: Path) -> Path:
    """Model folder of a run's newest policy.

    Raises:
        ConfigError: the run has none yet.
    """
    trained = [run / "checkpoints" / name for name in ("rl", "sft")]
    found = next((path for path in trained if path.is_dir()), None)
    if found is None:
        raise ConfigError(f"{run} has no trained policy yet; finish it with: seekling train RECIPE --out {run}")
    return found


@contextlib.contextmanager
def open_local_chat(
    model_or_run: str,
    *,
    name: str = "",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    context_tokens: int = 0,
    in_flight: int = 16,
    cache_bytes: int = 2 * 1024**3,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[LocalChat]:
    """Load a model to be asked.

    Args:
        model_or_run: a model spec, or a run folder, of which the newest policy is taken.
        name: what it is called by those who ask; empty takes the name of the spec or folder.
        dtype: arithmetic of matrix products.
        context_tokens: prompt and reply together; 0 takes what the model allows, at most CONTEXT_TOKENS.
        in_flight: replies sampled at once.
        cache_bytes: memory for them; may lower `in_flight`.
        log: told what is being resolved.

    Raises:
        ConfigError: a run without a policy, or too little memory for one reply.
        ModelError: the spec cannot be resolved.
    """
    is_run = (Path(model_or_run) / "recipe.toml").is_file()
    folder = trained_policy(Path(model_or_run)) if is_run else resolve_model(model_or_run, log=log)
    model, tokenizer = load_policy(folder, dtype=dtype, device="auto")
    longest = int(model.config.max_position_embeddings or CONTEXT_TOKENS)
    context_tokens = min(context_tokens or CONTEXT_TOKENS, longest)
    sampler = LocalSampler(
        model, tokenizer, in_flight=in_flight, episode_tokens=context_tokens, cache_bytes=cache_bytes
    )
    known_as = Path(model_or_run).resolve().name if Path(model_or_run).exists() else model_or_run
    with LocalChat(sampler, Renderer(tokenizer), name=name or known_as, context_tokens=context_tokens) as chat:
        yield chat
