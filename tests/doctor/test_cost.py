"""The arithmetic of predictions, on sizes small enough to work by hand."""

import pytest

from seekling.config import Recipe
from seekling.doctor.cost import CostModel, predict
from seekling.doctor.machine import Speed
from seekling.doctor.memory import MemoryPlan
from seekling.doctor.shape import SMOLLM2_135M, ModelShape
from tests.settings import recipe_of

SHAPE = ModelShape(1_000_000, True, 1000, 100, 10, attention=100, intermediate=300, cache_values_per_token=2000)
"""Parameters, tied, vocabulary, width, layers."""

SPEED = Speed(float32_flops=1e9, bfloat16_flops=4e9, memory_bytes_per_s=1e10, gpus=(), torch="2")
EVERY_SEARCH = CostModel(searches_used=1.0)


def recipe_with(**sections: dict[str, object]) -> Recipe:
    return recipe_of(sections)


def by_name(recipe: Recipe, **options: object):
    settings = {"dtype": "float32", "num_test_questions": 100, **options}
    return {cost.name: cost for cost in predict(recipe, SHAPE, SPEED, **settings)}


def test_the_stages_are_those_that_the_recipe_runs_in_order():
    assert list(by_name(Recipe())) == ["expert", "sft", "rl", "eval-base", "eval-sft", "eval-rl"]
    assert list(by_name(recipe_with(experts={"num_questions": 0}))) == ["rl", "eval-base", "eval-rl"]
    assert list(by_name(recipe_with(rl={"steps": 0}, eval={"stages": ["sft"]}))) == ["expert", "sft", "eval-sft"]
    file = recipe_with(experts={"file": "e.jsonl", "num_questions": 0}, rl={"steps": 0})
    assert list(by_name(file)) == ["expert", "sft", "eval-base", "eval-sft"]


def test_a_file_of_expert_episodes_says_how_many_there_are():
    recipe = recipe_with(experts={"file": "e.jsonl"}, sft={"episodes_per_step": 4, "epochs": 2})
    stages = by_name(recipe, num_expert_episodes=10)
    assert stages["expert"].reason == "10 episodes of e.jsonl"
    assert stages["sft"].reason == "6 steps, 20 episodes"
    more = recipe_with(experts={"num_questions": 20, "num_plans": 20})
    plain = recipe_with(experts={"num_questions": 20})
    assert by_name(more)["sft"].reason == "5 steps, 20 episodes, 20 plans"
    assert 1.1 < by_name(more)["sft"].seconds / by_name(plain)["sft"].seconds < 2.2
    cut = recipe_with(experts={"file": "e.jsonl", "max_episodes": 4}, sft={"episodes_per_step": 4})
    assert by_name(cut, num_expert_episodes=10)["sft"].reason == "1 steps, 4 episodes"


RECORDED = {
    # GFLOP/s of float32 and bfloat16 products, arithmetic, protocol, seconds: whole demos, the base model asked too
    "AVX2": (142, 40, "float32", "tags", 1581),
    "AVX-512 tags": (195, 432, "bfloat16", "tags", 670),
    "AVX-512 tools": (195, 432, "bfloat16", "tools", 846),
    "AVX-512 code": (195, 432, "bfloat16", "code", 1147),
    "AMX": (195, 1480, "bfloat16", "tags", 271),
    "AMX, a later day": (195, 1480, "bfloat16", "tags", 322),
}


@pytest.mark.parametrize("machine", RECORDED)
def test_a_recorded_demo_took_what_is_predicted_within_a_factor_of_one_and_a_half(machine):
    float32, bfloat16, dtype, protocol, seconds = RECORDED[machine]
    speed = Speed(float32 * 1e9, bfloat16 * 1e9, 15e9, gpus=(), torch="2")
    recipe = recipe_of(
        {
            "env": {"protocol": protocol, "max_turns": 4, "observation_tokens": 240},
            "retrieval": {"top_k": 2, "passage_words": 25},
            "rollout": {"turn_tokens": 128, "episode_tokens": 1024, "in_flight": 64, "cache_bytes": 1_600_000_000},
            "experts": {"num_questions": 230},
            "sft": {"episodes_per_step": 4, "row_tokens": 768},
            "rl": {"steps": 10, "questions_per_step": 8, "group_size": 8, "learn_per_group": 4, "row_tokens": 768},
            "eval": {"num_questions": 100, "stages": ["base", "sft", "rl"]},
        }
    )
    costs = predict(recipe, SMOLLM2_135M, speed, dtype=dtype, num_test_questions=200)
    assert 1 / 1.5 < sum(cost.seconds for cost in costs) / seconds < 1.5


def test_the_default_model_fits_the_memory_that_the_demo_promises():
    stages = predict(Recipe(), SMOLLM2_135M, SPEED, dtype="bfloat16", num_test_questions=100)
    assert max(stage.peak_bytes for stage in stages) < 9e9


@pytest.mark.parametrize(
    ("sections", "num_times"),
    [
        ({}, 2),
        ({"rl": {"steps": 10}, "eval": {"every_steps": 4}}, 4),
        ({"experts": {"num_questions": 0}}, 1),
        ({"rl": {"steps": 0}}, 1),
    ],
)
def test_development_questions_are_asked_while_the_learner_is_there(sections, num_times):
    recipe = recipe_with(**sections)
    found = by_name(recipe, num_dev_questions=40)
    stage = "rl" if recipe.rl.steps else "sft"
    assert list(found)[list(found).index(stage) + 1] == "dev"
    assert found["dev"].reason == f"40 questions, {num_times} times"
    assert found["dev"].memory == MemoryPlan(recipe, SHAPE, dtype="float32").dev(stage)
    assert "dev" not in by_name(recipe)
