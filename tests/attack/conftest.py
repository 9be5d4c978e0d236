from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seekling.env.sandbox import Sandbox
from seekling.errors import SandboxError
from tests.attack.arena import LIMITS, Arena

LAYER_SETS = {"all layers": (), "no landlock, no namespaces": ("landlock", "namespaces")}


@pytest.fixture(scope="session", params=LAYER_SETS.values(), ids=LAYER_SETS.keys())
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A sandbox with all the walls that this machine has, and one with no more than the required ones."""
    try:
        sandbox = Sandbox(LIMITS, without=request.param)
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    folder: Path = tmp_path_factory.mktemp("arena")
    folder.chmod(0o755)
    with sandbox, Arena(sandbox, folder) as arena:
        yield arena
