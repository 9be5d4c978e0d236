"""A real server of the Tinker API over a small model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from seekling.serve.gate import GateRules
from seekling.tinker.app import make_tinker_app
from seekling.tinker.engine import Engine
from tests.app_server import served


@contextlib.contextmanager
def tinker_server(
    model: Path, saves: Path, rules: GateRules | None = None, *, context_tokens: int = 256, **limits: int
) -> Iterator[str]:
    """Serve until the block ends; hands out the address."""
    engine = Engine(model, saves, dtype="float32", context_tokens=context_tokens, cache_bytes=64 * 1024**2)
    with served(make_tinker_app(engine, (str(model), "tiny"), rules=rules, **limits)) as url:
        yield url
