"""A whole run on the tiny model, the same run interrupted anywhere and started again, and one of the real model."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from seekling.config import OptimizerConfig
from seekling.evaluate.health import PREFIX
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import DRAFTS, STAGES, QuietReporter, rows, village_recipe, what_must_repeat
from tests.settings import recipe_of


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_model_dir):
    return village_recipe(tmp_path_factory.mktemp("village"), tiny_model_dir)


@pytest.fixture(scope="module")
def straight(recipe, tmp_path_factory):
    """Folder, summaries and reporter of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    reporter = QuietReporter()
    return folder, run_recipe(recipe, folder, reporter), reporter


def test_a_run_goes_through_all_stages_and_leaves_what_the_folder_promises(straight, recipe):
    folder, summaries, reporter = straight
    assert [summary.stage for summary in summaries] == ["eval-base", "eval-sft", "eval-rl"]
    assert [(summary.num_questions, summary.em.n) for summary in summaries] == [(4, 4)] * 3
    assert [title for title, _, _ in reporter.tracked] == ["expert episodes", *STAGES[1:]]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "recipe.toml",
        "record.json",
        "metrics.jsonl",
        "report.html",
        *(f"episodes/{stage}.jsonl" for stage in STAGES if stage != "sft"),
        *(f"eval/{name}.json" for name in ("base", "sft", "rl", "compare-base-sft", "compare-base-rl")),
        *(f"checkpoints/{name}/model.safetensors" for name in ("sft", "rl")),
    } <= files
    assert not [name for name in files if name.endswith((".pt", ".tmp")) or "state-" in name]
    metrics = rows(folder / "metrics.jsonl")
    assert [(row["stage"], row["step"]) for row in metrics] == [
        *(("sft", n) for n in range(1, 61)),
        *(("rl", n) for n in range(1, 4)),
    ]
    assert metrics[59]["loss"] < metrics[0]["loss"]
    assert {"reward_mean", "f1_mean", "num_failed_episodes", "sample_s", "learn_s"} <= metrics[-1].keys()
    assert all(0 < row["draft_acceptance"] <= 1 and row["drafted_per_token"] > 0 for row in metrics[60:])
    assert all(0 < each.draft_acceptance <= 1 for each in summaries[1:])
    times = [row["time_s"] for row in metrics]
    assert times == sorted(times)
    # The tiny model learns the form; that RL had something to tell apart is what the other tests lean on.
    assert any("grad_norm" in row for row in metrics[60:])
    assert summaries[0].answered.k == 0
    assert summaries[1].answered.k > 0
    episodes = rows(folder / "episodes" / "rl.jsonl")
    assert [row["step"] for row in episodes] == [n for n in (1, 2, 3) for _ in range(8)]
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert record["seed"] == recipe.seed == 5
    assert set(record["seconds"]) == {"setup", "dev-sft", "dev-rl-3", *STAGES}
    assert set(record["hashes"]) == {"corpus", "train_questions", "dev_questions", "test_questions"}
    assert record["notes"] == [
        "4 of 4 test questions are about a page that training or development questions are about too"
    ]
    assert f"warning: {record['notes'][0]}" in reporter.lines


def test_a_finished_run_is_not_done_again(straight, recipe):
    folder, summaries, _ = straight
    before = what_must_repeat(folder)
    reporter = QuietReporter()
    assert run_recipe(recipe, folder, reporter) == summaries
    assert reporter.tracked == []
    assert what_must_repeat(folder) == before


INTERRUPTIONS = [
    ("expert episodes", 1, False),
    ("eval-base", 3, True),
    ("sft", 5, False),
    ("sft", 5, True),
    ("eval-sft", 2, True),
    ("rl", 2, False),
    ("rl", 2, True),
    ("eval-rl", 1, True),
]


@pytest.mark.long
@pytest.mark.parametrize(("stage", "after", "by_signal"), INTERRUPTIONS)
def test_a_run_interrupted_and_started_again_ends_as_the_straight_one(
    straight, recipe, tmp_path, stage, after, by_signal
):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, folder, QuietReporter(stage, after, by_signal=by_signal))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    reporter = QuietReporter()
    summaries = run_recipe(recipe, folder, reporter)
    assert what_must_repeat(folder) == what_must_repeat(straight[0])
    of_the_process = dict.fromkeys(("seconds_per_question", "wall_seconds_per_question", *DRAFTS[:2]))
    assert [replace(each, **of_the_process) for each in summaries] == [
        replace(each, **of_the_process) for each in straight[1]
    ]
    # Not all was done again: what was saved counts, and stages before it are not even begun.
    began = reporter.tracked[0]
    assert began[0] == stage
    if stage.startswith("eval"):
        assert after <= began[2] < 4  # episodes that ended at the same moment are kept too
    elif by_signal:
        assert began[2] == after
    else:
        assert began[2] == 0


def test_a_stage_uses_its_own_settings_from_its_first_step_on(recipe, straight, tmp_path):
    """Gradients of SFT are clipped at sft.max_grad_norm, whatever rl.optimizer.max_grad_norm is."""
    config = recipe.rl.model_copy(
        update={"optimizer": OptimizerConfig(max_grad_norm=77.0), "row_tokens": 333, "steps": 0}
    )
    run_recipe(recipe.model_copy(update={"rl": config}), tmp_path / "run", QuietReporter())
    weights = (tmp_path / "run" / "checkpoints" / "sft" / "model.safetensors").read_bytes()
    assert weights == (straight[0] / "checkpoints" / "sft" / "model.safetensors").read_bytes()


@pytest.mark.long
def test_stages_can_be_left_out(recipe, tmp_path):
    changes = {
        "experts": recipe.experts.model_copy(update={"num_questions": 0}),
        "eval": recipe.eval.model_copy(update={"stages": ("rl",), "num_questions": 2}),
        "rl": recipe.rl.model_copy(update={"steps": 2}),
    }
    reporter = QuietReporter()
    summaries = run_recipe(recipe.model_copy(update=changes), tmp_path / "run", reporter)
    assert [(title, total) for title, total, _ in reporter.tracked] == [("rl", 2), ("eval-rl", 2)]
    assert [summary.stage for summary in summaries] == ["eval-rl"]


@pytest.mark.parametrize("protocol", ["tools", "code"])
def test_the_other_protocols_run_too(recipe, tmp_path, protocol):
    changes = {
        "env": recipe.env.model_copy(update={"protocol": protocol, "observation_tokens": 200}),
        "rollout": recipe.rollout.model_copy(update={"episode_tokens": 1600}),
        "sft": recipe.sft.model_copy(update={"epochs": 1}),
        "rl": recipe.rl.model_copy(update={"steps": 1}),
        "model": recipe.model.model_copy(update={"lora_rank": 4}),
    }
    summaries = run_recipe(recipe.model_copy(update=changes), tmp_path / "run", QuietReporter())
    assert [summary.settings.protocol for summary in summaries] == [protocol] * 3
    experts = rows(tmp_path / "run" / "episodes" / "expert.jsonl")
    assert {row["episode"]["protocol"] for row in experts} == {protocol}


def test_a_collapse_is_told_and_logged(tmp_path, tiny_model_dir):
    """SFT learns the form; the first step of RL destroys it."""
    recipe = village_recipe(
        tmp_path / "village",
        tiny_model_dir,
        rl={"steps": 5, "learning_rate": 0.3, "max_grad_norm": 0, "kl_coefficient": 0.0, "warmup_steps": 4},
        health={"window": 2},
        eval={"stages": []},
    )
    reporter = QuietReporter()
    run_recipe(recipe, tmp_path / "run", reporter)
    metrics = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["reward_mean"] > 0 for row in metrics] == [True, False, False, False, False]
    assert len([name for name in metrics[-1] if name.startswith(PREFIX)]) >= 2
    assert [line for line in reporter.lines if line.startswith("warning: step") and "limit" in line]


@pytest.mark.long
@pytest.mark.real
def test_the_real_model_goes_from_never_searching_to_searching(real_model_dir, tmp_path):
    sections = {
        "model": {"spec": str(real_model_dir)},
        "data": {"almanac_pages": 150, "kinds": ["single"]},
        "retrieval": {"top_k": 1, "passage_words": 30},
        "env": {"max_turns": 2, "observation_tokens": 100},
        "rollout": {"turn_tokens": 32, "episode_tokens": 400, "in_flight": 4},
        "experts": {"num_questions": 20},
        "sft": {"learning_rate": 3e-4, "episodes_per_step": 2, "warmup_steps": 1, "row_tokens": 512},
        "rl": {"steps": 1, "questions_per_step": 2, "group_size": 2, "reward": "em+f1", "row_tokens": 512},
        "eval": {"num_questions": 4},
    }
    run = tmp_path / "run"
    base, sft, rl = run_recipe(recipe_of({"name": "real", "seed": 1, **sections}), run, QuietReporter())
    assert (base.em.n, sft.em.n, rl.em.n) == (4, 4, 4)
    assert base.question_set_hash == sft.question_set_hash == rl.question_set_hash
    assert base.searches_per_question == 0
    assert sft.searches_per_question is not None
    assert sft.searches_per_question >= 0.5
    losses = [float(str(row["loss"])) for row in rows(run / "metrics.jsonl") if row["stage"] == "sft"]
    assert losses[-1] < losses[0] / 2
    assert (run / "report.html").stat().st_size > 10_000
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    assert record["hashes"]["test_questions"] == base.question_set_hash
