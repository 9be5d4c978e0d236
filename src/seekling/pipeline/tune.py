"""`seekling doctor --tune`: fits a recipe to this machine's memory.

More episodes in flight and longer packed rows are faster and change no result (RESULTS.md), so each is made as large as
fits: what `MemoryPlan` predicts of a run stays within the limit, and if possible no layer is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seekling.config import Recipe, build_recipe, recipe_to_toml
from seekling.doctor.machine import free_bytes
from seekling.doctor.memory import MemoryPlan
from seekling.doctor.shape import ModelShape
from seekling.errors import ConfigError
from seekling.files import write_atomically
from seekling.models import cache_home, pick_device, pick_dtype

MEMORY_SHARE = 0.8
"""Of what is free: the rest is for what else the machine does meanwhile."""
ROW_TOKENS = (8192, 4096, 2048, 1024)
MAX_IN_FLIGHT = 256


def memory_limit(recipe: Recipe) -> int:
    """What a run may take: `model.memory_gb`, or else most of what is free on this machine.

    Raises:
        ConfigError: the recipe names no limit, and the system does not say what is free.
    """
    free = free_bytes(pick_device(recipe.model.device), cache_home())
    if not recipe.model.memory_gb and free is None:
        raise ConfigError("this system does not say how much memory is free; give --memory-gb")
    return round(recipe.model.memory_gb * 1e9) or int((free or 0) * MEMORY_SHARE)


def tune(recipe: Recipe, shape: ModelShape, memory_bytes: int) -> dict[str, int]:
    """The largest settings with which a run fits, by their names in a recipe.

    Raises:
        ConfigError: not even the smallest settings fit.
    """
    chosen: dict[str, int] = {}
    # Each with what was chosen before it.
    for name in ("rollout.in_flight", *["sft.row_tokens"] * recipe.has_sft, *["rl.row_tokens"] * (recipe.rl.steps > 0)):
        tried = [
            (each, _memory(recipe, chosen | each, shape, memory_bytes)) for each in _candidates(recipe, name, shape)
        ]
        fitting = [(each, is_twice) for each, (peak, is_twice) in tried if peak <= memory_bytes]
        if not fitting:
            settings, (peak, _) = tried[-1]
            raise ConfigError(
                f"{_words(settings)} takes {peak / 1e9:.1f} GB, more than the {memory_bytes / 1e9:.1f} GB that there "
                "are; give more with --memory-gb, or set model.lora_rank, a lower rollout.episode_tokens or a smaller "
                "model"
            )
        chosen |= next((each for each, is_twice in fitting if not is_twice), fitting[0][0])
    return chosen


def write_tuned(recipe: Recipe, settings: dict[str, int], memory_bytes: int, out: Path) -> None:
    """Write the recipe with these settings."""
    head = f"# Fitted to {memory_bytes / 1e9:.1f} GB by `seekling doctor --tune`: {_words(settings)}\n"
    write_atomically(out, head + recipe_to_toml(changed(recipe, settings), only_changes=True))


def changed(recipe: Recipe, settings: dict[str, int]) -> Recipe:
    """The recipe with other values for some settings."""
    raw = recipe.model_dump(mode="json")
    for name, value in settings.items():
        section, key = name.split(".")
        raw[section][key] = value
    return build_recipe(raw, origin="tuned recipe")


def _words(settings: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _candidates(recipe: Recipe, name: str, shape: ModelShape) -> Iterator[dict[str, int]]:
    """The largest first: episodes with as much cache as they need, down to one; tokens of a row."""
    if name != "rollout.in_flight":
        yield from ({name: rows} for rows in ROW_TOKENS)
        return
    slot = MemoryPlan(recipe, shape, dtype=pick_dtype(recipe.model.dtype, recipe.model.device)).slot_bytes()
    number = min(recipe.rl.questions_per_step * recipe.rl.group_size, MAX_IN_FLIGHT)
    while number:
        yield {name: number, "rollout.cache_bytes": number * slot}
        number //= 2


def _memory(recipe: Recipe, settings: dict[str, int], shape: ModelShape, memory_bytes: int) -> tuple[int, bool]:
    """The peak of the stage that the newest setting is about, and whether layers are computed twice for it."""
    dtype = pick_dtype(recipe.model.dtype, recipe.model.device)
    plan = MemoryPlan(changed(recipe, settings), shape, dtype=dtype, free_bytes=memory_bytes)
    if "rl.row_tokens" in settings:
        return plan.rl().total_bytes, plan.checkpoints
    if "sft.row_tokens" in settings:
        return plan.sft().total_bytes, plan.checkpoints
    return (plan.dev("rl") if recipe.rl.steps else plan.evaluation()).total_bytes, False
