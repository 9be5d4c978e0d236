"""The wheel: everything that the code reads beside itself is in it, and it runs where no repository is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import seekling

ROOT = Path(seekling.__file__).parents[2]
if not (ROOT / "pyproject.toml").is_file():
    pytest.skip("an installed package: no repository to build a wheel from", allow_module_level=True)
if importlib.util.find_spec("setuptools") is None:
    pytest.skip("no setuptools here to build a wheel with (pip install setuptools)", allow_module_level=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy, so that nothing is left in the repository."""
    copy = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = (copy / "dist").glob("seekling-*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file())
    kept = {str(path) for path in files if "__pycache__" not in path.parts and ".egg-info" not in path.parts[0]}
    assert packed == kept
    assert "seekling/recipes/demo.toml" in packed


def test_what_is_in_the_wheel_runs_and_has_its_recipes(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import seekling; print(seekling.__file__); from seekling.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    words = ["train", "demo", "--dry-run", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[0] == str(tmp_path / "site" / "seekling" / "__init__.py")
