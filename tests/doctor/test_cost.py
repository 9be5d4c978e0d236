"""The arithmetic of predictions, on sizes small enough to work by hand."""

import pytest

from seekling.config import Recipe
from seekling.doctor.cost import CostModel, episode_size, predict
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


def size_of(*, is_trained: bool = True, **sections: dict[str, object]):
    return episode_size(recipe_of(sections), EVERY_SEARCH, is_trained=is_trained)


def by_name(recipe: Recipe, **options: object):
    settings = {"dtype": "float32", "num_test_questions": 100, **options}
    return {cost.name: cost for cost in predict(recipe, SHAPE, SPEED, **settings)}


def test_an_episode_is_prompt_searches_and_an_answer():
    env = {"max_turns": 3, "observation_tokens": 200}
    size = size_of(env=env, retrieval={"passage_words": 500})
    assert (size.prompt_tokens, size.action_tokens, size.observation_tokens) == (117, 2 * 34 + 30, 2 * 200)
    assert size.total_tokens == 615
    # A forced answer leaves every turn to searching, and the limit on searches counts.
    assert size_of(env={**env, "forced_answer": True}).observation_tokens == 3 * 200
    assert size_of(env={**env, "max_turns": 9, "max_searches": 1}).observation_tokens == 200
    # A program is longer than a query.
    query, program = (size_of(env={"protocol": name}) for name in ("tags", "code"))
    assert program.action_tokens > 2 * query.action_tokens
    assert program.prompt_tokens > query.prompt_tokens


def test_an_episode_never_exceeds_its_budget():
    long = {"env": {"max_turns": 20, "observation_tokens": 1000}, "rollout": {"episode_tokens": 900}}
    assert all(size_of(is_trained=is_trained, **long).total_tokens <= 900 for is_trained in (True, False))


def test_an_untrained_policy_fills_its_turns_and_retrieves_nothing():
    size = size_of(is_trained=False, env={"max_turns": 3}, rollout={"turn_tokens": 50})
    assert (size.action_tokens, size.observation_tokens) == (75, 0)


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


def test_supervised_training_is_three_forward_passes_and_logits_of_trained_tokens_twice():
    free = CostModel(searches_used=1.0, product_efficiency=1.0)
    recipe = recipe_with(experts={"num_questions": 8}, sft={"episodes_per_step": 8})
    size = episode_size(recipe, free, is_trained=True)
    tokens = 96 + 8 * (size.total_tokens - 96)  # what all prompts begin with is learned from once in a step
    forward = tokens * (2 * 900_000 + 2 * 10 * 100 * size.total_tokens)
    flops = 3 * forward + 8 * 8 * size.action_tokens * 100_000
    between_s, optimizer_s = 3 * tokens * 10 * 100 * free.value_s, 28 * 1_000_000 / 1e10
    assert by_name(recipe, model=free)["sft"].seconds == pytest.approx(flops / 1e9 + between_s + optimizer_s)


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
    speed = Speed(float32 * 1e9, bfloat16 * 1e9, 15e9, gpus=(), torch="2", num_threads=2)
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


def test_twice_the_steps_take_twice_as_long():
    once, twice = (by_name(recipe_with(rl={"steps": steps}))["rl"].seconds for steps in (10, 20))
    assert twice == pytest.approx(2 * once)


def test_evaluation_takes_as_many_questions_as_there_are_and_the_recipe_asks_for():
    assert by_name(recipe_with(eval={"num_questions": 30}))["eval-rl"].reason == "30 questions"
    assert by_name(recipe_with(eval={"num_questions": 500}))["eval-rl"].reason == "100 questions"
    assert by_name(Recipe())["eval-rl"].reason == "100 questions"


def test_a_kl_term_costs_a_reference_model_and_a_pass():
    plain, anchored = (by_name(recipe_with(rl=rl))["rl"] for rl in ({}, {"kl_coefficient": 0.01}))
    assert anchored.peak_bytes - plain.peak_bytes == 4 * 1_000_000
    assert anchored.seconds > plain.seconds


def test_fewer_episodes_of_a_group_are_learned_from_in_less_time():
    whole, half, most = (
        by_name(recipe_with(rl={"learn_per_group": number, "group_size": 8}))["rl"].seconds for number in (0, 4, 99)
    )
    assert half < whole == most


def test_the_default_model_fits_the_memory_that_the_demo_promises():
    stages = predict(Recipe(), SMOLLM2_135M, SPEED, dtype="bfloat16", num_test_questions=100)
    assert max(stage.peak_bytes for stage in stages) < 9e9


def test_rows_are_as_long_as_a_typical_step_makes_them_and_the_bound_stands_beside_it():
    """Four groups of two, each with its prompt once; a largest step is a fifth above."""
    wide = {"row_tokens": 100_000, "questions_per_step": 4, "group_size": 2}
    recipe = recipe_with(rl=wide, rollout={"episode_tokens": 2000}, env={"max_turns": 3, "observation_tokens": 200})
    cost, size = by_name(recipe, model=EVERY_SEARCH)["rl"], episode_size(recipe, EVERY_SEARCH, is_trained=True)
    own = 8 * (size.total_tokens - size.prompt_tokens) * 0.6
    step_tokens = round(1.2 * (4 * size.prompt_tokens + own))
    assert 2000 < step_tokens < 8 * 2000
    # Activations grow with the tokens of a row, and the rest of a learner's memory does not.
    plan = MemoryPlan(recipe, SHAPE, dtype="float32")
    of_one = plan.rl(10_000).activations_bytes / 10_000
    assert cost.memory.activations_bytes == pytest.approx(of_one * step_tokens, rel=1e-3)
    assert plan.rl().activations_bytes == pytest.approx(of_one * 8 * 2000, rel=1e-3)
    assert cost.most_bytes == plan.rl().total_bytes


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
