"""One measurement of `seekling tune`, in a process of its own so that its peak memory is its own.

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
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.config import Recipe, build_recipe
from seekling.doctor import CostModel, EpisodeSize, episode_size, read_model_shape
from seekling.learn.learner import Batch, Learner
from seekling.learn.loss import cross_entropy
from seekling.models import load_policy, resolve_model
from seekling.pipeline.export import new_critic, new_learner
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from seekling.serve.agent import make_sampler
from seekling.types import Trajectory

SHARED_INSTRUCTIONS = 0.7
"""Part of a prompt that is the same for every question."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial found."""

    tokens_per_s: float
    """Tokens of whole episodes: prompts, actions and observations, as a run's metric of that name counts them."""
    peak_bytes: int


class MadeUp:
    """Episodes of random tokens: instructions that all share, a question that a group shares, two turns.

    Args:
        recipe: its protocol, turns and passages decide the sizes.
        vocabulary: ids are below it.
    """

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        self._size: EpisodeSize = episode_size(recipe, CostModel(), is_trained=True)
        self._vocabulary, self._group_size = vocabulary, recipe.rl.group_size
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

    def prompts(self) -> Iterator[tuple[int, ...]]:
        """Of one episode after the other; without end."""
        while True:
            prompt = (*self._instructions, *self._draw(self._size.prompt_tokens - len(self._instructions)))
            for _ in range(self._group_size):
                yield prompt

    def observation(self) -> tuple[int, ...]:
        """What an episode's search brought."""
        return self._draw(self._size.observation_tokens)

    def trajectories(self, *, shares_prompts: bool) -> Iterator[Trajectory]:
        """Whole episodes, with or without siblings."""
        for prompt in islice(self.prompts(), 0, None, 1 if shares_prompts else self._group_size):
            parts = (prompt, self._draw(self.turn_tokens), self.observation(), self._draw(self.turn_tokens))
            is_action = np.repeat([False, True, False, True], [len(part) for part in parts])
            ids_T = np.concatenate([np.asarray(part, np.int64) for part in parts])
            yield Trajectory(ids_T, is_action, np.zeros(len(ids_T), np.float32))

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.integers(0, self._vocabulary, count).tolist())


def measure(recipe: Recipe, what: str) -> Measured:
    """Do a little of a stage's work.

    Args:
        recipe: with the settings that are tried.
        what: sample, sft or rl. In RL sampler and learner are in memory together, as in a run.
    """
    model_dir = resolve_model(recipe.model.spec)
    model, tokenizer = load_policy(model_dir, dtype=recipe.model.dtype, device=recipe.model.device)
    vocabulary = model.config.vocab_size
    _never_end(model, tokenizer)
    sampler = make_sampler(recipe, model, tokenizer)
    made_up = MadeUp(recipe, vocabulary)
    has_learner = what != "sample" or recipe.rl.steps > 0
    learner = _open_learner(recipe, model_dir, "sft" if what == "sft" else "rl", made_up) if has_learner else None
    if what == "sample":
        # On a CPU a slot takes memory only as it fills up, and an episode may become as long as its slot.
        unfilled_tokens = max(0, recipe.rollout.episode_tokens - made_up.total_tokens) * (sampler.device.type == "cpu")
        values = read_model_shape(model_dir).cache_values_per_token * unfilled_tokens * sampler.num_slots
        found = _sample(sampler, made_up)
        return replace(found, peak_bytes=found.peak_bytes + values * sampler.dtype.itemsize)
    assert learner is not None
    return _learn(learner, recipe, made_up, what)


def _never_end(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """An untrained policy would end its turns anywhere; those of a trial are as long as they are meant to be."""
    tokenizer.eos_token = None
    if model.generation_config is not None:
        model.generation_config.eos_token_id = None


def _open_learner(recipe: Recipe, model_dir: Path, stage: str, made_up: MadeUp) -> Learner:
    """A learner after its first step: what optimizers remember is there, and all else that a run of the stage has."""
    learner = new_learner(recipe, model_dir, stage)
    parts = [learner]
    if stage == "rl" and recipe.rl.kl_coefficient > 0:
        learner.keep_reference()
    if stage == "rl" and recipe.rl.baseline == "gae":
        learner.critic = new_critic(recipe, learner)
        parts.append(learner.critic)
    one = list(islice(made_up.trajectories(shares_prompts=False), 1))
    for part in parts:
        part.forward_backward(Batch(one, np.ones(1)), cross_entropy)
        part.optim_step(1e-9)
    return learner


def _sample(sampler: LocalSampler, made_up: MadeUp) -> Measured:
    """As many episodes as are in flight, all at once."""
    prompts = list(islice(made_up.prompts(), sampler.num_slots))
    started = time.perf_counter()
    asyncio.run(_episodes(sampler, made_up, prompts))
    seconds = time.perf_counter() - started
    return Measured(len(prompts) * made_up.total_tokens / seconds, _peak_bytes(sampler.device))


async def _episodes(sampler: LocalSampler, made_up: MadeUp, prompts: Sequence[tuple[int, ...]]) -> None:
    async def episode(number: int, token_ids: tuple[int, ...]) -> None:
        for turn in range(2):
            seed = 2 * number + turn
            sample = await sampler.sample(SampleRequest(number, token_ids, made_up.turn_tokens, seed=seed))
            token_ids = (*token_ids, *sample.token_ids, *made_up.observation())
        sampler.close_session(number)

    await asyncio.gather(*(episode(number, prompt) for number, prompt in enumerate(prompts)))


def _learn(learner: Learner, recipe: Recipe, made_up: MadeUp, what: str) -> Measured:
    """Two rows: the first meets matrix shapes that are new, the second is timed."""
    row_tokens = recipe.sft.row_tokens if what == "sft" else recipe.rl.row_tokens
    times, num_tokens = [], 0
    source = made_up.trajectories(shares_prompts=what == "rl")
    for _ in range(2):
        row = one_row(source, row_tokens, made_up)
        started = time.perf_counter()
        stats = learner.forward_backward(Batch(row, np.ones(len(row))), cross_entropy)
        times.append(time.perf_counter() - started)
        num_tokens = stats.num_plain_tokens
    learner.optim_step(1e-9)
    return Measured(num_tokens / times[-1], _peak_bytes(learner.device))


def one_row(source: Iterator[Trajectory], row_tokens: int, made_up: MadeUp) -> list[Trajectory]:
    """Trajectories that fill a row, counting what each adds behind the prompts it may share."""
    row = [next(source)]
    added = len(row[0].token_ids_T)
    while added + made_up.total_tokens <= row_tokens:
        row.append(next(source))
        shared = int(np.argmin(np.append(row[-1].token_ids_T == row[-2].token_ids_T, False)))
        added += made_up.total_tokens - shared
    return row


def _peak_bytes(device: torch.device) -> int:
    """The most memory that this process, or its part of a GPU, has held so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        # Not getrusage's figure: on Linux that starts with what the parent had.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Measure what standard input describes: the recipe, and on the command line what of it."""
    found = measure(build_recipe(tomllib.loads(sys.stdin.read())), sys.argv[1])
    print(json.dumps({"tokens_per_s": found.tokens_per_s, "peak_bytes": found.peak_bytes}))


if __name__ == "__main__":
    main()
