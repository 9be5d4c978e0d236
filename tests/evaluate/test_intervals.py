"""Intervals: exact values, and coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.evaluate.intervals import (
    format_mean,
    format_rate,
    mcnemar_p,
    mean_of,
    paired_bootstrap,
    rate_of,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # By symmetry, and 0 of n is z^2 / (n + z^2).
        (20, 20, 0.8389, 1.0),
        (0, 100, 0.0, 0.0370),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson_interval_has_its_published_values(k, n, low, high):
    assert wilson_interval(k, n) == pytest.approx((low, high), abs=5.1e-5)


def test_wilson_interval_ends_solve_the_score_equation():
    z = 1.959963984540054
    for k, n in [(3, 17), (41, 100), (900, 1000)]:
        for end in wilson_interval(k, n):
            assert abs(k / n - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-9)


def test_nothing_tried_means_nothing_known():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert rate_of(0, 0).value is None
    assert mean_of([]).value is None


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5)])
def test_impossible_counts_are_our_own_bug(k, n):
    with pytest.raises(ValueError, match="0 <= k <= n"):
        wilson_interval(k, n)


def binomial_shares(n, share):
    """P(k of n) for every k."""
    return [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]


@pytest.mark.parametrize("n", [20, 100, 400])
def test_wilson_interval_covers_the_truth_as_often_as_it_says(n):
    covers, worst = [], 1.0
    for share in np.linspace(0.02, 0.98, 97):
        covered = sum(
            p
            for k, p in enumerate(binomial_shares(n, share))
            if wilson_interval(k, n)[0] <= share <= wilson_interval(k, n)[1]
        )
        covers.append(covered)
        worst = min(worst, covered)
    assert np.mean(covers) == pytest.approx(0.95, abs=0.012)
    assert worst > 0.87


def test_the_interval_of_a_mean_covers_f1_like_values():
    rng = np.random.default_rng(0)
    values, shares = np.array([0.0, 0.4, 2 / 3, 1.0]), np.array([0.55, 0.1, 0.1, 0.25])
    draws = rng.choice(values, p=shares, size=(2000, 100))
    intervals = [mean_of(row.tolist()) for row in draws]
    truth = float(values @ shares)
    covered = np.mean([mean.low <= truth <= mean.high for mean in intervals])
    assert 0.95 <= covered <= 0.99


def test_the_mean_of_zeros_and_ones_has_the_interval_of_the_rate():
    mean, rate = mean_of([1.0] * 41 + [0.0] * 59), rate_of(41, 100)
    assert (mean.value, mean.low, mean.high) == (rate.value, rate.low, rate.high)


def test_a_hundred_zeros_are_not_certainty():
    assert mean_of([0.0] * 100).high == pytest.approx(0.0369935, abs=1e-6)
    assert paired_bootstrap([0.0] * 100) == pytest.approx((-0.0369935, 0.0369935), abs=1e-6)
    assert paired_bootstrap([1.0] * 100) == pytest.approx((1 - 0.0369935, 1.0), abs=1e-6)


def test_the_paired_bootstrap_is_seeded_and_agrees_with_resampling_one_by_one():
    differences = [1.0] * 30 + [-1.0] * 10 + [0.0] * 60
    assert paired_bootstrap(differences, seed=3) == paired_bootstrap(differences, seed=3)
    rng = np.random.default_rng(1)
    naive = [rng.choice(differences, size=100).mean() for _ in range(4000)]
    expected = np.percentile(naive, [2.5, 97.5])
    assert paired_bootstrap(differences, seed=3) == pytest.approx(expected, abs=0.011)


def test_the_paired_bootstrap_covers_the_truth():
    rng = np.random.default_rng(2)
    draws = rng.choice([1.0, -1.0, 0.0], p=[0.3, 0.1, 0.6], size=(600, 100))
    intervals = [paired_bootstrap(row.tolist(), seed=i, resamples=1000) for i, row in enumerate(draws)]
    assert 0.92 <= np.mean([low <= 0.2 <= high for low, high in intervals]) <= 0.98


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (8, 2, 2 * 56 / 1024), (2, 8, 2 * 56 / 1024), (3, 3, 1.0)],
)
def test_mcnemar_is_the_exact_binomial_test(wins, losses, p):
    assert mcnemar_p(wins, losses) == pytest.approx(p, abs=1e-15)


def test_mcnemar_does_not_overflow_with_thousands_of_questions():
    assert mcnemar_p(5000, 5000) == 1.0
    assert 0 < mcnemar_p(3000, 2500) < 1e-10


@given(st.integers(1, 500), st.data())
def test_the_interval_contains_the_rate_and_mirrors(n, data):
    k = data.draw(st.integers(0, n))
    low, high = wilson_interval(k, n)
    assert 0 <= low <= k / n <= high <= 1
    assert wilson_interval(n - k, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_figures_are_printed_with_their_counts_and_interval():
    assert format_rate(rate_of(41, 100)) == "41/100 = 41.0 % [31.9, 50.8]"
    assert format_rate(rate_of(0, 0)) == "0/0"
    assert format_mean(mean_of([1.0, 0.0])) == "50.0 % [9.5, 90.5]"
    assert format_mean(mean_of([])) == "-"
