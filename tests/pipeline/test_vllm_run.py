"""A whole run whose episodes vLLM samples; skips where it is not installed."""

from __future__ import annotations

import pytest

from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, rows, village_recipe
from tests.rollout.vllm_models import skip_without_vllm, wide_model


@pytest.mark.filterwarnings("default")  # vLLM warns of what is not ours to change
def test_a_whole_run_samples_with_vllm_and_agrees_with_the_learner(tiny_model_dir, tmp_path):
    skip_without_vllm()
    model_dir = wide_model(tiny_model_dir, tmp_path / "wide")
    recipe = village_recipe(tmp_path, model_dir, rollout={"sampler": "vllm", "cache_bytes": 64 * 1024**2})
    summaries = run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert [(each.stage, each.num_questions) for each in summaries] == [(f"eval-{n}", 4) for n in ("base", "sft", "rl")]
    steps = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert len(steps) == 3
    drifts = [row["logprob_drift_max"] for row in steps if "logprob_drift_max" in row]
    assert drifts
    assert max(drifts) < 1e-3
