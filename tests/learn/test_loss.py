"""Losses and advantages against values worked by hand; TRL's are in test_trl_values.py."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seekling.config import LossConfig
from seekling.errors import DataError
from seekling.learn.advantage import group_advantages, most_varied
from seekling.learn.loss import (
    KL_ESTIMATORS,
    TokenData,
    denominator,
    low_variance_kl,
    make_policy_loss,
    make_policy_measure,
    token_weights,
    value_loss,
)
from seekling.learn.sft import scheduled_rate

LOGPROBS = st.floats(-12, -0.001)
AGAINST_SAMPLER = {"old_logprobs": "rollout", "correction": "none"}


def data(behaviour, advantages, reference=None):
    return TokenData(
        torch.tensor(behaviour), torch.tensor(advantages), None if reference is None else torch.tensor(reference)
    )


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


@pytest.mark.parametrize("gap", [2.7, 49.0, 200.0, -11.1, -200.0])
def test_k3_of_a_token_that_has_become_impossible_is_10_and_pulls_no_more(gap):
    current = torch.tensor([-300.0], requires_grad=True)
    found = low_variance_kl(current, current.detach() + gap)
    found.backward()
    assert (found.item(), current.grad.item()) == (10.0, 0.0)


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


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.2, 0.5, 1.0]), min_size=3, max_size=9), st.integers(2, 8))
def test_no_other_subset_of_that_size_varies_more(rewards, count):
    rewards_G = np.asarray(rewards)
    chosen = most_varied(rewards_G, count)
    best = max(np.var(rewards_G[list(subset)]) for subset in itertools.combinations(range(len(rewards)), len(chosen)))
    assert np.var(rewards_G[chosen]) == pytest.approx(best)


TOKENS = st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS, st.floats(-3, 3), st.integers(0, 2)), min_size=1, max_size=7)


OLD_AND_CORRECTION = [("rollout", "none"), ("recomputed", "none"), ("recomputed", "tis"), ("recomputed", "mask")]
KINDS = ["ppo", "importance_sampling", "cispo", "gspo"]


def settings_and_tensors(loss, tokens, choice):
    """A configuration, log-probabilities, and what is known of the tokens."""
    old_logprobs, correction = choice
    bounds = {} if loss == "importance_sampling" else {"clip_low": 0.3, "clip_high": 0.5}
    logprobs, old, behaviour, advantages, sequences = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    given_old = old if old_logprobs == "recomputed" else None
    config = LossConfig(kind=loss, old_logprobs=old_logprobs, correction=correction, **bounds)
    return config, logprobs, TokenData(behaviour, advantages, old_logprobs_A=given_old, sequence_A=sequences)


def gradient_of(config, logprobs, behaviour, advantages, **more):
    values = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    as_tensor = {name: torch.tensor(each, dtype=torch.float64) for name, each in more.items()}
    given_data = TokenData(
        torch.tensor(behaviour, dtype=torch.float64), torch.tensor(advantages, dtype=torch.float64), **as_tensor
    )
    make_policy_loss(config)(values, given_data).sum().backward()
    return values.grad.tolist()


def test_a_token_far_outside_the_bounds_still_teaches_under_cispo_and_not_under_ppo():
    token = ([-1.0], [-3.0], [1.0])  # seven times as likely as it was
    for loss, slope in {"ppo": 0.0, "cispo": -1.28, "importance_sampling": -math.exp(2.0)}.items():
        assert gradient_of(LossConfig(kind=loss, **AGAINST_SAMPLER), *token) == pytest.approx([slope])


def test_by_default_a_first_step_clips_nothing_and_weighs_the_sampler_up_to_its_cap():
    # The sampler found the tokens likelier, as likely, and seven times less likely: no ratio of the policy to itself.
    found = gradient_of(LossConfig(), [-2.0, -2.0, -2.0], [-2.0 + math.log(2), -2.0, -4.0], [1.0, 1.0, 1.0])
    assert found == pytest.approx([-0.5, -1.0, -2.0])


@pytest.mark.parametrize("loss", KINDS)
@given(tokens=TOKENS, choice=st.sampled_from(OLD_AND_CORRECTION))
def test_what_is_measured_is_what_the_loss_did(loss, tokens, choice):
    """A token counts as clipped exactly where its surrogate is not that of its own ratio."""
    config, logprobs, known = settings_and_tensors(loss, tokens, choice)
    found = make_policy_measure(config)(logprobs, known)
    losses = make_policy_loss(config)(logprobs, known)
    factor = -known.advantages_A * found.weights_A * (logprobs if loss == "cispo" else 1)
    clipped = found.is_clipped_low_A | found.is_clipped_high_A
    np.testing.assert_allclose(losses[~clipped], (found.ratios_A * factor)[~clipped], rtol=1e-9, atol=1e-12)
    bounds_A = torch.where(found.is_clipped_low_A, torch.tensor(0.7, dtype=torch.float64), 1.5)
    np.testing.assert_allclose(losses[clipped], (bounds_A * factor)[clipped], rtol=1e-9, atol=1e-12)
    assert bool((found.ratios_A[found.is_clipped_low_A] < 0.7).all())
    assert bool((found.ratios_A[found.is_clipped_high_A] > 1.5).all())


@pytest.mark.parametrize(("kl", "value", "slope"), [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", 0.1065307, 0.3934693)])
def test_kl_estimators_of_a_gap_of_a_half(kl, value, slope):
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    found = KL_ESTIMATORS[kl](logprobs, torch.tensor([-1.5], dtype=torch.float64))
    found.backward()
    assert found.item() == pytest.approx(value)
    assert logprobs.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("kl", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence(kl):
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    estimate = (policy * KL_ESTIMATORS[kl](policy.log(), reference.log())).sum()
    assert estimate.item() == pytest.approx((policy * (policy / reference).log()).sum().item(), abs=1e-6)


def test_the_gradient_of_k2_is_that_of_the_divergence():
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    policy = torch.softmax(logits, 0)
    (exact,) = torch.autograd.grad((policy * (policy / reference).log()).sum(), logits, retain_graph=True)
    sampled = (policy.detach() * KL_ESTIMATORS["k2"](policy.log(), reference.log())).sum()
    (found,) = torch.autograd.grad(sampled, logits)
    np.testing.assert_allclose(found, exact, atol=1e-12)


def test_a_kl_in_the_reward_is_none_in_the_loss():
    config = LossConfig(kl_coefficient=0.5, kl_in="reward", kl="k1")
    assert gradient_of(config, [-1.0], [-1.0], [1.0]) == [-1.0]


@pytest.mark.parametrize(
    ("value", "expected", "slope"),
    [
        (0.2, 0.5 * 0.8**2, -0.8),
        (0.9, 0.5 * 0.4**2, 0.0),  # moved further than 0.5: where the clip leaves it is worse, and has no slope
        (-0.9, 0.5 * 1.9**2, -1.9),  # moved the wrong way: the error itself is larger
        (1.3, 0.5 * 0.4**2, 0.0),
    ],
)
def test_a_critic_is_clipped_where_that_makes_its_error_larger(value, expected, slope):
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    nothing, returns = torch.zeros(1), torch.tensor([1.0], dtype=torch.float64)
    loss = value_loss(
        values, TokenData(nothing, nothing, returns_A=returns, old_values_A=nothing + 0.1), value_clip=0.5
    )
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert values.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token_mean", (1 + 2 + 3 + 10) / 4), ("sequence_mean", (2 + 10) / 2), ("sum", 16), ("constant", 16 / (2 * 8))],
)
def test_aggregations_of_three_tokens_and_one(aggregation, expected):
    num_trained_B, losses_A, owner_A = np.array([3, 0, 1]), np.array([1.0, 2.0, 3.0, 10.0]), np.array([0, 0, 0, 2])
    weights_B = token_weights(num_trained_B, aggregation)
    total = (losses_A * weights_B[owner_A]).sum() / denominator(num_trained_B, aggregation, constant=8)
    assert total == pytest.approx(expected)
