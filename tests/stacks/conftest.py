"""The village's run folder with its rows in Parquet, as `seekling data parquet` makes it."""

from pathlib import Path

import pytest

from seekling.config import recipe_to_toml
from tests.commands import seekling
from tests.pipeline.runs import village_recipe


@pytest.fixture(scope="session")
def village(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("village")
    recipe = village_recipe(folder, tiny_model_dir, env={"max_turns": 3})
    (folder / "village.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    done = seekling("data", "parquet", folder / "village.toml", "--out", folder / "run")
    assert done.exit_code == 0, done.output
    return folder / "run"
