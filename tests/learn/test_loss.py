"""Losses and advantages against values worked by hand and naive versions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seekling.errors import DataError
from seekling.learn.advantage import group_advantages, most_varied
from seekling.learn.loss import TokenData, clipped_policy_loss, cross_entropy, low_variance_kl
from seekling.learn.schedule import scheduled_rate

LOGPROBS = st.floats(-12, -0.001)


def data(behaviour, advantages, reference=None):
    return TokenData(
        torch.tensor(behaviour), torch.tensor(advantages), None if reference is None else torch.tensor(reference)
    )


def test_advantages_are_centred_and_divided_by_the_population_deviation():
    np.testing.assert_allclose(
        group_advantages(np.array([1.0, 0.0, 0.0, 0.0])), [3**0.5, *[-(3**-0.5)] * 3], atol=1e-12
    )
    np.testing.assert_allclose(group_advantages(np.array([2.0, 0.0]), scale="std"), [1, -1], atol=1e-12)


def test_advantages_without_scaling_are_centred_only():
    assert group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), scale="none").tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("scale", ["none", "std"])
def test_advantages_ignore_a_constant_added_to_every_reward(scale):
    rewards = np.array([0.3, 0.3, 0.9, 0.1])
    np.testing.assert_allclose(
        group_advantages(rewards + 5.0, scale=scale), group_advantages(rewards, scale=scale), atol=1e-12
    )


def test_scaled_advantages_ignore_the_unit_of_the_rewards():
    rewards = np.array([0.3, 0.3, 0.9, 0.1])
    np.testing.assert_allclose(group_advantages(7 * rewards), group_advantages(rewards), atol=1e-12)


@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("value", [0.1, 0.0, 1.0, -0.7, 1e-300])
def test_pitfall_11_equal_rewards_have_advantage_exactly_0(scale, value):
    assert np.std([0.1, 0.1, 0.1]) != 0  # which is why the deviation is not what is compared
    assert group_advantages(np.full(3, value), scale=scale).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(1,), (0,), (2, 3), ()])
def test_rewards_that_are_no_group_are_refused_with_their_shape(shape):
    with pytest.raises(DataError, match=r"\(G,\) with G >= 2, got \(") as error:
        group_advantages(np.zeros(shape))
    assert str(shape) in str(error.value)


def test_cross_entropy_is_the_negative_log_likelihood_whatever_the_advantages():
    loss = cross_entropy(torch.tensor([-0.5, -2.0]), data([0.0, 0.0], [3.0, -1.0]))
    assert loss.tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "has_gradient"),
    [
        (1.0, 2.0, -2.0, True),
        (1.1, 2.0, -2.2, True),
        (1.5, 2.0, -2.56, False),  # clipped above at 1.28
        (0.5, 2.0, -1.0, True),  # pessimistic: the smaller of 0.5 and 0.8
        (0.5, -1.0, 0.8, False),  # clipped below at 0.8
        (1.5, -1.0, 1.5, True),
        (1.28001, 1.0, -1.28, False),
        (0.79999, -1.0, 0.8, False),
        (3.0, 0.0, 0.0, False),
    ],
)
def test_the_surrogate_is_clipped_at_both_bounds(ratio, advantage, expected, has_gradient):
    logprobs = torch.tensor([math.log(ratio) - 2.0], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([-2.0], dtype=torch.float64)
    loss = clipped_policy_loss(logprobs, TokenData(behaviour, torch.tensor([advantage], dtype=torch.float64)))
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    loss.backward()
    assert logprobs.grad.item() == pytest.approx(-ratio * advantage if has_gradient else 0.0, abs=1e-12)


def naive_policy_loss(logprob, behaviour, advantage, reference, low, high, coefficient):
    ratio = math.exp(logprob - behaviour)
    bounded = min(max(ratio, 1 - low), 1 + high)
    gap = min(max(reference - logprob, -10.0), 10.0)
    return -min(ratio * advantage, bounded * advantage) + coefficient * (math.exp(gap) - gap - 1)


@given(LOGPROBS, LOGPROBS, st.floats(-3, 3), LOGPROBS, st.floats(0.05, 0.5), st.floats(0.05, 0.5), st.floats(0.0, 1.0))
def test_the_policy_loss_equals_a_naive_one(logprob, behaviour, advantage, reference, low, high, coefficient):
    tensors = [torch.tensor([value], dtype=torch.float64) for value in (logprob, behaviour, advantage, reference)]
    loss = clipped_policy_loss(
        tensors[0], TokenData(*tensors[1:]), clip_low=low, clip_high=high, kl_coefficient=coefficient
    )
    expected = naive_policy_loss(logprob, behaviour, advantage, reference, low, high, coefficient)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(LOGPROBS, LOGPROBS)
def test_k3_is_never_negative_and_0_for_equal_policies(logprob, reference):
    current, anchor = torch.tensor([logprob]), torch.tensor([reference])
    assert low_variance_kl(current, anchor).item() >= 0
    assert low_variance_kl(current, current).item() == 0


def test_k3_averages_to_the_kl_divergence_over_samples_of_the_policy():
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    estimate = (policy * low_variance_kl(policy.log(), reference.log())).sum()
    assert estimate.item() == pytest.approx((policy * (policy / reference).log()).sum().item(), abs=1e-6)


def test_k3_of_a_huge_gap_is_bounded():
    assert low_variance_kl(torch.tensor([-50.0]), torch.tensor([-1.0])).item() == pytest.approx(math.exp(10) - 11)


def test_without_a_coefficient_the_reference_does_not_count():
    with_reference = clipped_policy_loss(torch.tensor([-1.0]), data([-1.0], [1.0], [-5.0]))
    assert with_reference.item() == -1.0


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.25, 0.5, 0.75, 1, 1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
    ],
)
def test_rates_warm_up_and_decay(decay, expected):
    rates = [scheduled_rate(1.0, step, total=8, warmup=4, decay=decay) for step in range(8)]
    np.testing.assert_allclose(rates, expected, atol=1e-12)


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 5), (3, 5), (3, 3), (0, 0)])
def test_short_runs_have_rates_too(decay, total, warmup):
    rates = [scheduled_rate(2.0, step, total=total, warmup=warmup, decay=decay) for step in range(total)]
    assert all(0 < rate <= 2.0 for rate in rates)


@pytest.mark.parametrize(
    ("rewards", "count", "expected"),
    [
        ([0, 1, 0, 0, 0, 1], 4, [0, 1, 2, 5]),
        ([1, 1, 1, 0, 1, 1], 4, [0, 1, 2, 3]),
        ([0.5, 0.0, 0.4, 1.0], 2, [1, 3]),
        ([0.5, 0.5, 0.5], 2, [0, 1]),
        ([0.5, 0.0, 0.4], 0, [0, 1, 2]),
        ([0.5, 0.0, 0.4], 3, [0, 1, 2]),
        ([0.5, 0.0, 0.4], 9, [0, 1, 2]),
    ],
)
def test_the_most_varied_rewards_are_the_lowest_and_the_highest(rewards, count, expected):
    assert most_varied(np.asarray(rewards, float), count).tolist() == expected


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.2, 0.5, 1.0]), min_size=3, max_size=9), st.integers(2, 8))
def test_no_other_subset_of_that_size_varies_more(rewards, count):
    rewards_G = np.asarray(rewards)
    chosen = most_varied(rewards_G, count)
    best = max(np.var(rewards_G[list(subset)]) for subset in itertools.combinations(range(len(rewards)), len(chosen)))
    assert np.var(rewards_G[chosen]) == pytest.approx(best)
