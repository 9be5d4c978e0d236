"""Drawing tokens: the distribution, its truncation, and random numbers that depend on seed and position alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seekling.kernels.draw import draw, draw_keys, exponentials
from seekling.rollout.sampler import derive_seed

LOGITS = torch.tensor([1.0, -2.0, 0.5, float("-inf"), 0.0, -1.0, 2.0, float("-inf")])
MANY = 20_000
KEYS = draw_keys(np.full(MANY, 3, np.uint64), np.arange(MANY, dtype=np.uint64))
QUANTILES = {5: 20.5, 19: 43.8, 299: 381.4, 491: 597.1}
"""0.1 % quantiles of chi-square, by degrees of freedom."""


def draw_many(key_R, *, temperature=1.0, top_p=1.0, min_p=0.0, logits=LOGITS):
    rows = len(key_R)
    tokens, logprobs = draw(
        logits.expand(rows, -1),
        temperature_R=np.full(rows, temperature),
        top_p_R=np.full(rows, top_p),
        min_p_R=np.full(rows, min_p),
        key_R=np.asarray(key_R, np.uint64),
    )
    return np.asarray(tokens), np.asarray(logprobs)


def assert_follows(tokens, distribution):
    expected = np.asarray(distribution) * len(tokens)
    counts, possible = np.bincount(tokens, minlength=len(expected)), expected > 0
    assert counts[~possible].sum() == 0
    chi_square = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < QUANTILES[int(possible.sum()) - 1]


@pytest.mark.parametrize("axis", ["seeds", "positions", "numbers"])
def test_random_numbers_are_exponential_along_seeds_along_positions_and_within_a_draw(axis):
    counter, fixed = np.arange(MANY, dtype=np.uint64), np.full(MANY, 17, np.uint64)
    if axis == "numbers":
        (values,) = exponentials(KEYS[:1], MANY)
    else:
        values = exponentials(draw_keys(*((counter, fixed) if axis == "seeds" else (fixed, counter))), 3)[:, 2]
    assert values.min() > 0
    shares = 1 - np.exp(-values)
    assert_follows(np.minimum(shares * 20, 19).astype(int), np.full(20, 1 / 20))
    assert abs(float(np.corrcoef(shares[:-1], shares[1:])[0, 1])) < 0.03


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_softmax(temperature):
    tokens, _ = draw_many(KEYS, temperature=temperature)
    assert_follows(tokens, torch.softmax(LOGITS.double() / temperature, -1).numpy())


@pytest.mark.parametrize(
    ("top_p", "support"),
    [(0.01, {6}), (0.49, {6}), (0.51, {6, 0}), (0.79, {6, 0}), (0.81, {6, 0, 2}), (0.96, {6, 0, 2, 4})],
)
def test_top_p_keeps_exactly_the_smallest_set_that_reaches_it(top_p, support):
    probs = torch.tensor([0.3, 0.005, 0.12, 0.0, 0.045, 0.02, 0.5, 0.01])
    logits = torch.log(probs)
    tokens, logprobs = draw_many(KEYS, top_p=top_p, logits=logits)
    assert set(tokens.tolist()) == support
    # What is recorded is the policy's own log-probability, not that of the truncated distribution.
    np.testing.assert_allclose(logprobs, np.log(probs.numpy()[tokens]), atol=1e-5)
    shares = np.bincount(tokens, minlength=8) / MANY
    kept = np.where(np.isin(np.arange(8), list(support)), probs.numpy(), 0.0)
    np.testing.assert_allclose(shares, kept / kept.sum(), atol=0.012)  # 3.4 standard errors at most


def test_each_rows_logprob_is_that_of_its_own_temperature_and_a_greedy_ones_that_of_1():
    temperatures = np.asarray([0.0, 0.7, 1.0, 1.15])
    logits_RV = 3 * torch.randn(4, 900, generator=torch.Generator().manual_seed(5))
    tokens, logprobs = draw(
        logits_RV, temperature_R=temperatures, top_p_R=np.ones(4), min_p_R=np.zeros(4), key_R=KEYS[:4]
    )
    divisors_R = torch.tensor([1.0, 0.7, 1.0, 1.15], dtype=torch.float64)
    expected_RV = torch.log_softmax(logits_RV.double() / divisors_R[:, None], -1)
    np.testing.assert_allclose(logprobs, expected_RV[torch.arange(4), torch.tensor(tokens)], atol=2e-6)


def test_temperature_0_takes_the_most_likely_token_whatever_the_random_number():
    tokens, logprobs = draw_many(KEYS[:50], temperature=0.0)
    assert set(tokens.tolist()) == {6}
    expected = 2.0 - math.log(sum(math.exp(value) for value in LOGITS.tolist()))
    np.testing.assert_allclose(logprobs, expected, atol=1e-6)


@given(
    st.lists(st.one_of(st.floats(-30, 30, width=32), st.just(float("-inf"))), min_size=1, max_size=12).filter(
        lambda values: any(map(math.isfinite, values))
    ),
    st.integers(0, 2**64 - 1),
    st.floats(0.01, 1.0),
)
def test_a_token_of_probability_zero_is_never_drawn(logits, key, top_p):
    tokens, logprobs = draw_many([key], top_p=top_p, logits=torch.tensor(logits))
    assert math.isfinite(logits[tokens[0]])
    assert math.isfinite(logprobs[0])


def test_rows_are_drawn_independently_of_each_other():
    logits_RV = torch.stack([LOGITS, LOGITS.flip(0), torch.zeros(8)])
    settings = [np.asarray(each) for each in ([0.0, 1.0, 0.7], [1.0, 0.8, 1.0], [0.0, 0.1, 0.0])]
    names = "temperature_R", "top_p_R", "min_p_R"
    for start in range(50):
        keys = KEYS[start : start + 3]
        together, _ = draw(logits_RV, **dict(zip(names, settings, strict=True)), key_R=keys)
        alone = [
            draw(
                logits_RV[row : row + 1],
                **{name: each[row : row + 1] for name, each in zip(names, settings, strict=True)},
                key_R=keys[row : row + 1],
            )[0][0]
            for row in range(3)
        ]
        assert together == alone


@pytest.mark.parametrize("damage", [float("nan"), float("inf"), -float("nan")])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("count", [1, 300])
def test_damaged_logits_have_no_finite_logprob(temperature, damage, count):
    logits = torch.randn(300, generator=torch.Generator().manual_seed(0))
    logits[-count:] = damage
    assert not np.isfinite(draw_many(KEYS[:3], temperature=temperature, logits=logits)[1]).any()


def test_derived_seeds_fit_63_bits_and_differ_with_every_part():
    seeds = [derive_seed(*parts) for parts in [(0,), (1,), (0, "rl", 1), (0, "rl", 11), (0, "r", "l1"), ("0", "rl", 2)]]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "rl", 1, "nq", "7") == derive_seed("0", "rl", "1", "nq", 7)
