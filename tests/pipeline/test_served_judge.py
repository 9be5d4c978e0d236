"""A real model behind our own server as the judge of a training run and of an audit, asked over HTTP like any other.

A random model writes no verdict. That is the judge's failure: counted, left out of every group and figure, never a 0.
"""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from seekling.cli.main import app
from seekling.pipeline.stages import run_recipe
from seekling.serve.chat_app import make_chat_app
from seekling.serve.local_model import open_local_chat
from tests.app_server import served
from tests.evaluate.episodes import question, record, search
from tests.pipeline.runs import QuietReporter, rows, village_recipe


@pytest.fixture
def judge_url(tiny_model_dir):
    with (
        open_local_chat(str(tiny_model_dir), name="judge", dtype="float32", cache_bytes=10**8) as chat,
        served(make_chat_app(chat)) as address,
    ):
        yield f"{address}/v1"


def test_a_training_run_leaves_out_what_its_served_judge_gives_no_verdict_on(tmp_path, tiny_model_dir, judge_url):
    recipe = village_recipe(
        tmp_path / "village",
        tiny_model_dir,
        sft={"epochs": 1},
        rl={"steps": 1, "reward": "judge", "kl_coefficient": 0.0, "group_size": 2},
        judge={"url": judge_url, "model": "judge", "max_tokens": 4, "tries": 2},
        eval={"stages": ["rl"], "judge": True, "num_questions": 2},
    )
    run, reporter = tmp_path / "run", QuietReporter()
    (summary,) = run_recipe(recipe, run, reporter)
    (step,) = [row for row in rows(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert (step["num_failed_episodes"], step["num_dropped_groups"]) == (4, 2)
    assert {"reward_mean", "grad_norm"}.isdisjoint(step)  # no reward at all is not a reward of 0
    episodes = rows(run / "episodes" / "rl.jsonl")
    assert [row["episode"]["failure"] for row in episodes] == ["the judge gave no verdict: unreadable_verdict"] * 4
    assert all(row.get("reward") is None and row.get("advantage") is None for row in episodes)
    assert "judge: 4 unreadable_verdict" in reporter.lines
    # Evaluation: exact match counts both questions, the judge's rate only those that it could be asked nothing about.
    answered = [row for row in rows(run / "episodes" / "eval-rl.jsonl") if (row["episode"]["answer"] or "").strip()]
    assert summary.em.n == 2
    assert (summary.judge.n if summary.judge else 0) == 2 - len(answered)
    assert summary.judge_details.errors == ({"unreadable_verdict": len(answered)} if answered else {})


def test_an_audit_counts_what_the_served_judge_gives_no_verdict_on(tmp_path, judge_url):
    episodes = tmp_path / "eval-rl.jsonl"
    asked = [record(question(number), answer, search()) for number, answer in enumerate(["Paris", "Lyon", None])]
    episodes.write_text("".join(json.dumps(each.to_json()) + "\n" for each in asked), encoding="utf-8")
    words = [
        "eval",
        "--judge-audit",
        str(episodes),
        "--judge-url",
        judge_url,
        "--judge-model",
        "judge",
        "--judge-tokens",
        "4",
    ]
    printed = CliRunner().invoke(app, [*words, "--json"])
    assert printed.exit_code == 0, printed.output
    report = json.loads(printed.stdout)
    assert (report["num_cases"], report["errors"]) == (3, {"unreadable_verdict": 3})
    (beside_em,) = report["agreements"]
    assert (beside_em["agreement"]["n"], beside_em["kappa"], report["calibration_error"]) == (0, None, None)
    assert not (tmp_path / "judge-cache.jsonl").exists()  # an error is no verdict, and is asked again
