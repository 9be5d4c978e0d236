"""Predicts time and peak memory of a recipe's stages from arithmetic: tokens, weights, and measured speed.

Pure functions: nothing is measured, read or run here; memory is in `memory.py`. Of the recorded runs of the demo, on
AVX2, AVX-512 and AMX, it is within a factor of 1.5 (`tests/doctor/test_cost.py`). Retrieval and the writing of files
are left out; they are small beside the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from seekling.config import Recipe
from seekling.doctor.machine import Speed
from seekling.doctor.memory import Memory, MemoryPlan, episodes_of_group, parts_of_step
from seekling.doctor.shape import ModelShape

_TOKENS_PER_WORD = 1.4
_QUESTION_TOKENS = 21
_INSTRUCTION_TOKENS = {"tags": 96, "code": 154, "tools": 142}
"""What all prompts of a protocol begin with: computed once for those that are sampled or learned from together."""
_ACTION_TOKENS = {"tags": 34, "code": 90, "tools": 50}
"""One search action of a trained policy, its thought included. All measured with the default model's tokenizer."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The constants of the arithmetic, fitted to recorded runs.

    Matrix products and what lies between them are counted apart: a processor whose products are ten times faster reads
    and writes activations no faster.
    """

    product_efficiency: float = 0.85
    """Part of the measured speed of matrix products that a model's products reach."""
    value_s: float = 30e-9
    """Time of a forward pass between the products, for each token, layer and unit of width; on two cores as on one."""
    draft_tokens: float = 1.4
    """Tokens that a decode pass computes, wrong guesses included, for each one that it keeps."""
    varied_groups: float = 0.6
    """Share of groups whose rewards differ; of the demo's 40 to 50 %."""
    layer_overhead_s: float = 0.0003
    """Fixed cost of one layer in one generation step, however small the batch."""
    searches_used: float = 0.4
    """Part of the allowed searches that a trained policy makes."""
    untrained_turns: float = 1.5
    """Turns that an untrained policy fills to the last token before it is given up."""
    shared_by_siblings: float = 0.4
    """Part of an episode after its prompt that another episode of its group has too, and is computed once."""
    largest_step: float = 1.2
    """Tokens of a run's largest step, over those of a step of typical episodes."""
    answer_tokens: int = 30
    """The last turn, its thought included."""
    expert_question_s: float = 0.02


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage will take."""

    name: str
    seconds: float
    memory: Memory
    """At its peak, with steps of typical episodes."""
    most_bytes: int
    """Of memory, where episodes fill the longest row that there can be."""
    reason: str
    """The arithmetic in words."""

    @property
    def peak_bytes(self) -> int:
        """Of all memory."""
        return self.memory.total_bytes


@dataclass(frozen=True, slots=True)
class EpisodeSize:
    """Tokens of one episode, by what they cost."""

    prompt_tokens: int
    action_tokens: int
    """Generated; all trained."""
    observation_tokens: int

    @property
    def total_tokens(self) -> int:
        """Length of the whole episode."""
        return self.prompt_tokens + self.action_tokens + self.observation_tokens


def predict(
    recipe: Recipe,
    shape: ModelShape,
    speed: Speed,
    *,
    dtype: Literal["float32", "bfloat16"],
    num_test_questions: int,
    num_dev_questions: int = 0,
    num_expert_episodes: int = 0,
    model: CostModel | None = None,
    free_bytes: int | None = None,
) -> tuple[StageCost, ...]:
    """Predict every stage that a recipe will run, in order.

    `dtype` is what the recipe's `model.dtype` means here; of the questions that there are it may ask for fewer;
    `num_expert_episodes` are in `experts.file`; `free_bytes` is for a recipe that names no limit, None: enough.
    """
    plan = MemoryPlan(recipe, shape, dtype=dtype, free_bytes=free_bytes)
    costs = _Costs(recipe, shape, speed, dtype, model or CostModel(), plan)
    num_evaluated = min(recipe.eval.num_questions or num_test_questions, num_test_questions)
    num_dev, has_rl = min(recipe.eval.dev_questions, num_dev_questions), recipe.rl.steps > 0
    stages: list[StageCost] = []
    if recipe.has_sft:
        stages += [costs.expert(num_expert_episodes), costs.sft(num_expert_episodes)]
    if has_rl:
        stages.append(costs.rl())
    num_asked = recipe.has_sft + has_rl * math.ceil(recipe.rl.steps / (recipe.eval.every_steps or recipe.rl.steps or 1))
    if num_dev and num_asked:
        stages.append(costs.dev("rl" if has_rl else "sft", num_dev, num_asked))
    stages += [costs.evaluation(name, num_evaluated) for name in recipe.evaluations]
    return tuple(stages)


def episode_size(recipe: Recipe, model: CostModel, *, is_trained: bool) -> EpisodeSize:
    """Return the tokens of a typical episode, cut at the recipe's limit.

    An untrained policy does not stop at an action: it is given all tokens of a turn, and retrieves nothing.
    """
    prompt = _INSTRUCTION_TOKENS[recipe.env.protocol] + _QUESTION_TOKENS
    room = recipe.rollout.episode_tokens - prompt
    if not is_trained:
        wanted = min(recipe.env.max_turns, model.untrained_turns) * recipe.rollout.turn_tokens
        return EpisodeSize(prompt, max(0, min(round(wanted), room)), 0)
    num_searches = recipe.env.max_turns if recipe.env.forced_answer else recipe.env.max_turns - 1
    if recipe.env.max_searches:
        num_searches = min(num_searches, recipe.env.max_searches)
    num_used = num_searches * model.searches_used
    passages = recipe.retrieval.top_k * (recipe.retrieval.index.passage_words * _TOKENS_PER_WORD + 20)
    observation = num_used * min(recipe.env.observation_tokens, passages)
    action = num_used * min(_ACTION_TOKENS[recipe.env.protocol], recipe.rollout.turn_tokens) + model.answer_tokens
    scale = min(1.0, max(0, room) / (action + observation))
    return EpisodeSize(prompt, round(action * scale), round(observation * scale))


@dataclass(frozen=True, slots=True)
class _Costs:
    _recipe: Recipe
    _shape: ModelShape
    _speed: Speed
    _dtype: Literal["float32", "bfloat16"]
    _model: CostModel
    _plan: MemoryPlan

    @property
    def _instruction_tokens(self) -> int:
        return _INSTRUCTION_TOKENS[self._recipe.env.protocol]

    def expert(self, num_in_file: int) -> StageCost:
        config = self._recipe.experts
        if config.file:
            return self._stage("expert", 0.0, self._plan.expert(), f"{num_in_file} episodes of {config.file}")
        seconds = config.num_questions * self._model.expert_question_s
        return self._stage("expert", seconds, self._plan.expert(), f"{config.num_questions} questions, no model")

    def sft(self, num_in_file: int) -> StageCost:
        size, config = episode_size(self._recipe, self._model, is_trained=True), self._recipe.experts
        kept = num_in_file if config.file else config.num_questions
        if config.max_episodes:
            kept = min(kept, config.max_episodes)
        epochs = self._recipe.sft.epochs
        episodes, plans = kept * epochs, config.num_plans * epochs
        steps = math.ceil((episodes + plans) / epochs / self._recipe.sft.episodes_per_step) * epochs
        # Most episodes are one search and one answer; the plan is about a quarter of what they write.
        actions = round((episodes + plans / 4) * size.action_tokens)
        tokens = episodes * (size.total_tokens - size.action_tokens) + plans * size.prompt_tokens + actions
        tokens -= (episodes + plans - steps) * self._instruction_tokens
        seconds = self._learn_s(tokens, actions, size.total_tokens)
        seconds += steps * self._optimizer_s("sft")
        step_tokens = round(self._recipe.sft.episodes_per_step * size.total_tokens * self._model.largest_step)
        return StageCost(
            "sft",
            seconds,
            self._plan.sft(step_tokens),
            self._plan.sft().total_bytes,
            f"{steps} steps, {episodes} episodes" + (f", {plans} plans" if plans else ""),
        )

    def rl(self) -> StageCost:
        recipe, size = self._recipe, episode_size(self._recipe, self._model, is_trained=True)
        num_groups, group = recipe.rl.questions_per_step, recipe.rl.group_size
        episodes = num_groups * group
        # One group shares its prompt, in sampling and in training.
        prompts = num_groups * size.prompt_tokens
        own = 1.0 - self._model.shared_by_siblings * (group > 1)
        shared = (num_groups - 1) * self._instruction_tokens
        sample_s = self._prefill_s(prompts - shared + episodes * size.observation_tokens * own, size.total_tokens)
        sample_s += self._decode_s(episodes * size.action_tokens, episodes)
        tokens = prompts + episodes * (size.total_tokens - size.prompt_tokens) * own
        # Of a group only some may be learned from.
        learned = episodes_of_group(recipe) / group
        tokens = prompts + (tokens - prompts) * learned
        learn_s = self._learn_s(tokens - shared, round(episodes * size.action_tokens * learned), size.total_tokens)
        if not recipe.rl.learns_from_equal_groups:
            learn_s *= self._model.varied_groups
        updates = recipe.rl.updates_per_rollout
        learn_s = recipe.rl.optimizer.rollout_epochs * learn_s + updates * self._optimizer_s("rl")
        passes = (recipe.rl.loss.kl_coefficient > 0) + (recipe.rl.loss.old_logprobs == "recomputed" and updates > 1)
        has_critic = recipe.rl.has_critic
        # A critic is a second model that learns as long, after one pass for its values.
        learn_s *= 1 + has_critic
        learn_s += (passes + has_critic) * self._prefill_s(tokens, size.total_tokens)
        return StageCost(
            "rl",
            recipe.rl.steps * (sample_s + learn_s),
            self._plan.rl(round(tokens * self._model.largest_step / parts_of_step(recipe))),
            self._plan.rl().total_bytes,
            f"{recipe.rl.steps} steps of {num_groups} x {group} episodes: {sample_s:.0f} s sampling + {learn_s:.0f} s "
            "learning each",
        )

    def dev(self, stage: Literal["sft", "rl"], num_questions: int, num_times: int) -> StageCost:
        seconds = num_times * self._asking_s(num_questions, is_trained=True)
        return self._stage("dev", seconds, self._plan.dev(stage), f"{num_questions} questions, {num_times} times")

    def evaluation(self, name: Literal["base", "sft", "rl"], num_questions: int) -> StageCost:
        seconds = self._asking_s(num_questions, is_trained=name != "base")
        return self._stage(f"eval-{name}", seconds, self._plan.evaluation(), f"{num_questions} questions")

    def _asking_s(self, num_questions: int, *, is_trained: bool) -> float:
        size = episode_size(self._recipe.evaluated, self._model, is_trained=is_trained)
        prefilled = num_questions * (size.prompt_tokens + size.observation_tokens)
        prefilled -= (num_questions - 1) * self._instruction_tokens
        seconds = self._prefill_s(prefilled, size.total_tokens)
        return seconds + self._decode_s(num_questions * size.action_tokens, num_questions)

    def _stage(self, name: str, seconds: float, memory: Memory, reason: str) -> StageCost:
        """A stage that learns nothing, so that its memory hangs on no row."""
        return StageCost(name, seconds, memory, memory.total_bytes, reason)

    def _forward_flops(self, tokens: float, context: int) -> float:
        attention = 2 * self._shape.num_layers * self._shape.hidden * context
        return tokens * (2.0 * self._shape.num_body_parameters + attention)

    def _products_s(self, flops: float) -> float:
        speed = self._speed.bfloat16_flops if self._dtype == "bfloat16" else self._speed.float32_flops
        return flops / (speed * self._model.product_efficiency)

    def _between_s(self, tokens: float) -> float:
        """Of a forward pass."""
        return tokens * self._shape.num_layers * self._shape.hidden * self._model.value_s

    def _prefill_s(self, tokens: float, context: int) -> float:
        return self._products_s(self._forward_flops(tokens, context)) + self._between_s(tokens)

    def _learn_s(self, tokens: float, trained_tokens: int, context: int) -> float:
        # Backward costs two forwards; the logits are computed twice, to keep one chunk of them at a time.
        passes = 4 if self._plan.checkpoints else 3
        flops = passes * self._forward_flops(tokens, context) + 8.0 * trained_tokens * self._shape.num_head_parameters
        return self._products_s(flops) + passes * self._between_s(tokens)

    def _decode_s(self, tokens: int, episodes: int) -> float:
        batch = self._plan.num_live(episodes)
        weights = self._shape.num_body_parameters + self._shape.num_head_parameters
        computed = batch * self._model.draft_tokens
        value_bytes = 2 if self._dtype == "bfloat16" else 4
        by_memory = weights * value_bytes / self._speed.memory_bytes_per_s
        step = max(self._products_s(2.0 * weights * computed), by_memory) + self._between_s(computed)
        step += self._shape.num_layers * self._model.layer_overhead_s
        return tokens / batch * step

    def _optimizer_s(self, stage: Literal["sft", "rl"]) -> float:
        # Reads gradient, weight and two moments, writes three of them, four bytes each.
        trained = self._shape.num_parameters if self._recipe.model.rank_in(stage) == 0 else 0
        return 28.0 * trained / self._speed.memory_bytes_per_s
