"""The recipes of slime, tinker and process distillation: constants, what they need, two steps with small models."""

from __future__ import annotations

import re
import tomllib
from operator import attrgetter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seekling.config import RECIPES, build_recipe, load_recipe, recipe_to_toml
from seekling.env.protocol import ToolsProtocol
from seekling.env.tools import tool_from_function
from seekling.errors import ConfigError
from seekling.pipeline.plan import describe_plan
from seekling.pipeline.stages import run_recipe
from seekling.retrieval.endpoint_encoder import parse_endpoint
from seekling.types import Question
from tests.commands import seekling
from tests.experts.village import write_village
from tests.pipeline.runs import QuietReporter, rows
from tests.settings import recipe_of

FULL = ("search-r1-slime", "search-r1-tinker", "process-distill-ppo")
QUESTION = Question("q", "who built the mill", ("Wren",))


def search(query_list: list[str]) -> str:
    """Find passages for each query."""
    return ""


CONSTANTS = [
    ("search-r1-slime", "rl.steps rl.questions_per_step rl.group_size rl.reward.kind", (3000, 32, 8, "em")),
    ("search-r1-slime", "rl.loss.clip_low rl.loss.clip_high rl.loss.correction_cap", (0.2, 0.28, 2.0)),
    (
        "search-r1-slime",
        "rl.loss.kl rl.loss.kl_coefficient rl.loss.kl_in rl.loss.correction",
        ("k3", 1e-3, "loss", "tis"),
    ),
    ("search-r1-slime", "rl.advantage.scale rl.learning_rate rl.optimizer.warmup_steps", ("sample_std", 1e-6, 0)),
    ("search-r1-slime", "rl.optimizer.betas rl.optimizer.weight_decay", ((0.9, 0.98), 0.01)),
    ("search-r1-slime", "env.max_turns env.forced_answer retrieval.top_k", (2, False, 3)),
    ("search-r1-slime", "rollout.turn_tokens rollout.temperature eval.rollout.temperature", (512, 1.0, 0.0)),
    ("search-r1-slime", "expected.metrics expected.values", (("nq/em", "hotpotqa/em"), (0.4576, 0.3381))),
    ("search-r1-tinker", "rl.questions_per_step rl.group_size rl.steps", (512, 8, 169_615 // 512)),
    ("search-r1-tinker", "rl.loss.kind rl.loss.aggregation rl.advantage.scale", ("importance_sampling", "sum", "none")),
    ("search-r1-tinker", "rl.loss.old_logprobs rl.loss.correction rl.loss.kl_coefficient", ("rollout", "none", 0.0)),
    ("search-r1-tinker", "rl.reward.kind rl.reward.format_coefficient", ("tinker", 0.1)),
    ("search-r1-tinker", "rl.groups.constant_groups rl.optimizer.stream_minibatches", ("drop", 4)),
    ("search-r1-tinker", "rl.learning_rate rl.optimizer.betas", (4e-5, (0.9, 0.95))),
    ("search-r1-tinker", "model.lora_rank seed env.max_turns", (32, 2, 5)),
    ("search-r1-tinker", "rollout.turn_tokens rollout.episode_tokens", (1024, 32768)),
    ("process-distill-ppo", "rl.steps rl.questions_per_step rl.group_size rl.optimizer.minibatches", (600, 32, 1, 1)),
    ("process-distill-ppo", "rl.advantage.baseline rl.learning_rate rl.critic.learning_rate", ("gae", 1e-6, 1e-5)),
    ("process-distill-ppo", "rl.optimizer.weight_decay rl.optimizer.max_grad_norm", (0.01, 1.0)),
    ("process-distill-ppo", "rl.optimizer.betas rl.critic.value_clip", ((0.9, 0.999), 0.5)),
    ("process-distill-ppo", "rl.loss.clip_low rl.loss.clip_high", (0.2, 0.2)),
    ("process-distill-ppo", "rl.loss.old_logprobs rl.loss.correction", ("recomputed", "none")),
    ("process-distill-ppo", "rl.loss.kl_coefficient rl.loss.kl rl.loss.kl_in", (1e-3, "k1", "reward")),
    ("process-distill-ppo", "rl.critic.gamma rl.critic.gae_lambda", (1.0, 1.0)),
    ("process-distill-ppo", "eval.rollout.temperature eval.rollout.top_p retrieval.top_k", (0.7, 0.9, 3)),
    ("process-distill-ppo", "expected.values", ((0.4127, 0.4890),)),
    ("process-distill-ppo", "data.questions.train_sources data.questions.test_sources", (("nq",), ("nq",))),
]


@pytest.mark.parametrize(("name", "settings", "values"), CONSTANTS)
def test_the_constants_of_the_published_systems(name, settings, values):
    assert attrgetter(*settings.split(), "name")(load_recipe(name)) == (*values, name)


def test_process_distillations_sft_alone_trains_adapters_and_its_evaluation_has_limits_of_its_own():
    recipe = load_recipe("process-distill-ppo")
    assert (recipe.model.rank_in("sft"), recipe.model.rank_in("rl")) == (8, 0)
    assert (recipe.env.max_turns, recipe.rollout.turn_tokens) == (2, 500)
    played = recipe.evaluated
    assert (played.env.max_turns, played.rollout.turn_tokens, played.rollout.episode_tokens) == (5, 1024, 9216)
    assert (played.env.observation_tokens, recipe.env.observation_tokens) == (1024, 500)
    planned = [line.rpartition(", ")[2] for line in describe_plan(recipe) if " learning rate " in line]
    assert planned == ["adapters of rank 8", "all weights"]


def test_tinkers_prompt_has_five_steps_and_a_worked_example_of_two_hops_that_its_own_grammar_reads():
    recipe = load_recipe("search-r1-tinker")
    tools = {"search": tool_from_function(search)}
    for native_tools in (True, False):
        protocol = ToolsProtocol(recipe.env, tools, native_tools=native_tools)
        system, user = protocol.prompt(QUESTION)
        assert (system.role, user.content) == ("system", QUESTION.question)  # the question as it is
        steps, example = system.content.split("An example. ")
        assert [line[:2] for line in steps.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5."]
        hops = [protocol.parse(part + "</tool_call>") for part in example.split("</tool_call>")[:-1]]
        assert [hop.kind for hop in hops] == ["search", "search"]
        assert all(len(hop.calls[0][1]["query_list"]) == 2 for hop in hops)
        answer = protocol.parse(example.split("</tool_call>")[-1])
        assert (answer.kind, answer.payload) == ("answer", "Veldmark")
        assert "Ilse Tarnow" in hops[1].payload  # what the first hop found
        assert "Ilse Tarnow" not in hops[0].payload


def test_tinkers_header_asks_gemini_with_the_task_type_of_queries():
    text = RECIPES["search-r1-tinker"].read_text(encoding="utf-8")
    base, options = re.search(r"U='(\S+)'", text), re.search(r'retrieval\.index\.encoder="\$U(\S+)"', text)
    endpoint = parse_endpoint(base.group(1) + options.group(1))
    assert endpoint.is_gemini  # whose queries are asked for with RETRIEVAL_QUERY
    assert (endpoint.model, endpoint.dimensions) == ("gemini-embedding-001", 768)


@pytest.mark.parametrize("name", [*FULL, *(f"{name}-mini" for name in FULL)])
def test_a_dry_run_says_what_would_be_done_and_prints_the_recipe(name, tmp_path):
    result = seekling("train", name, "--dry-run")
    assert result.exit_code == 0, result.output
    path = tmp_path / "again.toml"
    path.write_text(result.stdout, encoding="utf-8")
    recipe = load_recipe(path)
    assert recipe == load_recipe(name)
    plan = [line for line in result.stdout.splitlines() if line.startswith("#")]
    assert any(f"{recipe.rl.steps} steps of {recipe.rl.questions_per_step} x" in line for line in plan)
    for metric, value in zip(recipe.expected.metrics, recipe.expected.values, strict=True):
        assert any(f"{metric} " in line and f"{value:.4f} ({recipe.expected.source})" in line for line in plan)
    if name in FULL:
        assert "# needs data.train = data/nq_hotpotqa_train/train.parquet: missing" in plan
        assert "# needs a search server at http://127.0.0.1:8000" in plan


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"old_logprobs": "rollout"}, 'set correction = "none"'),
        ({"old_logprobs": "rollout", "correction": "mask"}, 'or old_logprobs = "recomputed"'),
        ({"group_size": 1}, 'use 2 or more, or "gae"'),
        ({"kl": "k1", "kl_coefficient": 0.1}, "gradient of mean zero"),
        ({"baseline": "gae", "loss": "gspo"}, "an advantage for each token"),
        ({"baseline": "gae", "learn_per_group": 2}, "set it to 0"),
        ({"stream_minibatches": 2, "minibatches": 2}, "stream_minibatches adds gradients up"),
        ({"stream_minibatches": 3}, "does not divide questions_per_step = 8"),
        ({"minibatches": 65}, "more than the 64 episodes"),
        ({"baseline": "leave_one_out", "scale": "none"}, 'it needs baseline = "group_mean"'),
        ({"baseline": "gae", "scale": "sample_std"}, 'set that, or leave scale at "std"'),
        ({"loss": "importance_sampling", "clip_high": 0.5}, "rl.loss: clip_high = 0.5 has no effect here"),
        ({"loss": "importance_sampling", "clip_low": 0.1}, 'it needs kind = "ppo", "cispo" or "gspo"'),
        ({"aggregation": "sum", "aggregation_tokens": 7}, "leave aggregation_tokens at 1024"),
        ({"correction": "none", "correction_cap": 3.0}, 'it needs correction = "tis" or "mask"'),
        ({"reward": "tinker"}, 'reads the form of env.protocol = "tools"'),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_a_way_out(settings, says):
    with pytest.raises(ConfigError) as error:
        recipe_of({"rl": settings})
    assert says in str(error.value)
    assert "{" not in str(error.value)  # the sentence, not the whole section


@pytest.mark.parametrize(
    ("rl", "scale", "says"),
    [
        ({}, "local", 'set scale.engine = "ray"'),
        ({"correction": "none", "old_logprobs": "recomputed"}, "ray", 'set rl.loss.correction = "tis" or "mask"'),
        ({"ask_again": 0.5}, "ray", "set rl.groups.ask_again = 0"),
        ({"correction": "none", "old_logprobs": "rollout"}, "ray", ""),
    ],
)
def test_sampling_ahead_needs_samplers_of_its_own_and_a_correction(rl, scale, says):
    settings = {"rl": {"max_staleness": 2, **rl}, "scale": {"engine": scale}}
    if not says:
        assert recipe_of(settings).runs_ahead
        return
    with pytest.raises(ConfigError, match=re.escape(says)):
        recipe_of(settings)


def test_written_recipes_list_settings_without_effect_at_their_defaults_and_are_read_again():
    recipe = recipe_of({"rl": {"baseline": "gae", "loss": "importance_sampling"}})
    assert build_recipe(tomllib.loads(recipe_to_toml(recipe))) == recipe
    assert 'scale = "std"' in recipe_to_toml(recipe)


def test_a_curriculum_without_groups_is_refused():
    with pytest.raises(ConfigError, match="group_size = 1 makes no groups"):
        recipe_of({"rl": {"ask_again": 0.5, "baseline": "gae", "group_size": 1}})


def test_a_misspelt_setting_is_told_the_nearest():
    with pytest.raises(ConfigError) as error:
        load_recipe("demo", ["retrieval.passage_words=9", "rl.loss.kind=ppo"])
    assert str(error.value).splitlines()[1:] == [
        "  retrieval.passage_words: no such setting; did you mean 'retrieval.index.passage_words'?"
    ]


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\); expected a recipe"):
        load_recipe(tmp_path)


def test_expected_figures_need_a_value_each_and_a_source():
    for raw in ({"metrics": ["nq/em"], "source": "x"}, {"metrics": ["nq/em"], "values": [0.5]}):
        with pytest.raises(ConfigError, match="expected: "):
            build_recipe({"expected": raw})


# Two steps


def write_parquet(path, split, sources):
    """Questions about the village in the columns of Search-R1's files."""
    words = {"train": "When was {} built?", "test": "When was one {} built?"}[split]
    asked = [(words.format("Alder Mill"), "1612"), (words.format("Birch Mill"), "1655")]
    made = [
        {
            "id": f"{split}_{index}",
            "question": question,
            "golden_answers": [answer],
            "data_source": source,
            "prompt": [{"role": "user", "content": f"Answer the given question. Question: {question}"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": [answer]}},
            "extra_info": {"split": split, "index": index},
        }
        for source in sources
        for index, (question, answer) in enumerate(asked)
    ]
    pq.write_table(pa.Table.from_pylist(made), path)


SMALLER = [
    "retrieval.url=",
    "retrieval.index.passage_words=30",
    "rollout.turn_tokens=24",
    "rollout.episode_tokens=1200",
    "rollout.in_flight=8",
    "rollout.cache_bytes=1000000000",
    "rl.steps=2",
    "rl.questions_per_step=2",
]
OF = {
    "search-r1-slime": ["rl.group_size=3"],
    # With a random model nobody earns anything: kept, such groups go through all of a step.
    "search-r1-tinker": ["rl.group_size=3", "rl.optimizer.stream_minibatches=2", "rl.groups.constant_groups=keep"],
    "process-distill-ppo": [
        *("experts.file=", "experts.num_questions=2", "sft.epochs=1"),
        *("eval.rollout.turn_tokens=24", "eval.rollout.episode_tokens=1200"),
    ],
}


@pytest.mark.parametrize("name", FULL)
def test_two_steps_of_the_full_recipe_with_a_tiny_model_read_the_parquet_as_it_is(name, tmp_path, tiny_model_dir):
    corpus = write_village(tmp_path / "village")
    write_parquet(tmp_path / "train.parquet", "train", ["nq", "hotpotqa"])
    write_parquet(tmp_path / "test.parquet", "test", ["nq", "popqa", "hotpotqa"])
    paths = {"corpus": corpus, "train": tmp_path / "train.parquet", "test": tmp_path / "test.parquet"}
    overrides = [f"data.{key}={path}" for key, path in paths.items()]
    model = [f"model.spec={tiny_model_dir}", "model.dtype=float32", 'eval.stages=["rl"]']
    recipe = load_recipe(name, [*SMALLER, *OF[name], *overrides, *model])
    (summary,) = run_recipe(recipe, tmp_path / "run", QuietReporter())
    steps = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in steps] == [1, 2]
    assert all("grad_norm" in row for row in steps)
    assert all("value_loss" in row for row in steps) == (name == "process-distill-ppo")
    episodes = rows(tmp_path / "run" / "episodes" / "rl.jsonl")
    assert len(episodes) == 2 * 2 * recipe.rl.group_size
    # Of the test file only the recipe's own data sets are asked; ids restart in each.
    asked = {row["question"]["source"] for row in rows(tmp_path / "run" / "episodes" / "eval-rl.jsonl")}
    assert asked == {"nq", "popqa", "hotpotqa"} & set(recipe.data.questions.test_sources)
    trained = {row["question"]["source"] for row in episodes}
    assert trained <= set(recipe.data.questions.train_sources or ("nq", "hotpotqa"))
    settings = summary.settings
    assert (settings.max_generations, settings.turn_tokens) == (
        (6, 24) if name == "process-distill-ppo" else (recipe.env.max_turns, 24)
    )
    assert summary.num_questions == 2 * len(asked)


@pytest.mark.parametrize("name", FULL)
def test_mini_recipes_take_the_path_of_the_full_one(name):
    full, mini = (load_recipe(each) for each in (name, f"{name}-mini"))
    same = ("kind", "aggregation", "old_logprobs", "correction", "kl", "kl_in")
    assert [getattr(mini.rl.loss, key) for key in same] == [getattr(full.rl.loss, key) for key in same]
    assert (mini.rl.advantage, mini.rl.optimizer.betas) == (full.rl.advantage, full.rl.optimizer.betas)
    assert mini.rl.groups.constant_groups == full.rl.groups.constant_groups
    assert mini.model.spec == "default"
    assert (mini.env.protocol, mini.env.max_turns) == (full.env.protocol, full.env.max_turns)
    assert (mini.env.forced_answer, mini.env.invalid_action) == (full.env.forced_answer, full.env.invalid_action)
    assert mini.model.rank_in("rl") == full.model.rank_in("rl")
