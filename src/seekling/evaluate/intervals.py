"""Rates and means with intervals, and the test of paired results. The tests check the coverage by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

_Z = NormalDist().inv_cdf(0.975)
"""All intervals are at 95 %."""


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


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, question by question; in [-1, 1]."""

    value: float
    low: float
    high: float
    p_value: float
    """Two-sided, that there is none."""


def wilson_interval(k: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion: honest at 0 of n and n of n, where the textbook's has no width.

    `k` may be fractional (see `mean_of`), 0 <= k <= n. Of 0 trials nothing is known: (0, 1).

    Source: E. B. Wilson, JASA 22 (1927), without continuity correction.
    """
    if n == 0:
        return 0.0, 1.0
    share = k / n
    centre = share + _Z * _Z / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z * _Z / (4 * n * n))
    scale = 1 + _Z * _Z / n
    # The ends are exact at the borders; rounding would leave 0 of n at -1e-17.
    low = 0.0 if k == 0 else (centre - half) / scale
    high = 1.0 if k == n else (centre + half) / scale
    return low, high


def rate_of(k: int, n: int) -> Rate:
    """A `Rate` of k in n."""
    low, high = wilson_interval(k, n)
    return Rate(k=k, n=n, value=k / n if n else None, low=low, high=high)


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of values in [0, 1] with a Wilson interval on their sum.

    A value in [0, 1] with mean m varies at most as much as a coin with that mean, so the interval is never too narrow,
    and unlike a bootstrap it does not claim certainty when all values are 0.
    """
    total, n = min(math.fsum(values), float(len(values))), len(values)
    low, high = wilson_interval(total, n)
    return Mean(n=n, value=total / n if n else None, low=low, high=high)


def difference_of(differences: Sequence[float]) -> Difference:
    """The mean of differences, with an interval and a p-value of one and the same test, which cannot disagree.

    A t test of the mean after four halves of a question are added: one that only the second answers, one that only the
    first does, one that both do and one that none does. So equal differences claim no certainty, and the test holds its
    level where few questions differ. The interval leaves 0 out exactly when the p-value is below 0.05.

    `differences` are in [-1, 1], one per independent question: over several seeds, that of the question's means.

    Source: Agresti and Min, Statistics in Medicine 24 (2005), for the halves; Student's t, with n - 1 degrees of
    freedom, instead of the normal distribution.
    """
    n = len(differences)
    if n == 0:
        return Difference(0.0, -1.0, 1.0, 1.0)
    total, squares = math.fsum(differences), math.fsum(each * each for each in differences) + 1.0
    mean = total / (n + 2)
    error = math.sqrt((squares / (n + 2) - mean * mean) / (n + 1))
    freedom = max(1, n - 1)
    half = student_t_limit(freedom) * error
    p_value = student_t_p(mean / error, freedom)
    return Difference(total / n, max(-1.0, mean - half), min(1.0, mean + half), p_value)


def student_t_p(t: float, freedom: int) -> float:
    """Two-sided p-value of Student's t: the regularised incomplete beta function I_x(freedom / 2, 1 / 2)."""
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, 1 - x) / b


def student_t_limit(freedom: int) -> float:
    """The t whose two-sided p-value is 5 %, by bisection."""
    low, high = 0.0, 1.0
    while student_t_p(high, freedom) > 0.05:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, freedom) > 0.05 else (low, middle)
    return high


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method.

    Source: DLMF 8.17.22.
    """
    c, d = 1.0, 1.0 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1 + numerator * d)
            c = 1 + numerator / c
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


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


def format_difference(gap: Difference) -> str:
    """For people, in points: `+11.0 points [+2.1, +19.5], p = 0.016`."""
    p_value = f"p = {gap.p_value:.2g}" if gap.p_value >= 0.001 else "p < 0.001"
    return f"{100 * gap.value:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}], {p_value}"
