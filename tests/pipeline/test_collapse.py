"""A collapse provoked by an absurd learning rate is noticed, told, and undone."""

from __future__ import annotations

import json

import pytest

from seekling.errors import ConfigError
from seekling.evaluate.health import PREFIX, ROLLED_BACK
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, rows, village_recipe


def absurd(folder, model_dir, *, steps, **health):
    """SFT learns the form; the first step of RL destroys it."""
    return village_recipe(
        folder,
        model_dir,
        rl={"steps": steps, "learning_rate": 0.3, "max_grad_norm": 0, "kl_coefficient": 0.0, "warmup_steps": 4},
        health={"window": 2, "rate_factor": 1e-4, **health},
        checkpoint={"best_every": 2},
        eval={"stages": []},
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, tiny_model_dir):
    folder = tmp_path_factory.mktemp("guarded")
    recipe = absurd(folder / "village", tiny_model_dir, steps=8, action="rollback")
    reporter = QuietReporter()
    run_recipe(recipe, folder / "run", reporter)
    return recipe, folder / "run", reporter


def rl_rows(run):
    return [row for row in rows(run / "metrics.jsonl") if row["stage"] == "rl"]


def test_a_collapse_is_noticed_and_rolled_back(guarded):
    _, run, reporter = guarded
    metrics = rl_rows(run)
    back = [row for row in metrics if ROLLED_BACK in row]
    assert [row["step"] for row in back] == [4]
    assert len([name for name in back[0] if name.startswith(PREFIX)]) >= 2
    # The state before the first step is the best one: whatever was rewarded later came from destroyed weights.
    assert back[0][ROLLED_BACK] == 0
    assert [row["reward_mean"] > 0 for row in metrics] == [True, False, False, False, True, True, True, True]
    assert [row["learning_rate"] for row in metrics[4:]] == pytest.approx([0.3 * 1e-4] * 4)
    assert [line for line in reporter.lines if "back to the weights of step" in line]
    assert [line for line in reporter.lines if line.startswith("warning: step") and "limit" in line]


def test_the_state_to_roll_back_to_is_gone_at_the_end_and_the_last_policy_is_the_best_without_dev_questions(guarded):
    _, run, _ = guarded
    assert json.loads((run / "record.json").read_text(encoding="utf-8"))["best"] == {
        "stage": "rl",
        "step": 8,
        "k": 0,
        "n": 0,
    }
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"sft", "rl", "best"}


@pytest.mark.long
def test_without_rollback_it_is_only_told(tmp_path, tiny_model_dir):
    reporter = QuietReporter()
    run_recipe(absurd(tmp_path / "village", tiny_model_dir, steps=5, action="warn"), tmp_path / "run", reporter)
    metrics = rl_rows(tmp_path / "run")
    assert not [row for row in metrics if ROLLED_BACK in row]
    assert [name for name in metrics[-1] if name.startswith(PREFIX)]
    assert metrics[-1]["reward_mean"] == 0.0


@pytest.mark.long
def test_a_run_killed_after_its_rollback_ends_as_the_straight_one(guarded, tmp_path):
    recipe, run, _ = guarded
    for step in (4, 1):  # of this process: right after the rollback, and a step later
        with pytest.raises(KeyboardInterrupt):
            run_recipe(recipe, tmp_path / "run", QuietReporter("rl", step))
    run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert [row["reward_mean"] for row in rl_rows(tmp_path / "run")] == [row["reward_mean"] for row in rl_rows(run)]
    again = (tmp_path / "run" / "checkpoints" / "rl" / "model.safetensors").read_bytes()
    assert again == (run / "checkpoints" / "rl" / "model.safetensors").read_bytes()


def test_rollback_without_a_best_state_is_refused(tmp_path, tiny_model_dir):
    with pytest.raises(ConfigError, match=r"set checkpoint\.best_every too"):
        village_recipe(tmp_path, tiny_model_dir, health={"action": "rollback"})
