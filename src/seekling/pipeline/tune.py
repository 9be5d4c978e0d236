"""`seekling doctor --tune`: the settings that make a recipe fast on this machine, among those that fit its memory.

Tried are settings that change speed and memory and no result: how many episodes are in flight and how many tokens a
packed row has; the recipe's own values are among them. Memory is what `MemoryPlan` predicts; speed is measured on
made-up episodes of the size that the recipe's have (docs/ENGINE.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from seekling.config import Recipe, build_recipe, recipe_to_toml
from seekling.doctor.cost import CostModel, episode_size
from seekling.doctor.machine import free_bytes
from seekling.doctor.memory import MemoryPlan, Stage, episodes_at_once, episodes_of_group
from seekling.doctor.shape import ModelShape, read_model_shape
from seekling.errors import ConfigError
from seekling.files import write_atomically
from seekling.kernels.backend import use_kernels
from seekling.learn.batch import Batch
from seekling.learn.loss import cross_entropy
from seekling.learn.pack import pack_rows
from seekling.models import cache_home, load_policy, pick_device, pick_dtype, resolve_model
from seekling.pipeline.implementations import new_local_learner
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest, takes_vllm
from seekling.serve.agent import make_sampler
from seekling.types import Trajectory

Work = Literal["sample", "sft", "rl"]
MEMORY_SHARE = 0.8
"""Of what is free: the rest is for what else the machine does meanwhile."""
AS_FAST = 0.97
"""Settings that reach this share of the best speed count as equally fast; of these the smallest is taken."""
ROW_TOKENS = (1024, 2048, 4096, 8192)
MAX_IN_FLIGHT = 256
_SHARED_INSTRUCTIONS = 0.7
"""Part of a prompt that is the same for every question."""
_WARM_UP_TOKENS = 2
"""Of a turn, before anything is timed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting, and what was found."""

    work: Work
    settings: dict[str, int]
    """By their names in a recipe."""
    tokens_per_s: float
    """Tokens of whole episodes: prompts, actions and observations, as a run's metric of that name counts them."""
    peak_bytes: int
    """Predicted, of a run."""
    is_whole: bool = False
    """One row had all the episodes that a step learns from at once: larger rows would be the same."""


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
    free = free_bytes(pick_device(recipe.model.device), cache_home())
    if not recipe.model.memory_gb and free is None:
        raise ConfigError("this system does not say how much memory is free; give --memory-gb")
    return round(recipe.model.memory_gb * 1e9) or int((free or 0) * MEMORY_SHARE)


def tune(recipe: Recipe, *, memory_bytes: int, on_trial: Callable[[Trial], None]) -> Tuned:
    """Measure settings that fit and choose the fastest; `on_trial` is called after each. The model is fetched.

    Raises:
        ConfigError: not even the smallest settings of a stage fit, or the recipe samples with vLLM.
    """
    if takes_vllm(recipe):
        raise ConfigError(
            f'rollout.sampler = "{recipe.rollout.sampler}" takes vLLM here, which has settings of its own to fit; tune '
            "measures the engine: give rollout.sampler=engine, and take the row_tokens that it finds"
        )
    model_dir, found = resolve_model(recipe.model.spec), Tuned(memory_bytes)
    shape = read_model_shape(model_dir)
    use_kernels(recipe.model.kernels)
    has_stage: dict[Work, bool] = {"sample": True, "sft": recipe.has_sft, "rl": recipe.rl.steps > 0}
    for work in (each for each, is_there in has_stage.items() if is_there):
        # Later stages are measured with what was chosen for earlier ones.
        base, trials = changed(recipe, found.settings), list[Trial]()
        for settings in _candidates(base, work, shape):
            tried = changed(base, settings)
            peak = _peak_bytes(tried, work, shape, memory_bytes)
            if peak > memory_bytes:
                break
            speed, is_whole = _measured(tried, work, model_dir)
            trials.append(Trial(work, settings, speed, peak, is_whole))
            on_trial(trials[-1])
            if is_whole:
                break
        if not trials:
            raise ConfigError(
                f"{_words(settings)} takes {peak / 1e9:.1f} GB, more than the {memory_bytes / 1e9:.1f} GB that there "
                "are; give more with --memory-gb, or set model.lora_rank, a lower rollout.episode_tokens or a smaller "
                "model"
            )
        found.trials += trials
        found.chosen.append(best(trials))
    return found


def best(trials: Sequence[Trial]) -> Trial:
    """The fastest; of equally fast ones the one that takes least memory."""
    limit = AS_FAST * max(trial.tokens_per_s for trial in trials)
    return min((trial for trial in trials if trial.tokens_per_s >= limit), key=lambda trial: trial.peak_bytes)


def write_tuned(recipe: Recipe, found: Tuned, out: Path) -> None:
    """Write a recipe with the winning settings, and what was measured as comments."""
    lines = [
        f"# Tuned by `seekling doctor --tune` to fit {found.memory_bytes / 1e9:.1f} GB. Measured with made-up episodes:"
    ]
    for trial in found.chosen:
        speed, peak = f"{trial.tokens_per_s:.0f} tokens/s", f"{trial.peak_bytes / 1e9:.1f} GB"
        lines.append(f"#   {trial.work}: {_words(trial.settings)}: {speed}, {peak}")
    text = recipe_to_toml(changed(recipe, found.settings), only_changes=True)
    write_atomically(out, "\n".join(lines) + "\n" + text)


def changed(recipe: Recipe, settings: dict[str, int]) -> Recipe:
    """The recipe with other values for some settings."""
    raw = recipe.model_dump(mode="json")
    for name, value in settings.items():
        section, key = name.split(".")
        raw[section][key] = value
    return build_recipe(raw, origin="tuned recipe")


def _words(settings: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _candidates(recipe: Recipe, work: Work, shape: ModelShape) -> Iterator[dict[str, int]]:
    """What is tried, the smallest first."""
    if work != "sample":
        own = (recipe.sft if work == "sft" else recipe.rl).row_tokens
        yield from ({f"{work}.row_tokens": rows} for rows in sorted({*ROW_TOKENS, own}))
        return
    plan = MemoryPlan(recipe, shape, dtype=pick_dtype(recipe.model.dtype, recipe.model.device))
    episodes = recipe.rl.questions_per_step * recipe.rl.group_size
    most = min(episodes, MAX_IN_FLIGHT)
    doubling = [2**power for power in range(3, most.bit_length()) if 2**power < most]
    for in_flight in sorted({*doubling, most, plan.num_live(episodes)}):
        yield {"rollout.in_flight": in_flight, "rollout.cache_bytes": in_flight * plan.slot_bytes()}


def _peak_bytes(recipe: Recipe, work: Work, shape: ModelShape, memory_bytes: int) -> int:
    dtype = pick_dtype(recipe.model.dtype, recipe.model.device)
    plan = MemoryPlan(recipe, shape, dtype=dtype, free_bytes=memory_bytes)
    if work == "sample":
        return (plan.dev("rl") if recipe.rl.steps else plan.evaluation()).total_bytes
    return (plan.sft() if work == "sft" else plan.rl()).total_bytes


class RandomEpisodes:
    """Episodes of random tokens: instructions that all share, a question that a group shares, two turns."""

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        self._size, self._recipe = episode_size(recipe, CostModel(), is_trained=True), recipe
        self._vocabulary, self._rng = vocabulary, np.random.default_rng(0)
        self._instructions = self._draw(round(self._size.prompt_tokens * _SHARED_INSTRUCTIONS))
        self.total_tokens = self._size.total_tokens
        """Of an episode."""
        self.turn_tokens = max(1, self._size.action_tokens // 2)
        """Of an action."""

    def prompts(self, *, siblings: int) -> Iterator[tuple[int, ...]]:
        """Of one episode after the other, without end; each question's so many times."""
        while True:
            prompt = (*self._instructions, *self._draw(self._size.prompt_tokens - len(self._instructions)))
            for _ in range(siblings):
                yield prompt

    def observation(self) -> tuple[int, ...]:
        """What an episode's search brought."""
        return self._draw(self._size.observation_tokens)

    def first_row(self, stage: Stage) -> tuple[list[Trajectory], bool]:
        """The episodes of a step's first row, and whether they are all that the step learns from at once."""
        settings = self._recipe.sft if stage == "sft" else self._recipe.rl
        # Each adds at least what comes behind its prompt: more cannot matter to the first row.
        enough = settings.row_tokens // max(1, self.total_tokens - self._size.prompt_tokens) + 2
        prompts = self.prompts(siblings=1 if stage == "sft" else episodes_of_group(self._recipe))
        number = min(episodes_at_once(self._recipe, stage), enough)
        made = [self.trajectory(prompt, self._size.observation_tokens) for prompt in islice(prompts, number)]
        rows = pack_rows(made, row_tokens=settings.row_tokens)
        return [made[index] for index in np.unique(rows[0].sequence_A)], len(rows) == 1

    def trajectory(self, prompt: tuple[int, ...], observed_tokens: int) -> Trajectory:
        """An episode of two actions and an observation of this length."""
        parts = (prompt, self._draw(self.turn_tokens), self._draw(observed_tokens), self._draw(self.turn_tokens))
        is_action = np.repeat([False, True, False, True], [len(part) for part in parts])
        ids_T = np.concatenate([np.asarray(part, np.int64) for part in parts])
        return Trajectory(ids_T, is_action, np.zeros(len(ids_T), np.float32))

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.integers(0, self._vocabulary, count).tolist())


def _measured(recipe: Recipe, work: Work, model_dir: Path) -> tuple[float, bool]:
    """Do a little of a stage's work: tokens a second, and whether a row had all episodes of a step."""
    episodes = RandomEpisodes(recipe, read_model_shape(model_dir).vocabulary)
    seconds = 0.0
    if work == "sample":
        model, tokenizer = load_policy(model_dir, dtype=recipe.model.dtype, device=recipe.model.device)
        # An untrained policy would end its turns anywhere; these are as long as they are meant to be.
        tokenizer.eos_token = None
        if model.generation_config is not None:
            model.generation_config.eos_token_id = None
        sampler = make_sampler(recipe, model, tokenizer)
        # First a few tokens: they compile the loops, and meet most sizes of matrices for the first time.
        for turn_tokens in (_WARM_UP_TOKENS, episodes.turn_tokens):
            prompts = list(islice(episodes.prompts(siblings=recipe.rl.group_size), sampler.num_slots))
            sampler.release_caches()
            started = time.perf_counter()
            asyncio.run(_sample_all(sampler, episodes, prompts, turn_tokens))
            seconds = time.perf_counter() - started
        return sampler.num_slots * episodes.total_tokens / seconds, False
    row, is_whole = episodes.first_row(work)
    learner, num_tokens = new_local_learner(recipe, model_dir, work), 0
    for _ in range(2):  # the first time meets matrix shapes that are new
        started = time.perf_counter()
        num_tokens = learner.forward_backward(Batch(row, np.ones(len(row))), cross_entropy).num_plain_tokens
        seconds = time.perf_counter() - started
    return num_tokens / seconds, is_whole


async def _sample_all(
    sampler: LocalSampler, episodes: RandomEpisodes, prompts: Sequence[tuple[int, ...]], turn_tokens: int
) -> None:
    async def episode(number: int, token_ids: tuple[int, ...]) -> None:
        for turn in range(2):
            seed = 2 * number + turn
            sample = await sampler.sample(SampleRequest(number, token_ids, turn_tokens, seed=seed))
            token_ids = (*token_ids, *sample.token_ids, *episodes.observation())
        sampler.close_session(number)

    await asyncio.gather(*(episode(number, prompt) for number, prompt in enumerate(prompts)))
