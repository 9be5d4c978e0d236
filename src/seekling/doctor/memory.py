"""Predicts what a recipe's stages hold in memory, part by part, and so whether layers have to be computed twice.

Arithmetic alone. What a layer keeps for its backward pass is counted tensor by tensor (docs/ENGINE.md); the constants
were fitted with `benchmarks/memory.py`.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Literal

from seekling.config import Recipe
from seekling.doctor.shape import ModelShape

Dtype = Literal["float32", "bfloat16"]
Stage = Literal["sft", "rl"]

LOGITS_AT_ONCE = 512
"""Positions whose logits exist at the same time."""
PROCESS_BYTES = 1_200_000_000
"""Python, torch, transformers, compiled code, the corpus and its index: what whole runs take beyond the rest."""
SCATTER = 1.42
"""Memory that activations take, over their own size: blocks freed in between are left too small for the next ones."""
LAYER_WORK = 2.5
"""Memory that a layer's backward pass takes where it is computed again, over what it keeps then."""
KEPT_BYTES = 1_500_000_000
"""While learning memory grows so far, however short the rows: freed blocks wait for their next use."""
KEPT_WHEN_SHORT_BYTES = 200_000_000
"""The same where layers are computed twice."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is held at the same time."""

    process_bytes: int
    weights_bytes: int = 0
    """The models: the sampler's, the learner's, a reference, a critic."""
    optimizer_bytes: int = 0
    """What is trained once more in float32, its two moments and, in learning, its gradients."""
    activations_bytes: int = 0
    """Of the longest row."""
    logits_bytes: int = 0
    """Where layers are computed twice: what they take more than a layer does then."""
    caches_bytes: int = 0
    """Keys and values of the episodes in flight."""
    freed_bytes: int = 0
    """Freed blocks that wait for their next use: what a short row leaves of all that may wait."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(astuple(self))


def episodes_at_once(recipe: Recipe, stage: Stage) -> int:
    """Episodes that a stage learns from in one go, at most: only these can share rows."""
    rl = recipe.rl
    if stage == "sft":
        return recipe.sft.episodes_per_step
    learned = rl.questions_per_step * episodes_of_group(recipe)
    return -(-learned // parts_of_step(recipe))


def parts_of_step(recipe: Recipe) -> int:
    """How many parts RL learns from a step's episodes in, one after the other."""
    return recipe.rl.optimizer.stream_minibatches or recipe.rl.optimizer.minibatches


def episodes_of_group(recipe: Recipe) -> int:
    """Episodes of one question that RL learns from."""
    return min(recipe.rl.group_size, recipe.rl.groups.learn_per_group or recipe.rl.group_size)


def longest_row_tokens(recipe: Recipe, stage: Stage) -> int:
    """Tokens of the longest row that a stage can have.

    An episode is never cut, so one that is longer than `row_tokens` is a row; and no row has more than all episodes.
    """
    settings, longest = recipe.sft if stage == "sft" else recipe.rl, recipe.rollout.episode_tokens
    return max(longest, min(settings.row_tokens, episodes_at_once(recipe, stage) * longest))


def opened_memory(shape: ModelShape, *, dtype: Dtype) -> Memory:
    """What a run has before its learner is made: itself and the sampler's model."""
    return Memory(PROCESS_BYTES, shape.num_parameters * (2 if dtype == "bfloat16" else 4))


class MemoryPlan:
    """What the stages of a recipe take.

    `dtype` is what the recipe's `model.dtype` means here; `free_bytes` is memory for a recipe that names no limit, what
    is in use already included; None is unknown, and enough.
    """

    def __init__(self, recipe: Recipe, shape: ModelShape, *, dtype: Dtype, free_bytes: int | None = None) -> None:
        self._recipe, self._shape, self._dtype = recipe, shape, dtype
        self._value_bytes = 2 if dtype == "bfloat16" else 4
        self._model_bytes = shape.num_parameters * self._value_bytes
        budget = recipe.model.memory_gb * 1e9 or free_bytes
        self.checkpoints = False
        """Whether layers are computed twice in training, because what they keep of a row would not fit."""
        learning = [self.sft()] * recipe.has_sft + [self._rl_learning()] * (recipe.rl.steps > 0)
        # Sampling does not count: it keeps no activations, so computing layers twice would not help it.
        self.checkpoints = budget is not None and any(each.total_bytes > budget for each in learning)

    def expert(self) -> Memory:
        """While episodes for SFT are collected or read."""
        return opened_memory(self._shape, dtype=self._dtype)

    def sft(self, step_tokens: int | None = None) -> Memory:
        """While SFT learns from episodes of `step_tokens` at once; None: the most that there can be."""
        return self._learning("sft", self._beside_sampler("sft"), step_tokens)

    def rl(self, step_tokens: int | None = None) -> Memory:
        """In RL, where sampling and learning take turns, whichever takes more; the argument is that of `sft`."""
        return max(self._rl_learning(step_tokens), self._sampling(self._in_rl()), key=lambda memory: memory.total_bytes)

    def dev(self, stage: Stage) -> Memory:
        """While development questions are answered; what trains in the stage is there too."""
        return self._sampling(self._in_rl() if stage == "rl" else self._beside_sampler("sft"))

    def evaluation(self) -> Memory:
        """While test questions are answered; of what trained only the policy's file is left."""
        return self._sampling(Memory(PROCESS_BYTES, 2 * self._model_bytes))

    def slot_bytes(self) -> int:
        """Of the cache of one episode."""
        return self._shape.slot_values(self._recipe.cache_tokens) * self._value_bytes

    def num_live(self, episodes: int) -> int:
        """Episodes with a cache at once."""
        rollout = self._recipe.rollout
        return max(1, min(episodes, rollout.in_flight, rollout.cache_bytes // self.slot_bytes()))

    def _num_trained(self, stage: Stage) -> int:
        rank = self._recipe.model.rank_in(stage)
        return rank * self._shape.adapter_values_per_rank if rank else self._shape.num_parameters

    def _in_rl(self) -> Memory:
        rl = self._recipe.rl
        return self._beside_sampler("rl", has_critic=rl.has_critic, has_reference=rl.loss.kl_coefficient > 0)

    def _beside_sampler(self, stage: Stage, *, has_critic: bool = False, has_reference: bool = False) -> Memory:
        """Sampler and learner as they are between two steps."""
        # float32 weights are their own masters; adapters are float32 weights beside the model's.
        rank, num_trained = self._recipe.model.rank_in(stage), self._num_trained(stage)
        is_own_master = self._value_bytes == 4 and not rank
        states = num_trained * (8 + 4 * (not is_own_master))
        # The reference of adapters is adapters.
        reference = has_reference * (4 * num_trained if rank else self._model_bytes)
        weights = self._model_bytes * (2 + has_critic) + reference
        return Memory(PROCESS_BYTES, weights, states * (1 + has_critic))

    def _sampling(self, between: Memory) -> Memory:
        return replace(between, caches_bytes=self.num_live(self._recipe.rollout.in_flight) * self.slot_bytes())

    def _rl_learning(self, step_tokens: int | None = None) -> Memory:
        memory = self._learning("rl", self._in_rl(), step_tokens)
        # Streamed parts are learned from while other episodes still go on.
        return self._sampling(memory) if self._recipe.rl.optimizer.stream_minibatches else memory

    def _learning(self, stage: Stage, between: Memory, step_tokens: int | None = None) -> Memory:
        # Policy and critic learn one after the other: there are gradients of one of them.
        optimizer = between.optimizer_bytes + 4 * self._num_trained(stage)
        row_tokens, shape = longest_row_tokens(self._recipe, stage), self._shape
        if step_tokens is not None:  # one of its episodes may be as long as one can be
            row_tokens = min(row_tokens, max(step_tokens, self._recipe.rollout.episode_tokens))
        layer = row_tokens * self._layer_bytes_per_token(stage)
        logits = 2 * LOGITS_AT_ONCE * shape.vocabulary * self._value_bytes
        if self.checkpoints:
            # Every layer's input, and of one layer at a time the rest; the logits are gone by then.
            work = round(layer * LAYER_WORK)
            activations = row_tokens * shape.num_layers * shape.hidden * self._value_bytes + work
            logits = max(0, logits - work)
        else:
            activations = round(layer * shape.num_layers * SCATTER)
        kept = KEPT_WHEN_SHORT_BYTES if self.checkpoints else KEPT_BYTES
        return replace(
            between,
            optimizer_bytes=optimizer,
            activations_bytes=activations,
            logits_bytes=logits,
            freed_bytes=max(0, kept - activations - logits),
        )

    def _layer_bytes_per_token(self, stage: Stage) -> int:
        """What one layer keeps: inputs of norms, attention, gates and products, each once (docs/ENGINE.md)."""
        shape, rank = self._shape, self._recipe.model.rank_in(stage)
        always = 2 * shape.hidden + 2 * shape.attention + shape.cache_values_per_token // shape.num_layers
        always += 2 * shape.intermediate
        # Of products: the outputs of the norms and of the gates; attention's own output is counted.
        products = (2 * shape.hidden + shape.intermediate) * self._value_bytes
        if rank and self._value_bytes < 4:
            # A frozen product keeps nothing, but every adapter its own float32 copy of its input.
            products = (5 * shape.hidden + shape.attention + shape.intermediate) * 4
        return always * self._value_bytes + products + 7 * rank * 4
