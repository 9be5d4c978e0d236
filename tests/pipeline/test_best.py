"""The best policy by the development questions: found at every look, kept through interruptions, taken by commands."""

from __future__ import annotations

import gc
import json
import shutil
from dataclasses import replace

import pytest

from seekling.errors import ConfigError, DataError
from seekling.models import load_policy
from seekling.pipeline.eval_request import EvalRequest, run_evaluation
from seekling.pipeline.export import export_run
from seekling.pipeline.run_folder import Candidate, RunFolder, best_of
from seekling.pipeline.stages import run_recipe
from seekling.rollout.loop import Roller
from seekling.serve.local_model import trained_policy
from seekling.types import StopReason
from tests.commands import seekling
from tests.pipeline.runs import QuietReporter, rows, village_recipe, what_must_repeat


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_model_dir):
    """RL destroys the policy in its first steps, at a learning rate that is out of all proportion."""
    folder = tmp_path_factory.mktemp("village")
    return village_recipe(
        folder,
        tiny_model_dir,
        data={"dev": str(folder / "dev.jsonl")},
        rl={"steps": 4, "learning_rate": 0.3, "max_grad_norm": 0, "kl_coefficient": 0.0, "warmup_steps": 0},
        eval={"every_steps": 2},
    )


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    folder, reporter = tmp_path_factory.mktemp("runs") / "run", QuietReporter()
    run_recipe(recipe, folder, reporter)
    return folder, reporter


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_policy_that_rl_destroyed_is_not_the_best_one(finished):
    folder, reporter = finished
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    policies = record["policies"]
    assert [(each["stage"], each["step"], each["n"]) for each in policies] == [
        ("sft", 0, 2),
        ("rl", 2, 2),
        ("rl", 4, 2),
    ]
    assert policies[0]["k"] > 0 == policies[1]["k"] == policies[2]["k"]
    assert record["best"] == policies[0]
    checkpoints = folder / "checkpoints"
    assert weights(checkpoints / "best") == weights(checkpoints / "sft") != weights(checkpoints / "rl")
    assert load_policy(checkpoints / "best", dtype="float32")[1].chat_template is not None
    line = f"best policy: SFT ({policies[0]['k']}/2 on dev); ask, serve, export and eval take it"
    assert line in reporter.lines


def test_dev_is_asked_while_training_and_the_test_once_when_it_is_over(finished):
    folder, reporter = finished
    titles = [title for title, _, _ in reporter.tracked]
    evaluations = ["eval-base", "eval-sft", "eval-rl"]
    assert titles == ["expert episodes", "sft", "dev-sft", "rl", "dev-rl-2", "dev-rl-4", *evaluations]
    assert {path.stem for path in (folder / "dev").glob("*.json")} == {"sft", "rl-2", "rl-4"}
    assert {path.stem for path in (folder / "eval").glob("*.json") if "compare" not in path.stem} == {
        "base",
        "sft",
        "rl",
    }
    curve = [(row["step"], row["em"]) for row in rows(folder / "metrics.jsonl") if row["stage"] == "dev"]
    assert [step for step, _ in curve] == [0, 2, 4]
    assert curve[0][1] > 0 == curve[1][1]
    asked = {row["question"]["id"] for row in rows(folder / "episodes" / "dev-rl-2.jsonl")}
    assert asked == {"dev single", "dev birch"}


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([("sft", 0, 3, 10), ("rl", 4, 2, 10), ("rl", 8, 3, 10)], ("rl", 8)),
        ([("sft", 0, 4, 10), ("rl", 8, 3, 10)], ("sft", 0)),
        ([("sft", 0, 4, 10), ("rl", 4, 4, 9), ("rl", 8, 4, 10)], ("rl", 4)),
        ([("sft", 0, 0, 0), ("rl", 8, 0, 0)], ("rl", 8)),
        # All questions of a look failed for reasons of infrastructure.
        ([("sft", 0, 4, 10), ("rl", 8, 0, 0)], ("sft", 0)),
        ([("rl", 4, 4, 10), ("rl", 8, 0, 0), ("rl", 12, 1, 10)], ("rl", 4)),
        ([("sft", 0, 0, 0), ("rl", 8, 0, 10)], ("rl", 8)),
    ],
)
def test_the_highest_share_is_best_and_of_equals_the_latest(scores, best):
    found = best_of(Candidate(*each) for each in scores)
    assert (found.stage, found.step) == best
    assert best_of([]) is None


@pytest.mark.parametrize(
    ("stage", "after", "by_signal"), [("dev-sft", 1, False), ("rl", 2, True), ("dev-rl-2", 1, False), ("rl", 3, False)]
)
def test_a_run_interrupted_around_a_look_at_dev_ends_as_the_straight_one(
    recipe, finished, tmp_path, stage, after, by_signal
):
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "run", QuietReporter(stage, after, by_signal=by_signal))
    # The given-up rollout is logged when it is collected; inside numpy's reading of a header that trips Python 3.11's
    # parser (SystemError: AST constructor recursion depth mismatch). A real Ctrl-C ends the process.
    gc.collect()
    reporter = QuietReporter()
    run_recipe(recipe, tmp_path / "run", reporter)
    assert what_must_repeat(tmp_path / "run") == what_must_repeat(finished[0])
    if stage == "rl" and not by_signal:  # what was asked is not asked again
        assert "dev-rl-2" not in [title for title, _, _ in reporter.tracked]


def test_commands_take_the_best_policy_and_say_which(finished, tmp_path):
    folder, _ = finished
    words = trained_policy(folder)[1]
    assert words.startswith("best: SFT (")
    assert trained_policy(folder) == (folder / "checkpoints" / "best", words)
    assert trained_policy(folder, "rl") == (folder / "checkpoints" / "rl", "rl")
    with pytest.raises(ConfigError, match="no policy 'later'"):
        trained_policy(folder, "later")
    assert export_run(folder, tmp_path / "out") == words
    assert weights(tmp_path / "out") == weights(folder / "checkpoints" / "sft")
    asked = seekling("ask", folder, "When was Alder Mill built?")
    assert f"policy: {words}" in asked.stderr


def test_eval_asks_dev_when_told_to_and_of_a_run_its_best_policy(recipe, finished, tmp_path):
    summary = run_evaluation(recipe, tmp_path / "dev", EvalRequest("dev-mine", is_dev=True), QuietReporter()).summaries[
        0
    ]
    assert (summary.stage, summary.num_questions) == ("eval-dev-mine", 2)
    with pytest.raises(ConfigError, match="under a name like dev-mine"):
        run_evaluation(recipe, tmp_path / "other", EvalRequest("mine", is_dev=True), QuietReporter())
    none = recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"dev_questions": 0})})
    with pytest.raises(DataError, match="no development questions"):
        run_evaluation(none, tmp_path / "none", EvalRequest("dev-mine", is_dev=True), QuietReporter())


def test_answers_of_a_policy_that_was_exported_anew_are_not_taken_for_the_new_ones(recipe, finished, tmp_path):
    policy = shutil.copytree(finished[0] / "checkpoints" / "rl", tmp_path / "rl")
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"spec": str(policy)})})
    for _ in range(2):  # the second time nothing is left to ask
        run_evaluation(recipe, tmp_path / "eval", EvalRequest("mine"), QuietReporter())
    shutil.copy(finished[0] / "checkpoints" / "sft" / "model.safetensors", policy / "model.safetensors")
    with pytest.raises(ConfigError, match="an evaluation named 'mine' that differs in weights; use another --name"):
        run_evaluation(recipe, tmp_path / "eval", EvalRequest("mine"), QuietReporter())


def test_questions_that_failed_are_asked_again_by_the_same_command(recipe, tmp_path, monkeypatch):
    """The search of one question fails until it is repaired: the evaluation is not over before."""
    recipe = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"steps": 0})})
    whole, broken = Roller.rollout, {"is": True}

    def rollout(self, questions, decoding, *, seed=0, on_group=lambda group: None):
        def fail(group):
            if broken["is"] and group.question.id == "held-out birch":
                lost = [replace(each, stop_reason=StopReason.INFRA_FAILURE, answer=None) for each in group.episodes]
                group = replace(group, episodes=(), failed=tuple(lost))
            on_group(group)

        return whole(self, questions, decoding, seed=seed, on_group=fail)

    monkeypatch.setattr(Roller, "rollout", rollout)
    first = run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert [dict(summary.exclusions) for summary in first] == [{"infra_failure": 1}] * 2
    assert not RunFolder(tmp_path / "run", recipe).progress.done.count("eval-sft")
    broken["is"] = False
    reporter = QuietReporter()
    second = run_recipe(recipe, tmp_path / "run", reporter)
    assert [(title, total, done) for title, total, done in reporter.tracked] == [
        ("eval-base", 4, 3),
        ("eval-sft", 4, 3),
    ]
    assert [(summary.em.n, dict(summary.exclusions)) for summary in second] == [(4, {}), (4, {})]
    run_recipe(recipe, tmp_path / "run", again := QuietReporter())
    assert again.tracked == []


def test_a_damaged_line_of_metrics_is_passed_over_and_counted(recipe, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines()
    metrics.write_text("\n".join([*lines[:3], '{"stage": "sft", "st', "[]", *lines[3:], "\0"]) + "\n", encoding="utf-8")
    folder = RunFolder(tmp_path / "run", recipe)
    assert len(folder.read_metrics("sft")) == len(RunFolder(finished[0], recipe).read_metrics("sft"))
    assert folder.num_damaged == 3
    folder.rewind("rl", 1)
    assert [row["step"] for row in folder.read_metrics("rl")] == [1]
    reporter = QuietReporter()
    run_recipe(recipe, tmp_path / "run", reporter)
    assert "warning: metrics.jsonl: 3 damaged line(s) are passed over" in reporter.lines
