"""What the stages of a recipe hold in memory, on sizes small enough to work by hand."""

import pytest

from seekling.config import Recipe
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
from seekling.doctor.shape import ModelShape
from seekling.kernels.vocabulary import VOCABULARY_CHUNK
from seekling.learn import trained
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


def test_bfloat16_weights_have_masters():
    memory = plan("bfloat16").sft()
    assert (memory.weights_bytes, memory.optimizer_bytes) == (2 * 2 * MODEL, (4 + 8 + 4) * MODEL)


def test_adapters_have_a_small_optimizer_and_keep_float32_inputs():
    row = {"rollout": {"episode_tokens": 1000}, "sft": {"row_tokens": 1000}}
    memory = plan("bfloat16", model={"lora_rank": 8}, **row).sft()
    # q: 100 to 120, k and v: 100 to 100, o: 120 to 100, gate and up: 100 to 300, down: 300 to 100.
    adapters = 8 * 10 * (220 + 200 + 200 + 220 + 400 + 400 + 400)
    assert memory.optimizer_bytes == (4 + 8 + 4) * adapters
    kept = (2 * 100 + 2 * 120 + 200 + 2 * 300) * 2 + (5 * 100 + 120 + 300) * 4 + 7 * 8 * 4
    assert memory.activations_bytes == round(1000 * 10 * kept * SCATTER)
    # Where all is float32 already, adapters share the inputs of the products.
    full, adapted = (plan(model={"lora_rank": rank}, **row).sft().activations_bytes for rank in (0, 8))
    assert adapted - full == round(1000 * 10 * 7 * 8 * 4 * SCATTER)


def test_a_stage_that_trains_all_weights_beside_one_with_adapters_takes_what_it_takes_alone():
    mixed, full, adapted = (
        plan("bfloat16", model=model, rl=PPO)
        for model in ({"lora_rank": 8, "lora_stages": ["sft"]}, {}, {"lora_rank": 8})
    )
    assert (mixed.sft(), mixed.rl()) == (adapted.sft(), full.rl())
    assert (mixed.dev("sft"), mixed.dev("rl")) == (adapted.dev("sft"), full.dev("rl"))


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


def test_an_episode_that_is_longer_than_a_row_is_a_row():
    long = {"rollout": {"episode_tokens": 8192}, "sft": {"row_tokens": 4096}, "rl": {"row_tokens": 4096}}
    assert [longest_row_tokens(recipe_with(**long), stage) for stage in ("sft", "rl")] == [8192, 8192]
    short = {**long, "rollout": {"episode_tokens": 4096}}
    assert plan(**long).sft().activations_bytes == pytest.approx(2 * plan(**short).sft().activations_bytes, abs=1)


def test_streamed_minibatches_learn_while_the_caches_are_still_held():
    rl = {"steps": 1, "questions_per_step": 4}
    plain, streamed = (plan(rl={**rl, **more}).rl() for more in ({}, STREAMED))
    slot = Recipe().rollout.episode_tokens * SHAPE.cache_values_per_token * 4
    num_live = min(Recipe().rollout.in_flight, Recipe().rollout.cache_bytes // slot)
    assert (plain.caches_bytes, streamed.caches_bytes) == (0, num_live * slot)
    assert streamed.total_bytes - plain.total_bytes == num_live * slot


def test_rl_takes_what_sampling_takes_where_that_is_more():
    large = {"in_flight": 1000, "episode_tokens": 1024, "cache_bytes": 10**10}
    memory = plan(rollout=large).rl()
    assert memory.caches_bytes == 1000 * 1024 * 2000 * 4
    # Nothing of learning is there meanwhile: no gradients, no row.
    assert (memory.optimizer_bytes, memory.activations_bytes) == (8 * MODEL, 0)


def test_caches_stay_within_the_memory_they_are_given():
    rollout = {"in_flight": 64, "episode_tokens": 1000, "cache_bytes": 20_000_000}
    # A slot is 1024 tokens, whole blocks, of 2000 float32 numbers, 8.192 MB: two fit.
    assert plan(rollout=rollout).evaluation().caches_bytes == 2 * 8_192_000


def test_what_trains_is_there_when_dev_is_asked_and_gone_when_the_test_is():
    found = [plan(rl=PPO).dev("sft"), plan(rl=PPO).dev("rl"), plan(rl=PPO).evaluation()]
    assert [each.weights_bytes for each in found] == [2 * 4 * MODEL, 4 * 4 * MODEL, 2 * 4 * MODEL]
    assert [each.optimizer_bytes for each in found] == [8 * MODEL, 2 * 8 * MODEL, 0]


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


def test_where_layers_are_computed_twice_freed_blocks_go_back_earlier():
    short = plan(free_bytes=1, rollout={"episode_tokens": 64}, sft={"row_tokens": 64}).sft()
    assert short.freed_bytes == KEPT_WHEN_SHORT_BYTES - short.activations_bytes - short.logits_bytes > 0


def test_a_critic_is_a_model_with_its_own_optimizer_and_gradients_are_of_one_of_the_two():
    plain, ppo = plan().rl(), plan(rl=PPO).rl()
    assert ppo.weights_bytes - plain.weights_bytes == 2 * 4 * MODEL  # with the reference
    assert ppo.optimizer_bytes - plain.optimizer_bytes == 8 * MODEL


def test_before_the_learner_there_are_the_process_and_the_samplers_model():
    assert opened_memory(SHAPE, dtype="bfloat16").total_bytes == PROCESS_BYTES + 2 * MODEL
