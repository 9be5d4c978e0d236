"""A whole run whose episodes vLLM samples; skips where it is not installed."""

from __future__ import annotations

import pytest

from seekling.pipeline import sync
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, rows, village_recipe
from tests.rollout.vllm_models import skip_without_vllm, wide_model


@pytest.mark.filterwarnings("default")  # vLLM warns of what is not ours to change
def test_a_whole_run_samples_with_vllm_and_every_handover_agrees_with_the_learner(
    tiny_model_dir, tmp_path, monkeypatch
):
    skip_without_vllm()
    found = {}

    def check(what, mean, largest, limit):
        found[what] = largest

    monkeypatch.setattr(sync, "check_drift", check)
    model_dir = wide_model(tiny_model_dir, tmp_path / "wide")
    recipe = village_recipe(tmp_path, model_dir, rollout={"sampler": "vllm", "cache_bytes": 64 * 1024**2})
    summaries = run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert [(each.stage, each.num_questions) for each in summaries] == [(f"eval-{n}", 4) for n in ("base", "sft", "rl")]
    assert len([row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]) == 3
    assert len(found) >= 3
    assert max(found.values()) < 1e-3
