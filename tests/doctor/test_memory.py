"""What the stages of a recipe hold in memory, on sizes small enough to work by hand."""

import os

import pytest

from seekling.config import Recipe, build_recipe
from seekling.doctor.memory import (
    KEPT_BYTES,
    KEPT_WHEN_SHORT_BYTES,
    LAYER_WORK,
    LOGITS_AT_ONCE,
    PROCESS_BYTES,
    SCATTER,
    MemoryPlan,
    episodes_at_once,
    longest_row_tokens,
    opened_memory,
)
from seekling.doctor.shape import ModelShape, read_model_shape
from seekling.errors import DataError
from seekling.kernels.vocabulary import VOCABULARY_CHUNK
from seekling.learn import trained
from seekling.pipeline import implementations
from seekling.pipeline.implementations import new_learner
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter
from tests.settings import recipe_of

MODEL = 1_000_000
SHAPE = ModelShape(MODEL, True, 1000, 100, 10, attention=120, intermediate=300, cache_values_per_token=2000)
"""Parameters, tied, vocabulary, width, layers."""

PPO = {"baseline": "gae", "kl_coefficient": 0.1}
STREAMED = {"stream_minibatches": 2, "loss": "importance_sampling", "clip_high": 0.28}


def recipe_with(**sections: dict[str, object]) -> Recipe:
    return recipe_of(sections)


def plan(dtype="float32", free_bytes=None, **sections: dict[str, object]) -> MemoryPlan:
    return MemoryPlan(recipe_of(sections), SHAPE, dtype=dtype, free_bytes=free_bytes)


def test_the_constants_are_those_of_the_learner():
    assert LOGITS_AT_ONCE == VOCABULARY_CHUNK
    assert KEPT_BYTES == trained.KEPT_BYTES
    assert KEPT_WHEN_SHORT_BYTES == trained.KEPT_WHEN_SHORT_BYTES


def test_sft_holds_two_models_an_optimizer_and_one_row():
    memory = plan(rollout={"episode_tokens": 1000}, sft={"row_tokens": 5000}).sft()
    assert memory.process_bytes == PROCESS_BYTES
    assert memory.weights_bytes == 2 * 4 * MODEL
    assert memory.optimizer_bytes == (8 + 4) * MODEL
    # Of a token and layer: 4 of the residual stream and its norms, queries and outputs, keys and values, 3 gates.
    assert memory.activations_bytes == round(5000 * 10 * (4 * 100 + 2 * 120 + 200 + 3 * 300) * 4 * SCATTER)
    assert memory.logits_bytes == 2 * 512 * 1000 * 4
    assert memory.freed_bytes == KEPT_BYTES - memory.activations_bytes - memory.logits_bytes
    assert memory.caches_bytes == 0


def test_caches_are_made_for_the_longest_episodes_of_training_or_evaluation():
    rollout = {"episode_tokens": 1000, "in_flight": 2}
    longer = plan(rollout=rollout, eval={"episode_tokens": 5000})
    assert longer.slot_bytes() == plan(rollout={"episode_tokens": 5000}).slot_bytes()
    assert longer.slot_bytes() > plan(rollout=rollout, eval={"episode_tokens": 500}).slot_bytes()


@pytest.mark.parametrize(
    ("stage", "settings", "expected"),
    [
        ("sft", {}, 5),
        ("rl", {}, 4 * 8),
        ("rl", {"learn_per_group": 3}, 4 * 3),
        ("rl", {"learn_per_group": 99}, 4 * 8),
        ("rl", {"minibatches": 3}, 11),
        ("rl", {**STREAMED}, 2 * 8),
        ("rl", {**STREAMED, "learn_per_group": 2}, 2 * 2),
    ],
)
def test_a_row_has_no_more_than_the_episodes_that_are_learned_from_at_once(stage, settings, expected):
    recipe = recipe_with(
        rollout={"episode_tokens": 100},
        sft={"episodes_per_step": 5, "row_tokens": 8192},
        rl={"questions_per_step": 4, "group_size": 8, "row_tokens": 8192, **settings},
    )
    assert episodes_at_once(recipe, stage) == expected
    assert longest_row_tokens(recipe, stage) == 100 * expected


def test_layers_are_computed_twice_only_where_their_row_would_not_fit():
    sections = {"sft": {"row_tokens": 16_384}, "rl": {"steps": 0}}
    plain = plan(**sections).sft()
    tight = plan(free_bytes=plain.total_bytes - 1, **sections)
    # Of a token: what a layer keeps for one layer, its input for all.
    work = round(16_384 * (4 * 100 + 2 * 120 + 200 + 3 * 300) * 4 * LAYER_WORK)
    assert tight.sft().activations_bytes == 16_384 * 10 * 100 * 4 + work
    assert tight.sft().logits_bytes == 0 < plain.logits_bytes < work
    assert tight.checkpoints
    for memory, expected in ((plain.total_bytes, False), (plain.total_bytes - 1, True), (None, False)):
        assert plan(free_bytes=memory, **sections).checkpoints is expected
    assert plan(free_bytes=10**12, model={"memory_gb": 2.0}, **sections).checkpoints
    # A trajectory is never cut: the longest one is a row too.
    long = plan(rollout={"episode_tokens": 16_384}, rl={"steps": 0}, free_bytes=plain.total_bytes - 1)
    assert long.checkpoints


@pytest.mark.parametrize("more", [PPO, {**STREAMED, "questions_per_step": 4}])
def test_reference_critic_and_streamed_caches_count_when_it_is_decided(more):
    plain = plan().rl()
    rl = plan(rl=more).rl()
    assert rl.total_bytes > plain.total_bytes
    assert not plan(free_bytes=plain.total_bytes).checkpoints
    assert plan(rl=more, free_bytes=rl.total_bytes - 1).checkpoints
    assert not plan(rl=more, free_bytes=rl.total_bytes).checkpoints
    # A stage that does not run decides nothing.
    assert not plan(rl={**more, "steps": 0}, free_bytes=plain.total_bytes).checkpoints


def test_a_critic_is_a_model_with_its_own_optimizer_and_gradients_are_of_one_of_the_two():
    plain, ppo = plan().rl(), plan(rl=PPO).rl()
    assert ppo.weights_bytes - plain.weights_bytes == 2 * 4 * MODEL  # with the reference
    assert ppo.optimizer_bytes - plain.optimizer_bytes == 8 * MODEL


def test_a_learner_computes_layers_twice_when_the_recipe_names_too_little_memory(tiny_model_dir):
    for memory_gb, expected in ((0.5, True), (1000.0, False)):
        recipe = build_recipe({"model": {"memory_gb": memory_gb, "dtype": "float32"}})
        assert new_learner(recipe, tiny_model_dir).checkpoints_layers is expected


def test_what_is_free_must_hold_all_but_the_process_and_its_sampler(tiny_model_dir, monkeypatch):
    recipe, shape = build_recipe({"model": {"dtype": "float32"}}), read_model_shape(tiny_model_dir)
    plan, opened = MemoryPlan(recipe, shape, dtype="float32"), opened_memory(shape, dtype="float32")
    missing = max(plan.sft().total_bytes, plan.rl().total_bytes) - opened.total_bytes
    for available, expected in ((missing - 1, True), (missing, False)):
        monkeypatch.setattr(implementations, "free_bytes", lambda *_, available=available: available)
        assert new_learner(recipe, tiny_model_dir).checkpoints_layers is expected


def test_the_limit_on_compiled_kernels_holds_before_anything_of_a_run_multiplies(tmp_path, monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    recipe = build_recipe({"data": {"corpus": str(tmp_path / "none.jsonl"), "train": str(tmp_path / "none.jsonl")}})
    with pytest.raises(DataError):  # where an index would be built, by an encoder too
        run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert int(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) > 0
