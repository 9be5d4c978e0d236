"""Held-out questions asked by other rules than those of training: `eval.env` and the lengths in `eval`."""

from __future__ import annotations

import pytest

from seekling.config import build_recipe, load_recipe, recipe_to_toml
from seekling.errors import ConfigError
from seekling.pipeline.eval_request import EvalRequest, run_evaluation
from seekling.pipeline.plan import _stages, describe_plan
from seekling.pipeline.stages import run_recipe
from seekling.serve.agent import load_agent
from tests.pipeline.runs import QuietReporter, rows, village_recipe

RULES = {
    "env": {"max_turns": 4, "forced_answer": False, "observation_tokens": 40},
    "turn_tokens": 20,
    "episode_tokens": 900,
    "stages": ["sft"],
}


def recipe_of(folder, model_dir):
    return village_recipe(
        folder,
        model_dir,
        env={"max_turns": 1, "forced_answer": True},
        rollout={"turn_tokens": 60, "episode_tokens": 700},
        sft={"epochs": 1},
        rl={"steps": 1, "constant_groups": "keep"},
        eval=RULES,
    )


def lengths(folder, stage):
    """Turns of each episode, and the most action tokens of one turn."""
    episodes = [row["episode"] for row in rows(folder / "episodes" / f"{stage}.jsonl")]
    turns = [turn for episode in episodes for turn in episode["turns"]]
    return [len(episode["turns"]) for episode in episodes], max(turn["num_action_tokens"] for turn in turns)


def test_a_run_trains_by_its_own_rules_and_evaluates_by_those_of_the_section(tmp_path, tiny_model_dir):
    recipe = recipe_of(tmp_path / "village", tiny_model_dir)
    (summary,) = run_recipe(recipe, tmp_path / "run", QuietReporter())
    settings = summary.settings
    assert (settings.max_generations, settings.max_searching_turns, settings.observation_tokens) == (4, 3, 40)
    assert (settings.turn_tokens, settings.episode_tokens) == (20, 900)
    trained, longest_trained = lengths(tmp_path / "run", "rl")
    asked, longest_asked = lengths(tmp_path / "run", "eval-sft")
    assert max(trained) <= 2
    assert (longest_trained > 20, longest_asked <= 20) == (True, True)
    assert len(asked) == 4
    with load_agent(tmp_path / "run") as agent:
        episode = agent.ask("When was Birch Mill built?").episode
    assert max(turn.num_action_tokens for turn in episode.turns) <= 20


def test_seekling_eval_follows_them_too(tmp_path, tiny_model_dir):
    recipe = recipe_of(tmp_path / "village", tiny_model_dir)
    outcome = run_evaluation(recipe, tmp_path / "eval", EvalRequest("m"), QuietReporter())
    settings = outcome.summaries[0].settings
    assert settings.max_generations == 4
    assert (settings.turn_tokens, settings.observation_tokens) == (20, 40)
    assert lengths(tmp_path / "eval", "eval-m")[1] <= 20


def test_what_is_left_out_is_as_in_training_and_recipes_say_the_same_when_written(tmp_path):
    recipe = build_recipe({"env": {"max_turns": 2, "forced_answer": True}, "eval": {"env": {"max_turns": 5}}})
    assert recipe.evaluated.env == recipe.env.model_copy(update={"max_turns": 5})
    assert recipe.evaluated.rollout == recipe.rollout.model_copy(update={"temperature": 0.0})
    assert recipe.evaluated.evaluated == recipe.evaluated
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml") == recipe
    assert load_recipe(tmp_path / "recipe.toml", ["eval.env.max_turns=7"]).evaluated.env.max_turns == 7
    assert recipe_to_toml(recipe, only_changes=True).count("max_turns") == 2
    assert any("up to 6 generations" in line for line in describe_plan(recipe))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, "asked every 2 RL steps, after SFT and after RL"),
        ({"experts": {"num_questions": 0}}, "asked every 2 RL steps, after RL"),
        ({"rl": {"steps": 0}}, "development questions, asked after SFT"),
        ({"experts": {"num_questions": 0}, "rl": {"steps": 0}}, "best: none; nothing is trained"),
    ],
)
def test_the_plan_says_after_which_stages_the_best_policy_is_looked_for(sections, words):
    plan = _stages(build_recipe({"rl": {"steps": 4}, "eval": {"every_steps": 2}, **sections}))
    (line,) = [line for line in plan if line.startswith("best: ")]
    assert line.endswith(words)


def test_a_misspelt_rule_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"eval\.env\.max_turn: no such setting; did you mean 'eval\.env\.max_turns'"):
        build_recipe({"eval": {"env": {"max_turn": 5}}})
