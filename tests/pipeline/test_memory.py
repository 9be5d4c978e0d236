"""What a run does about memory before it trains."""

from __future__ import annotations

import os

import pytest

from seekling.config import build_recipe
from seekling.doctor.memory import MemoryPlan, opened_memory
from seekling.doctor.shape import read_model_shape
from seekling.errors import DataError
from seekling.pipeline import implementations
from seekling.pipeline.implementations import new_learner
from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter


def test_a_learner_computes_layers_twice_when_the_recipe_names_too_little_memory(tiny_model_dir):
    for memory_gb, expected in ((0.5, True), (1000.0, False)):
        recipe = build_recipe({"model": {"memory_gb": memory_gb, "dtype": "float32"}})
        assert new_learner(recipe, tiny_model_dir).checkpoints_layers is expected


def test_what_is_free_must_hold_all_but_the_process_and_its_sampler(tiny_model_dir, monkeypatch):
    recipe, shape = build_recipe({"model": {"dtype": "float32"}}), read_model_shape(tiny_model_dir)
    plan, opened = MemoryPlan(recipe, shape, dtype="float32"), opened_memory(shape, dtype="float32")
    missing = max(plan.sft().total_bytes, plan.rl().total_bytes) - opened.total_bytes
    for available, expected in ((missing - 1, True), (missing, False)):
        monkeypatch.setattr(implementations, "free_bytes", lambda *_, available=available: available)
        assert new_learner(recipe, tiny_model_dir).checkpoints_layers is expected


def test_the_limit_on_compiled_kernels_holds_before_anything_of_a_run_multiplies(tmp_path, monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    recipe = build_recipe({"data": {"corpus": str(tmp_path / "none.jsonl"), "train": str(tmp_path / "none.jsonl")}})
    with pytest.raises(DataError):  # where an index would be built, by an encoder too
        run_recipe(recipe, tmp_path / "run", QuietReporter())
    assert int(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) > 0
