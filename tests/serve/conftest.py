"""A trained run that server tests may serve in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, village_recipe


@pytest.fixture(scope="session")
def trained_run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a tiny model that has learned two answers by heart, through search."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = village_recipe(folder, tiny_model_dir, rl={"steps": 0}, eval={"stages": ("sft",)})
    run_recipe(recipe, folder / "runs" / "demo", QuietReporter())
    return folder / "runs" / "demo"
