"""The programs' side is read from its source: it must stand alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from seekling.env.sandbox import guest

GUEST = Path(guest.__file__).parent
PATHS = sorted(GUEST.glob("*.py"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_the_guest_imports_only_the_standard_library_and_itself(path: Path):
    own = {p.stem for p in PATHS}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names] if node.module is None else [node.module]
            if node.level:
                assert set(names) <= own
            else:
                assert names[0].split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_nothing_is_ever_unpickled(path: Path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    assert not [node for node in calls if node.attr in ("loads", "load") and ast.unparse(node.value) != "json"]
