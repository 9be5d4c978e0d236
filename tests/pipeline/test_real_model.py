"""The whole way with the real 135M model on a small almanac: expert, SFT, RL, evaluation, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seekling.pipeline.stages import run_recipe
from seekling.types import Json
from tests.pipeline.runs import QuietReporter, rows
from tests.settings import recipe_of


@pytest.mark.long
@pytest.mark.real
def test_the_real_model_goes_from_never_searching_to_searching(real_model_dir: Path, tmp_path: Path):
    sections: dict[str, Json] = {
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
