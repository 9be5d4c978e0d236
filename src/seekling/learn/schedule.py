"""Learning rates over steps."""

from __future__ import annotations

import math
from typing import Literal


def scheduled_rate(
    peak: float, step: int, *, total: int, warmup: int, decay: Literal["constant", "linear", "cosine"] = "constant"
) -> float:
    """The learning rate of a step.

    Args:
        peak: after warm-up.
        step: from 0.
        total: number of steps.
        warmup: steps of linear increase; the first already learns.
        decay: after warm-up: stay, or fall to 0 just after the last step.

    Example:
        >>> [round(scheduled_rate(1.0, step, total=6, warmup=2, decay="linear"), 2) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if decay == "constant":
        return peak
    progress = (step - warmup) / max(total - warmup, 1)
    return peak * (1 - progress) if decay == "linear" else peak * 0.5 * (1 + math.cos(math.pi * progress))
