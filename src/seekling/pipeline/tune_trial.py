"""One measurement of `seekling doctor --tune`, in a process of its own so that its peak memory is its own.

Reads a recipe from standard input, does a little of a stage's work with it on made-up episodes of the size that the
recipe's have, and prints a JSON object. What is measured: docs/ENGINE.md.

Shape letters: B episodes, T tokens of an episode.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.config import Recipe, build_recipe
from seekling.doctor.cost import CostModel, EpisodeSize, episode_size
from seekling.doctor.memory import Stage, episodes_at_once, episodes_of_group, longest_row_tokens
from seekling.doctor.shape import ModelShape, read_model_shape
from seekling.kernels.backend import use_kernels
from seekling.kernels.memory import release_free_memory, resident_bytes, up_to_step
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import cross_entropy
from seekling.learn.pack import pack_rows
from seekling.learn.trained import TrainedModel
from seekling.models import load_policy, resolve_model
from seekling.pipeline.implementations import new_local_learner
from seekling.pipeline.run_record import peak_memory_bytes
from seekling.pipeline.tune import Trial, Work
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from seekling.serve.agent import make_sampler
from seekling.types import Trajectory

SHARED_INSTRUCTIONS = 0.7
"""Part of a prompt that is the same for every question."""
WARM_UP_TOKENS = 2
"""Of a turn, before anything is timed."""


class RandomEpisodes:
    """Episodes of random tokens: instructions that all share, a question that a group shares, two turns.

    Args:
        recipe: its protocol, turns and passages decide the sizes.
        vocabulary: ids are below it.
    """

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        self._size: EpisodeSize = episode_size(recipe, CostModel(), is_trained=True)
        self._recipe, self._vocabulary = recipe, vocabulary
        self._rng = np.random.default_rng(0)
        self._instructions = self._draw(round(self._size.prompt_tokens * SHARED_INSTRUCTIONS))

    @property
    def total_tokens(self) -> int:
        """Of an episode."""
        return self._size.total_tokens

    @property
    def turn_tokens(self) -> int:
        """Of an action."""
        return max(1, self._size.action_tokens // 2)

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
        """The first row of a step, packed as the stage packs it.

        Returns:
            Its episodes, and whether they are all that the step learns from at once.
        """
        settings = self._recipe.sft if stage == "sft" else self._recipe.rl
        # Each adds at least what comes behind its prompt: more cannot matter to the first row.
        enough = settings.row_tokens // max(1, self.total_tokens - self._size.prompt_tokens) + 2
        prompts = self.prompts(siblings=1 if stage == "sft" else episodes_of_group(self._recipe))
        made = [
            self._trajectory(prompt, self._size.observation_tokens)
            for prompt in islice(prompts, min(episodes_at_once(self._recipe, stage), enough))
        ]
        rows = pack_rows(made, row_tokens=settings.row_tokens)
        return [made[index] for index in np.unique(rows[0].sequence_A)], len(rows) == 1

    def longest_row(self, stage: Stage) -> list[Trajectory]:
        """One episode as long as the longest row that a stage can have, which takes as much memory."""
        prompt = next(self.prompts(siblings=1))
        observed = longest_row_tokens(self._recipe, stage) - len(prompt) - 2 * self.turn_tokens
        return [self._trajectory(prompt, max(0, observed))]

    def _trajectory(self, prompt: tuple[int, ...], observed_tokens: int) -> Trajectory:
        parts = (prompt, self._draw(self.turn_tokens), self._draw(observed_tokens), self._draw(self.turn_tokens))
        is_action = np.repeat([False, True, False, True], [len(part) for part in parts])
        ids_T = np.concatenate([np.asarray(part, np.int64) for part in parts])
        return Trajectory(ids_T, is_action, np.zeros(len(ids_T), np.float32))

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.integers(0, self._vocabulary, count).tolist())


def measure(recipe: Recipe, what: Work) -> Trial:
    """Do a little of a stage's work.

    Args:
        recipe: with the settings that are tried.
        what: sample, sft or rl. In RL sampler and learner are in memory together, as in a run.
    """
    model_dir = resolve_model(recipe.model.spec)
    use_kernels(recipe.model.kernels)
    model, tokenizer = load_policy(model_dir, dtype=recipe.model.dtype, device=recipe.model.device)
    vocabulary = model.config.vocab_size
    _never_end(model, tokenizer)
    sampler = make_sampler(recipe, model, tokenizer)
    episodes = RandomEpisodes(recipe, vocabulary)
    stage: Stage = "sft" if what == "sft" else "rl"
    has_learner = what != "sample" or recipe.rl.steps > 0
    learner = _open_learner(recipe, model_dir, stage, episodes) if has_learner else None
    if what == "sample":
        found = _sample(sampler, episodes, recipe.rl.group_size)
    else:
        assert learner is not None
        found = _learn(learner, episodes, stage)
    unfilled = unfilled_bytes(recipe, read_model_shape(model_dir), sampler, what, episodes)
    return replace(found, peak_bytes=found.peak_bytes + unfilled)


def unfilled_bytes(
    recipe: Recipe, shape: ModelShape, sampler: LocalSampler, what: str, episodes: RandomEpisodes
) -> int:
    """What a run's caches may take on top of what the trial's did: on a CPU a slot takes memory only as it fills up.

    The episodes of the trial fill a part of their slots.
    """
    if sampler.device.type != "cpu":
        return 0
    tokens = up_to_step(recipe.cache_tokens)
    if what == "sample":
        tokens = max(0, tokens - up_to_step(episodes.total_tokens))
    elif what == "sft" or not recipe.rl.optimizer.stream_minibatches:
        tokens = 0
    # Streamed parts of a step are learned from while other episodes hold their caches.
    return sampler.num_slots * tokens * shape.cache_values_per_token * (4 if sampler.dtype == "torch.float32" else 2)


def _never_end(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """An untrained policy would end its turns anywhere; those of a trial are as long as they are meant to be."""
    tokenizer.eos_token = None
    if model.generation_config is not None:
        model.generation_config.eos_token_id = None


def _open_learner(recipe: Recipe, model_dir: Path, stage: Stage, episodes: RandomEpisodes) -> LocalLearner:
    """A learner after its first step: what optimizers remember is there, and all else that a run of the stage has."""
    learner = new_local_learner(recipe, model_dir, stage)
    parts: list[TrainedModel] = [learner]
    if stage == "rl" and recipe.rl.loss.kl_coefficient > 0:
        learner.keep_reference()
    if stage == "rl" and recipe.rl.has_critic:
        learner.add_critic(recipe.rl, lora_rank=recipe.model.rank_in("rl"))
        parts += [learner.critic] if learner.critic is not None else []
    row, _ = episodes.first_row(stage)
    for part in parts:
        part.forward_backward(Batch(row[:1], np.ones(1)), cross_entropy)
        part.optim_step(1e-9)
    return learner


def _sample(sampler: LocalSampler, episodes: RandomEpisodes, group_size: int) -> Trial:
    """As many episodes as are in flight, all at once; before that a few tokens of as many others.

    Those compile the loops, and meet most sizes of matrices for the first time.
    """
    seconds = 0.0
    for turn_tokens in (WARM_UP_TOKENS, episodes.turn_tokens):
        prompts = list(islice(episodes.prompts(siblings=group_size), sampler.num_slots))
        sampler.release_caches()
        started = time.perf_counter()
        asyncio.run(_episodes(sampler, episodes, prompts, turn_tokens))
        seconds = time.perf_counter() - started
    speed = sampler.num_slots * episodes.total_tokens / seconds
    return Trial("sample", {}, speed, _peak_bytes(sampler.device))


async def _episodes(
    sampler: LocalSampler, episodes: RandomEpisodes, prompts: Sequence[tuple[int, ...]], turn_tokens: int
) -> None:
    async def episode(number: int, token_ids: tuple[int, ...]) -> None:
        for turn in range(2):
            seed = 2 * number + turn
            sample = await sampler.sample(SampleRequest(number, token_ids, turn_tokens, seed=seed))
            token_ids = (*token_ids, *sample.token_ids, *episodes.observation())
        sampler.close_session(number)

    await asyncio.gather(*(episode(number, prompt) for number, prompt in enumerate(prompts)))


def _learn(learner: LocalLearner, episodes: RandomEpisodes, stage: Stage) -> Trial:
    """The longest row for its memory, then one of a step twice: the first time meets matrix shapes that are new."""
    row, is_whole = episodes.first_row(stage)
    seconds, num_tokens = 0.0, 0
    for trajectories in (episodes.longest_row(stage), row, row):
        started = time.perf_counter()
        stats = learner.forward_backward(Batch(trajectories, np.ones(len(trajectories))), cross_entropy)
        seconds, num_tokens = time.perf_counter() - started, stats.num_plain_tokens
    peak_bytes = _peak_bytes(learner.device)
    if learner.device.type == "cpu":
        # Rows of ever new lengths let freed blocks pile up to this before they go back; three rows do not.
        release_free_memory()
        peak_bytes = max(peak_bytes, resident_bytes() + learner.kept_bytes)
    learner.optim_step(1e-9)
    return Trial(stage, {}, num_tokens / seconds, max(peak_bytes, _peak_bytes(learner.device)), is_whole)


def _peak_bytes(device: torch.device) -> int:
    """The most memory that this process, or its part of a GPU, has held so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        # Not getrusage's figure: on Linux that starts with what the parent had.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return peak_memory_bytes()


def main() -> None:
    """Measure what standard input describes: the recipe, and on the command line what of it."""
    found = measure(build_recipe(tomllib.loads(sys.stdin.read())), cast("Work", sys.argv[1]))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
