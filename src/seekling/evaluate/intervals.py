"""Rates and means with intervals, and the tests of paired results.

Everything is worked out from counts, so the same records always print the same figures; the one resampling method takes
a seed. The coverage of the intervals is checked by simulation in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True, slots=True)
class Rate:
    """k of n, with a Wilson interval."""

    k: int
    n: int
    value: float | None
    """k / n; None when n is 0, which is not a rate of 0."""
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of n values in [0, 1], with an interval."""

    n: int
    value: float | None
    """None when n is 0."""
    low: float
    high: float


def wilson_interval(k: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a proportion: honest at 0 of n and n of n, where the textbook interval has no width.

    Args:
        k: successes, 0 <= k <= n; may be fractional, see `mean_of`.
        n: trials; 0 gives (0, 1): nothing is known.
        confidence: two-sided, such as 0.95.

    Returns:
        (low, high), within [0, 1].

    Source: E. B. Wilson, JASA 22 (1927), without continuity correction.
    """
    if not 0 <= k <= n:
        raise ValueError(f"expected 0 <= k <= n, got k={k}, n={n}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = k / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # The ends are exact at the borders; rounding would leave 0 of n at -1e-17.
    low = 0.0 if k == 0 else (centre - half) / scale
    high = 1.0 if k == n else (centre + half) / scale
    return low, high


def rate_of(k: int, n: int, confidence: float = 0.95) -> Rate:
    """A `Rate` of k in n."""
    low, high = wilson_interval(k, n, confidence)
    return Rate(k=k, n=n, value=k / n if n else None, low=low, high=high)


def mean_of(values: Sequence[float], confidence: float = 0.95) -> Mean:
    """The mean of values in [0, 1] with a Wilson interval on their sum.

    A value in [0, 1] with mean m varies at most as much as a coin with that mean, so the interval is never too narrow,
    and unlike a bootstrap it does not claim certainty when all values are 0. For F1, which is mostly 0 or 1, little is
    lost.
    """
    total, n = min(math.fsum(values), float(len(values))), len(values)
    low, high = wilson_interval(total, n, confidence)
    return Mean(n=n, value=total / n if n else None, low=low, high=high)


def paired_bootstrap(
    differences: Sequence[float], *, seed: int = 0, resamples: int = 10_000, confidence: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of per-question differences in [-1, 1].

    Args:
        differences: one per question.
        seed: of the resampling.
        resamples: how many resampled means.
        confidence: two-sided.

    Returns:
        (low, high). When all differences are equal a resample cannot differ from the data, and an interval without
        width would claim certainty; the width is then what 0 of n leaves possible under Wilson's interval.

    Source: Efron, Annals of Statistics 7 (1979); paired over questions as in Koehn, EMNLP 2004. Resampling questions is
    drawing multinomial counts of the distinct differences, which is the same distribution at a fraction of the cost.
    """
    n = len(differences)
    if n == 0:
        return -1.0, 1.0
    values, counts = np.unique(np.asarray(differences, dtype=np.float64), return_counts=True)
    if len(values) == 1:
        width = wilson_interval(0, n, confidence)[1]
        return max(-1.0, float(values[0]) - width), min(1.0, float(values[0]) + width)
    draws = np.random.default_rng(seed).multinomial(n, counts / n, size=resamples)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(draws @ values / n, [tail, 100 - tail])
    return float(low), float(high)


def mcnemar_p(wins: int, losses: int) -> float:
    """Exact two-sided p-value that wins and losses are equally likely; ties say nothing.

    Args:
        wins: questions only the second system got right.
        losses: questions only the first got right.

    Returns:
        The p-value in (0, 1]; 1 without any win or loss.

    Source: McNemar, Psychometrika 12 (1947), with the binomial distribution instead of its approximation.
    """
    n, fewer = wins + losses, min(wins, losses)
    term = tail = 1
    for i in range(fewer):
        term = term * (n - i) // (i + 1)
        tail += term
    # Integers up to here: with thousands of wins the terms exceed what a float holds.
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def format_rate(rate: Rate) -> str:
    """For people: `41/100 = 41.0 % [31.9, 50.8]`; `0/0` when there is nothing."""
    if rate.value is None:
        return "0/0"
    return f"{rate.k}/{rate.n} = {100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def format_mean(mean: Mean) -> str:
    """For people, in percent: `46.2 % [37.0, 55.7]`; `-` when there is nothing."""
    if mean.value is None:
        return "-"
    return f"{100 * mean.value:.1f} % [{100 * mean.low:.1f}, {100 * mean.high:.1f}]"
