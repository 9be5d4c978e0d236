"""Finds the settings that make a recipe fast on this machine without taking more memory than there is.

Tried are settings that change speed and memory and no result: how many episodes are in flight and how many tokens a
packed row has; the recipe's own values are among them. The group size does change what is learned, so others than the
recipe's are tried only when they are named. Every setting is measured in a process of its own (tune_trial.py), the
smaller ones first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seekling.config import Recipe, build_recipe, recipe_to_toml
from seekling.doctor.machine import free_bytes
from seekling.doctor.memory import MemoryPlan
from seekling.doctor.shape import read_model_shape
from seekling.errors import ConfigError, InfrastructureError
from seekling.files import write_atomically
from seekling.models import cache_home, pick_device, pick_dtype, resolve_model
from seekling.rollout.sampler import takes_vllm

Work = Literal["sample", "sft", "rl"]
MEMORY_SHARE = 0.8
"""Of what is free: the rest is for the index, and for what else the machine does meanwhile."""
AS_FAST = 0.97
"""Settings that reach this share of the best speed count as equally fast; of these the smallest is taken."""
ROW_TOKENS = (1024, 2048, 4096, 8192)
MAX_IN_FLIGHT = 256
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting, and what was found."""

    work: Work
    settings: dict[str, int]
    """By their names in a recipe."""
    tokens_per_s: float = 0.0
    """Tokens of whole episodes: prompts, actions and observations, as a run's metric of that name counts them."""
    peak_bytes: int = 0
    is_whole: bool = False
    """One row had all the episodes that a step learns from at once: larger rows would be the same."""
    failure: str = ""
    """Why there is no speed: it took more memory than allowed, or died."""

    def fits(self, memory_bytes: int) -> bool:
        """Whether it ran within the memory."""
        return not self.failure and self.peak_bytes <= memory_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """What to try; what is empty is chosen for the recipe, its own value included."""

    group_sizes: tuple[int, ...] = ()
    in_flight: tuple[int, ...] = ()
    row_tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class Tuned:
    """Everything that was tried, and the settings that won."""

    memory_bytes: int
    trials: list[Trial] = field(default_factory=list)
    chosen: list[Trial] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, int]:
        """The winners', by their names in a recipe."""
        return {name: value for trial in self.chosen for name, value in trial.settings.items()}


def memory_limit(recipe: Recipe) -> int:
    """What a run may take: `model.memory_gb`, or else most of what is free on this machine.

    Raises:
        ConfigError: the recipe names no limit, and the system does not say what is free.
    """
    if recipe.model.memory_gb:
        return round(recipe.model.memory_gb * 1e9)
    free = free_bytes(pick_device(recipe.model.device), cache_home())
    if free is None:
        raise ConfigError("this system does not say how much memory is free; give --memory-gb")
    return int(free * MEMORY_SHARE)


def tune(
    recipe: Recipe, *, memory_bytes: int, choice: Choice | None = None, on_trial: Callable[[Trial], None]
) -> Tuned:
    """Measure settings and choose the fastest that fit.

    Args:
        recipe: resolved; its model is fetched when it is not here.
        memory_bytes: of one process, all included.
        choice: what to try.
        on_trial: called after each.

    Raises:
        ConfigError: not even the smallest settings of a stage fit, or the recipe samples with vLLM.
        InfrastructureError: a measurement failed for another reason than memory.
    """
    if takes_vllm(recipe):
        raise ConfigError(
            f'rollout.sampler = "{recipe.rollout.sampler}" takes vLLM here, which has settings of its own to fit; tune '
            "measures the engine: give rollout.sampler=engine, and take the row_tokens that it finds"
        )
    choice, found = choice or Choice(), Tuned(memory_bytes)
    stages: list[tuple[Work, Callable[[Recipe], Iterator[dict[str, int]]]]] = [
        ("sample", lambda base: _samplings(base, choice))
    ]
    if recipe.has_sft:
        stages.append(("sft", lambda base: _rows("sft.row_tokens", choice, own=base.sft.row_tokens)))
    if recipe.rl.steps:
        stages.append(("rl", lambda base: _rows("rl.row_tokens", choice, own=base.rl.row_tokens)))
    for work, candidates in stages:
        # Later stages are measured with what was chosen for earlier ones.
        base = changed(recipe, found.settings)
        trials = _ladder(base, work, candidates(base), memory_bytes, on_trial)
        found.trials += trials
        found.chosen.append(best(trials, memory_bytes))
    return found


def best(trials: Sequence[Trial], memory_bytes: int) -> Trial:
    """The fastest that fits; of equally fast ones the one that takes least memory.

    Raises:
        ConfigError: none fits.
    """
    fitting = [trial for trial in trials if trial.fits(memory_bytes)]
    if not fitting:
        smallest = trials[0]
        raise ConfigError(
            f"{_words(smallest.settings)} takes {smallest.peak_bytes / 1e9:.1f} GB, more than the "
            f"{memory_bytes / 1e9:.1f} GB that there are; give more with --memory-gb, or set model.lora_rank, a lower "
            "rollout.episode_tokens or a smaller model"
        )
    limit = AS_FAST * max(trial.tokens_per_s for trial in fitting)
    return min((trial for trial in fitting if trial.tokens_per_s >= limit), key=lambda trial: trial.peak_bytes)


def write_tuned(recipe: Recipe, found: Tuned, out: Path) -> Recipe:
    """Write a recipe with the winning settings, and what was measured as comments.

    Returns:
        The new recipe.

    Raises:
        ConfigError: there is something at `out` already.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out")
    tuned = changed(recipe, found.settings)
    lines = [
        f"# Tuned by `seekling doctor --tune` to fit {found.memory_bytes / 1e9:.1f} GB. Measured with made-up episodes:"
    ]
    for trial in found.chosen:
        speed, peak = f"{trial.tokens_per_s:.0f} tokens/s", f"{trial.peak_bytes / 1e9:.1f} GB"
        lines.append(f"#   {trial.work}: {_words(trial.settings)}: {speed}, {peak}")
    write_atomically(out, "\n".join(lines) + "\n" + recipe_to_toml(tuned, only_changes=True))
    return tuned


def changed(recipe: Recipe, settings: dict[str, int]) -> Recipe:
    """The recipe with other values for some settings.

    Raises:
        ConfigError: a value does not go with the rest of the recipe.
    """
    raw = recipe.model_dump(mode="json")
    for name, value in settings.items():
        section, key = name.split(".")
        raw[section][key] = value
    return build_recipe(raw, origin="tuned recipe")


def _rows(name: str, choice: Choice, *, own: int) -> Iterator[dict[str, int]]:
    return ({name: rows} for rows in choice.row_tokens or sorted({*ROW_TOKENS, own}))


def _samplings(recipe: Recipe, choice: Choice) -> Iterator[dict[str, int]]:
    shape = read_model_shape(resolve_model(recipe.model.spec))
    plan = MemoryPlan(recipe, shape, dtype=pick_dtype(recipe.model.dtype, recipe.model.device))
    for group_size in choice.group_sizes or (recipe.rl.group_size,):
        episodes = recipe.rl.questions_per_step * group_size
        for in_flight in choice.in_flight or sorted({*_doubling(episodes), plan.num_live(episodes)}):
            settings = {"rollout.in_flight": in_flight, "rollout.cache_bytes": in_flight * plan.slot_bytes()}
            yield settings | ({"rl.group_size": group_size} if choice.group_sizes else {})


def _doubling(most: int) -> list[int]:
    """8, 16, 32, ... and the episodes of a step, if they are not too many."""
    most = min(most, MAX_IN_FLIGHT)
    return [*(2**power for power in range(3, most.bit_length()) if 2**power < most), most]


def _ladder(
    recipe: Recipe,
    work: Work,
    candidates: Iterator[dict[str, int]],
    memory_bytes: int,
    on_trial: Callable[[Trial], None],
) -> list[Trial]:
    """Try candidates until one takes too much memory or all there is; with another group size it begins anew."""
    trials: list[Trial] = []
    done: set[int] = set()
    for settings in candidates:
        group_size = settings.get("rl.group_size", 0)
        if group_size in done:
            continue
        trials.append(_try(changed(recipe, settings), Trial(work, settings), memory_bytes))
        on_trial(trials[-1])
        if trials[-1].is_whole or not trials[-1].fits(memory_bytes):
            done.add(group_size)
    return trials


def _try(recipe: Recipe, trial: Trial, memory_bytes: int) -> Trial:
    """Run one measurement in a fresh process; one that outgrows the memory is ended."""
    words = [sys.executable, "-m", "seekling.pipeline.tune_trial", trial.work]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=said, stderr=errors, text=True)
        try:
            assert process.stdin is not None
            process.stdin.write(recipe_to_toml(recipe))
            process.stdin.close()
            highest = 0
            is_watched = pick_device(recipe.model.device) == "cpu"  # a GPU's memory is looked at in the trial
            while process.poll() is None:
                highest = max(highest, _resident_bytes(process.pid))
                if is_watched and highest > memory_bytes:
                    return Trial(trial.work, trial.settings, peak_bytes=highest, failure="more than the memory")
                time.sleep(_LOOK_S)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            last = " ".join(errors.read().strip().splitlines()[-1:])
            if process.returncode == -9 or "memory" in last.lower():
                return Trial(trial.work, trial.settings, peak_bytes=highest, failure="out of memory")
            raise InfrastructureError(f"measuring {_words(trial.settings)} failed: {last or 'without a word'}")
        result = json.loads(said.read().splitlines()[-1])
    return Trial(**result | {"settings": trial.settings})


def _resident_bytes(process: int) -> int:
    """Memory of another process; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def _words(settings: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())
