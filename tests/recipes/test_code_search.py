"""The code-search recipes: their constants, their split, and two real steps with a tiny model in place of the large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import seekling
from seekling.config import SandboxConfig, build_recipe, load_recipe
from seekling.corpus.questions import read_questions, split_questions
from seekling.env.sandbox import open_sandbox
from seekling.errors import SandboxError
from seekling.pipeline.stages import run_recipe
from tests.chat_server import chat_server, completion
from tests.experts.village import write_village
from tests.pipeline.runs import QuietReporter, rows

RECIPES = Path(seekling.__file__).parents[2] / "recipes"


def test_the_full_recipe_has_the_constants_of_its_source():
    recipe = load_recipe(RECIPES / "code-search.toml")
    assert (recipe.model.lora_rank, recipe.model.lora_alpha) == (16, 32)
    assert (recipe.sft.learning_rate, recipe.sft.epochs) == (1e-5, 8)
    assert (recipe.rl.group_size, recipe.rl.steps, recipe.rl.advantage_scale) == (24, 1500, "std")
    assert (recipe.rl.reward, recipe.rollout.temperature_range, recipe.env.protocol) == ("judge", (0.7, 1.15), "code")
    assert (recipe.rl.questions_per_step, recipe.rl.learn_per_group, recipe.rl.minibatches) == (1, 0, 1)
    assert recipe.judge.model == "Qwen/Qwen3-8B-AWQ"
    assert (recipe.expected.before, recipe.expected.values) == ((0.1146,), (0.4268,))


def test_the_split_is_the_first_382_and_the_last_96_of_478(tmp_path):
    path = tmp_path / "wiki-trivia.jsonl"
    row = {"question": "Q{}?", "answer": "A", "filename": "Page {}.md"}
    lines = [json.dumps({name: text.format(number) for name, text in row.items()}) for number in range(478)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    questions = read_questions(path)
    train, test = split_questions(questions, load_recipe(RECIPES / "code-search.toml").data.test_fraction)
    assert (train, test) == (questions[:382], questions[382:])
    assert len(test) == 96


def test_two_steps_of_the_full_recipe_with_a_tiny_model(tmp_path, tiny_model_dir):
    try:
        open_sandbox(SandboxConfig()).close()
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    corpus = write_village(tmp_path / "village")
    years = {"Alder": "1612", "Birch": "1655"}
    trivia = [(f"When was {mill} Mill built?", year, f"{mill.lower()}_mill") for mill, year in years.items()]
    questions = tmp_path / "trivia.jsonl"
    made = [json.dumps({"question": q, "answer": a, "filename": f"{page}.md"}) for q, a, page in trivia * 5]
    questions.write_text("\n".join(made) + "\n", encoding="utf-8")
    raw = load_recipe(RECIPES / "code-search.toml").model_dump()
    raw["model"] |= {"spec": str(tiny_model_dir), "dtype": "float32"}
    raw["data"] |= {"corpus": str(corpus), "train": str(questions)}
    raw["retrieval"] |= {"kind": "bm25"}
    raw["rollout"] |= {"turn_tokens": 24, "episode_tokens": 1200, "cache_bytes": 10**9}
    raw["env"] |= {"max_turns": 4}
    raw["experts"] |= {"file": "", "num_questions": 2}
    raw["sft"] |= {"epochs": 1}
    raw["rl"] |= {"steps": 2, "group_size": 6}
    raw["eval"] |= {"stages": []}

    def respond(body):
        rating = len(body["messages"][1]["content"]) % 101
        return 200, completion(f"VERDICT: INCORRECT, APPROACH: {rating}")

    with chat_server(respond) as judge:
        raw["judge"] |= {"url": judge.url}
        run_recipe(build_recipe(raw), tmp_path / "run", QuietReporter())
    assert judge.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
    steps = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in steps] == [1, 2]
    episodes = rows(tmp_path / "run" / "episodes" / "rl.jsonl")
    temperatures = [row["episode"]["temperature"] for row in episodes]
    assert len(set(temperatures)) == len(episodes) == 12
    assert all(0.7 <= each <= 1.15 for each in temperatures)
    assert len({row["question"]["id"] for row in episodes if row["step"] == 1}) == 1


def test_the_mini_recipe_is_the_same_path_without_judge_and_teacher():
    mini = load_recipe(RECIPES / "code-search-mini.toml")
    assert (mini.env.protocol, mini.rl.group_size, mini.rl.reward) == ("code", 24, "em")
    assert mini.rollout.temperature_range == (0.7, 1.15)
