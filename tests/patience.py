"""How long tests wait: only code that is wrong takes as long, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILS_AFTER_S = 600.0


def wait_until(is_true: Callable[[], object], pause_s: float = 0.01) -> None:
    """Until a condition holds."""
    end_s = time.monotonic() + FAILS_AFTER_S
    while not is_true():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(pause_s)
