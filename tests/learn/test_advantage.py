"""Advantages: GAE over action tokens, whitening, what is equal, and what of a group is learned from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.learn.advantage import (
    are_equal,
    generalized_advantages,
    group_advantages,
    most_varied,
    num_represented,
    whiten,
)

UNIT = st.floats(-2, 2)


def naive_advantage(rewards, values, start, gamma, gae_lambda):
    """GAE as the exponentially weighted sum of k-step surprises, term by term."""
    later = [*values[1:], 0.0]
    return sum(
        (gamma * gae_lambda) ** (step - start) * (rewards[step] + gamma * later[step] - values[step])
        for step in range(start, len(values))
    )


@given(
    st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=9),
    st.floats(0, 1, allow_subnormal=False),
    st.floats(0, 1, allow_subnormal=False),
)
def test_gae_equals_its_sum_written_out(steps, gamma, gae_lambda):
    rewards, values = (np.asarray(column) for column in zip(*steps, strict=True))
    advantages, returns = generalized_advantages(rewards, values, gamma=gamma, gae_lambda=gae_lambda)
    expected = [naive_advantage(rewards, values, start, gamma, gae_lambda) for start in range(len(steps))]
    np.testing.assert_allclose(advantages, expected, atol=1e-9)
    np.testing.assert_allclose(returns, np.asarray(expected) + values, atol=1e-9)


def test_whitening_is_over_all_tokens_together():
    white = whiten([np.array([1.0, 3.0]), np.array([5.0])])
    np.testing.assert_allclose(np.concatenate(white), np.array([-2.0, 0.0, 2.0]) / (8 / 3) ** 0.5)
    assert [len(each) for each in white] == [2, 1]


@pytest.mark.parametrize("values", [[0.3, 0.1 + 0.2], [1.0, 1 - 2**-24, 1.0], [-2e-7, 3e-7]])
def test_whitening_makes_no_advantage_of_1_of_rounding(values):
    """Returns of 1 and a critic in float32 that has learned them leave such differences."""
    assert len(set(values)) > 1
    assert not whiten([np.asarray(values)])[0].any()


@pytest.mark.parametrize("rewards", [[0.3, 0.1 + 0.2, 0.3], [1e4, 1e4 + 1e-3], [0.0, 1e-7]])
def test_rewards_that_differ_by_rounding_are_equal(rewards):
    assert len(set(rewards)) > 1
    assert are_equal(np.asarray(rewards))
    assert not group_advantages(np.asarray(rewards)).any()


@pytest.mark.parametrize("rewards", [[0.0, 1e-5], [0.5, 0.51], [1e4, 1e4 + 1]])
def test_small_differences_are_differences(rewards):
    assert not are_equal(np.asarray(rewards))
    np.testing.assert_allclose(group_advantages(np.asarray(rewards)), [-1, 1], atol=1e-6)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.1 + 0.2, 0.3, 1.0, -0.7]), min_size=3, max_size=8), st.integers(2, 8)
)
def test_the_chosen_weigh_as_many_as_the_group_has_and_keep_its_mean(rewards, count):
    rewards = np.asarray(rewards)
    chosen = most_varied(rewards, count)
    weights = num_represented(rewards, chosen)
    assert (weights >= 1 - 1e-9).all()
    assert weights.sum() == pytest.approx(len(rewards))
    assert weights @ rewards[chosen] == pytest.approx(rewards.sum(), abs=1e-5)


def test_of_two_rewards_the_weighted_choice_has_the_expectation_of_the_whole_group():
    """Episodes of one reward come in any order: over all orders the estimate averages to the group's own sum."""
    gradients, rewards = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0]), np.array([1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    estimates, naive, wholes = [], [], []
    for order in itertools.permutations(range(6)):
        order = list(order)
        shuffled, advantages = gradients[order], group_advantages(rewards[order])
        chosen = most_varied(rewards[order], 4)
        terms = advantages[chosen] * shuffled[chosen]
        estimates.append(num_represented(rewards[order], chosen) @ terms)
        naive.append(6 / 4 * terms.sum())
        wholes.append(advantages @ shuffled)
    assert np.var(wholes) < 1e-12
    assert np.mean(estimates) == pytest.approx(wholes[0])
    # The same weight for all is not: a success is likelier to be chosen than a failure.
    assert abs(np.mean(naive) - wholes[0]) > 1
