"""Intervals: exact values, and coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.evaluate.intervals import (
    difference_of,
    format_difference,
    format_mean,
    format_rate,
    mean_of,
    rate_of,
    student_t_limit,
    student_t_p,
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


def test_a_hundred_zeros_are_not_certainty():
    assert mean_of([0.0] * 100).high == pytest.approx(0.0369935, abs=1e-6)
    same = difference_of([0.0] * 100)
    # One won and one lost half of a question in 102: sqrt(1 / 102 / 101) times t with 99 degrees of freedom.
    assert (same.low, same.high) == pytest.approx((-0.0195490, 0.0195490), abs=1e-6)
    assert (same.value, same.p_value) == (0.0, 1.0)
    all_won = difference_of([1.0] * 100)
    assert (all_won.value, all_won.high) == (1.0, 1.0)
    assert 0.94 < all_won.low < 0.96


@pytest.mark.parametrize(
    ("freedom", "limit"),
    # Tables of Student's t, two-sided 5 %.
    [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (30, 2.0423), (99, 1.9842), (100_000, 1.95998)],
)
def test_students_t_has_its_published_limits(freedom, limit):
    assert student_t_limit(freedom) == pytest.approx(limit, abs=5.1e-5)
    assert student_t_p(limit, freedom) == pytest.approx(0.05, abs=5e-6)


def test_a_difference_worked_by_hand():
    gap = difference_of([1.0] * 4 + [-1.0] + [0.0] * 5)
    # With the halves: sum 3 and squares 6 of 12, mean 0.25, variance 0.4375 of 12, error sqrt(0.4375 / 11).
    error = math.sqrt(0.4375 / 11)
    assert gap.value == 0.3
    assert (gap.low, gap.high) == pytest.approx((0.25 - 2.262157 * error, 0.25 + 2.262157 * error), abs=1e-6)
    assert gap.p_value == pytest.approx(student_t_p(0.25 / error, 9), rel=1e-12)


@given(st.lists(st.sampled_from([-1.0, -2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3, 1.0]), max_size=80))
def test_the_interval_leaves_zero_out_exactly_when_p_is_below_five_percent(differences):
    gap = difference_of(differences)
    assert (gap.low > 0 or gap.high < 0) == (gap.p_value < 0.05)
    assert gap.low <= gap.value <= gap.high
    mirrored = difference_of([-each for each in differences])
    assert (mirrored.low, mirrored.p_value) == pytest.approx((-gap.high, gap.p_value))


@pytest.mark.parametrize("wins", [0.3, 0.04])
def test_the_interval_of_a_difference_covers_the_truth_over_seeds_that_are_alike(wins):
    """Three seeds answer most questions alike: 300 episodes a side are no 300 trials, 100 questions are."""
    rng = np.random.default_rng(2)
    clustered, naive = 0, 0
    for _ in range(400):
        of_question = rng.choice([1.0, -1.0, 0.0], p=[wins, 0.02, 0.98 - wins], size=100)
        again = rng.choice([1.0, -1.0, 0.0], p=[wins, 0.02, 0.98 - wins], size=(3, 100))
        seeds = np.where(rng.random((3, 100)) < 0.8, of_question, again)
        gap, alone = difference_of(seeds.mean(0).tolist()), difference_of(seeds.ravel().tolist())
        clustered += gap.low <= wins - 0.02 <= gap.high
        naive += alone.low <= wins - 0.02 <= alone.high
    assert 0.925 <= clustered / 400 <= 0.98
    assert naive / 400 < 0.85


def test_figures_are_printed_with_their_counts_and_interval():
    assert format_rate(rate_of(41, 100)) == "41/100 = 41.0 % [31.9, 50.8]"
    assert format_rate(rate_of(0, 0)) == "0/0"
    assert format_mean(mean_of([1.0, 0.0])) == "50.0 % [9.5, 90.5]"
    assert format_mean(mean_of([])) == "-"
    assert format_difference(difference_of([1.0, 0.0] * 50)) == "+50.0 points [+39.0, +59.1], p < 0.001"
