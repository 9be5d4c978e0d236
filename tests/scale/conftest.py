"""One run at the beginning of its RL for all of these tests, and how it ends where nothing happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from seekling.config import Recipe
from tests.scale.runs import go_on, until_rl


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> tuple[Recipe, Path]:
    return until_rl(tmp_path_factory.mktemp("village"), tiny_model_dir)


@pytest.fixture(scope="session")
def undisturbed(begun: tuple[Recipe, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all others must be like: in one process, and undisturbed."""
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    go_on(*begun, folder)
    return folder
