"""What server tests serve: a scripted agent in the test's process, and a trained run in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seekling.pipeline.stages import run_recipe
from tests.pipeline.runs import QuietReporter, village_recipe
from tests.serve.serving import Village, serve_village


@pytest.fixture(scope="module")
def village(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Village]:
    """A served agent of a gullible policy, over pages of which some mean harm."""
    with serve_village(tmp_path_factory.mktemp("village"), tiny_model_dir) as served:
        yield served


@pytest.fixture(scope="session")
def trained_run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a tiny model that has learned two answers by heart, through search."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = village_recipe(folder, tiny_model_dir, rl={"steps": 0}, eval={"stages": ("sft",)})
    run_recipe(recipe, folder / "runs" / "demo", QuietReporter())
    return folder / "runs" / "demo"
