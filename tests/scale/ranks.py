"""Two learner processes on a real local Ray, for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seekling.config import ScaleConfig
from seekling.scale.cluster import connect
from seekling.scale.ranks import Ranks


@contextmanager
def two_ranks(*, timeout_s: float = 120.0) -> Iterator[Ranks]:
    """They stay when a learner is closed, so that starting them is paid for once."""
    disconnect = connect(ScaleConfig(engine="ray"), lambda line: None)
    ranks = Ranks(2, timeout_s=timeout_s)
    ranks.learners.add(-1)
    try:
        yield ranks
    finally:
        ranks.stop()
        disconnect()
