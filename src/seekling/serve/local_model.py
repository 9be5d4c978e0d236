"""A model by its spec, or the best policy of a run, opened to be asked: for judges and for our own server."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from seekling.config import Recipe, build_recipe
from seekling.errors import ConfigError
from seekling.kernels.backend import chosen_kernels
from seekling.models import load_policy, pick_dtype, resolve_model
from seekling.models.load import Device, Dtype
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.local_chat import LocalChat
from seekling.rollout.render import Renderer
from seekling.types import Json

CONTEXT_TOKENS = 4096
"""Prompt and reply, unless the model or the caller allows less."""


def recipe_of_run(run: Path) -> Recipe:
    """The recipe of a run folder; a ConfigError where there is none that can be read."""
    try:
        return build_recipe(tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8")), origin=str(run))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{run} is not a run folder ({error}); train one with: seekling train RECIPE") from None


def trained_policy(run: Path, policy: str = "") -> tuple[Path, str]:
    """Model folder of a run's policy, and what it is, in words.

    Args:
        run: a run folder.
        policy: best, rl or sft. Empty: the best; of a run that has not chosen one yet, the newest.

    Raises:
        ConfigError: the run has it not.
    """
    chosen = chosen_policy(run)
    # A `best` that nobody chose is an older version's: the one with the highest rewards in training.
    names = [policy] if policy else [*(["best"] if chosen else []), "rl", "sft"]
    found = next((run / "checkpoints" / name for name in names if (run / "checkpoints" / name).is_dir()), None)
    if found is None and policy:
        raise ConfigError(f"{run} has no policy {policy!r}; take best, rl or sft, or train on")
    if found is None:
        raise ConfigError(f"{run} has no trained policy yet; finish it with: seekling train RECIPE --out {run}")
    if found.name != "best" or not chosen:
        return found, found.name
    name = f"RL step {chosen['step']}" if chosen.get("stage") == "rl" else "SFT"
    score = f"{chosen.get('k')}/{chosen['n']} on dev" if chosen.get("n") else "the last; no dev questions were asked"
    return found, f"best: {name} ({score})"


def chosen_policy(run: Path) -> dict[str, Json]:
    """Which policy a run chose; empty when it did not."""
    try:
        chosen = json.loads((run / "progress.json").read_text(encoding="utf-8"))["chosen"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return chosen if isinstance(chosen, dict) and "step" in chosen else {}


def rounds_weights(dtype: Dtype, device: Device = "auto") -> bool:
    """Whether a model that is asked gets weights of eight bits: where `auto` means float32, on a CPU with loops."""
    return dtype == "auto" and pick_dtype(dtype, device) == "float32" and chosen_kernels() != "reference"


@contextlib.contextmanager
def open_local_chat(
    model_or_run: str,
    *,
    name: str = "",
    policy: str = "",
    dtype: Dtype = "auto",
    context_tokens: int = 0,
    in_flight: int = 16,
    cache_bytes: int = 2 * 1024**3,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[LocalChat]:
    """Load a model to be asked.

    Args:
        model_or_run: a model spec, or a run folder.
        name: what it is called by those who ask; empty takes the name of the spec or folder.
        policy: of a run; see `trained_policy`.
        dtype: arithmetic of matrix products; where auto means float32, their weights are rounded to eight bits.
        context_tokens: prompt and reply together; 0 takes what the model allows, at most CONTEXT_TOKENS.
        in_flight: replies sampled at once.
        cache_bytes: memory for them; may lower `in_flight`.
        log: told what is being resolved.
    """
    is_run = (Path(model_or_run) / "recipe.toml").is_file()
    if is_run:
        folder, words = trained_policy(Path(model_or_run), policy)
        log(f"policy of {model_or_run}: {words}")
    elif policy:
        raise ConfigError(f"{model_or_run} is no run folder, so it has no policy {policy!r}")
    else:
        folder = resolve_model(model_or_run, log=log)
    model, tokenizer = load_policy(folder, dtype=dtype, device="auto")
    longest = int(model.config.max_position_embeddings or CONTEXT_TOKENS)
    context_tokens = min(context_tokens or CONTEXT_TOKENS, longest)
    sampler = LocalSampler(
        model, tokenizer, in_flight=in_flight, episode_tokens=context_tokens, cache_bytes=cache_bytes,
        eight_bits=rounds_weights(dtype),
    )  # fmt: skip
    known_as = Path(model_or_run).resolve().name if Path(model_or_run).exists() else model_or_run
    with LocalChat(sampler, Renderer(tokenizer), name=name or known_as, context_tokens=context_tokens) as chat:
        yield chat
