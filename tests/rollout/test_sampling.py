"""Drawing tokens: the distribution, its truncation, and random numbers that depend on seed and position alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seekling.rollout.engine.sampling import draw, uniforms
from seekling.rollout.sampler import derive_seed

LOGITS = torch.tensor([1.0, -2.0, 0.5, float("-inf"), 0.0, -1.0, 2.0, float("-inf")])
MANY = 20_000
NEARLY_ONE = 1 - 2.0**-53


def draw_many(uniform_R, *, temperature=1.0, top_p=1.0, min_p=0.0, logits=LOGITS):
    rows = len(uniform_R)
    tokens, logprobs = draw(
        logits.expand(rows, -1),
        temperature_R=np.full(rows, temperature),
        top_p_R=np.full(rows, top_p),
        min_p_R=np.full(rows, min_p),
        uniform_R=np.asarray(uniform_R, np.float64),
    )
    return np.asarray(tokens), np.asarray(logprobs)


def split_mix(seed: int, position: int) -> float:
    """The definition, in whole numbers."""
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    return (mix((mix((seed + golden) & mask) + (position + 1) * golden) & mask) >> 11) * 2.0**-53


@given(st.integers(0, 2**64 - 1), st.integers(0, 100_000))
def test_uniform_numbers_are_splitmix64_of_seed_and_position(seed, position):
    (value,) = uniforms(np.asarray([seed], np.uint64), np.asarray([position], np.uint64))
    assert value == split_mix(seed, position)
    assert 0 <= value < 1


@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_uniform_numbers_fill_the_interval_evenly_along_seeds_and_along_positions(axis):
    counter, fixed = np.arange(MANY, dtype=np.uint64), np.full(MANY, 17, np.uint64)
    values = uniforms(counter, fixed) if axis == "seeds" else uniforms(fixed, counter)
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    chi_square = float(((counts - MANY / 20) ** 2 / (MANY / 20)).sum())
    assert chi_square < 43.8  # 0.1 % quantile with 19 degrees of freedom
    assert abs(float(np.corrcoef(values[:-1], values[1:])[0, 1])) < 0.03


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_softmax(temperature):
    counter = np.arange(MANY, dtype=np.uint64)
    tokens, _ = draw_many(uniforms(np.full(MANY, 3, np.uint64), counter), temperature=temperature)
    expected = torch.softmax(LOGITS.double() / temperature, -1).numpy() * MANY
    counts = np.bincount(tokens, minlength=8)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < 20.5  # 0.1 % quantile with 5 degrees of freedom


@pytest.mark.parametrize(
    ("top_p", "support"),
    [(0.01, {6}), (0.49, {6}), (0.51, {6, 0}), (0.79, {6, 0}), (0.81, {6, 0, 2}), (0.96, {6, 0, 2, 4})],
)
def test_top_p_keeps_exactly_the_smallest_set_that_reaches_it(top_p, support):
    probs = torch.tensor([0.3, 0.005, 0.12, 0.0, 0.045, 0.02, 0.5, 0.01])
    logits = torch.log(probs)
    tokens, logprobs = draw_many(np.linspace(0, NEARLY_ONE, 4001), top_p=top_p, logits=logits)
    assert set(tokens.tolist()) == support
    # What is recorded is the policy's own log-probability, not that of the truncated distribution.
    np.testing.assert_allclose(logprobs, np.log(probs.numpy()[tokens]), atol=1e-5)
    shares = np.bincount(tokens, minlength=8) / 4001
    kept = np.where(np.isin(np.arange(8), list(support)), probs.numpy(), 0.0)
    np.testing.assert_allclose(shares, kept / kept.sum(), atol=1e-3)


def naive_distribution(logits, temperature, top_p, min_p):
    """What draws should follow: both truncations of the tempered softmax, token by token."""
    tempered = torch.softmax(logits.double() / temperature, -1).tolist()
    kept, reached = [0.0] * len(tempered), 0.0
    for token in sorted(range(len(tempered)), key=lambda token: -tempered[token]):
        if reached < top_p and tempered[token] >= min_p * max(tempered):
            kept[token] = tempered[token]
        reached += tempered[token]
    return np.asarray(kept) / sum(kept)


@pytest.mark.parametrize("min_p", [0.0, 0.01, 0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("top_p", [0.7, 1.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_min_p_and_top_p_keep_what_a_naive_version_keeps(min_p, top_p, temperature):
    tokens, logprobs = draw_many(np.linspace(0, NEARLY_ONE, 4001), temperature=temperature, top_p=top_p, min_p=min_p)
    expected = naive_distribution(LOGITS, temperature, top_p, min_p)
    assert set(tokens.tolist()) == set(np.flatnonzero(expected).tolist())
    np.testing.assert_allclose(np.bincount(tokens, minlength=8) / 4001, expected, atol=1e-3)
    # Recorded is the untempered, untruncated policy's log-probability.
    np.testing.assert_allclose(logprobs, torch.log_softmax(LOGITS, -1).numpy()[tokens], atol=1e-5)


def test_min_p_is_each_rows_own():
    uniform, logits = 0.999, torch.log(torch.tensor([0.6, 0.3, 0.1]))
    tokens, _ = draw(
        logits.expand(4, -1),
        temperature_R=np.ones(4),
        top_p_R=np.ones(4),
        min_p_R=np.asarray([0.0, 0.16, 0.17, 0.51]),
        uniform_R=np.full(4, uniform),
    )
    assert tokens == [2, 2, 1, 0]


def test_temperature_0_takes_the_most_likely_token_whatever_the_random_number():
    tokens, logprobs = draw_many(np.linspace(0, NEARLY_ONE, 50), temperature=0.0)
    assert set(tokens.tolist()) == {6}
    expected = 2.0 - math.log(sum(math.exp(value) for value in LOGITS.tolist()))
    np.testing.assert_allclose(logprobs, expected, atol=1e-6)


@given(
    st.lists(st.one_of(st.floats(-30, 30, width=32), st.just(float("-inf"))), min_size=1, max_size=12).filter(
        lambda values: any(map(math.isfinite, values))
    ),
    st.one_of(st.floats(0, NEARLY_ONE), st.just(0.0), st.just(NEARLY_ONE)),
    st.floats(0.01, 1.0),
)
def test_a_token_of_probability_zero_is_never_drawn(logits, uniform, top_p):
    tokens, logprobs = draw_many([uniform], top_p=top_p, logits=torch.tensor(logits))
    assert math.isfinite(logits[tokens[0]])
    assert math.isfinite(logprobs[0])


def test_rows_are_drawn_independently_of_each_other():
    logits_RV = torch.stack([LOGITS, LOGITS.flip(0), torch.zeros(8)])
    tokens, _ = draw(
        logits_RV,
        temperature_R=np.asarray([0.0, 0.0, 1.0]),
        top_p_R=np.asarray([1.0, 1.0, 1.0]),
        min_p_R=np.asarray([0.0, 1.0, 0.0]),
        uniform_R=np.asarray([0.9, 0.9, 0.51]),
    )
    assert tokens == [6, 1, 4]


def test_bfloat16_logits_are_summed_in_float32():
    tokens, logprobs = draw_many([0.3], logits=torch.zeros(492, dtype=torch.bfloat16))
    assert tokens.tolist() == [147]
    np.testing.assert_allclose(logprobs, -math.log(492), atol=1e-6)


def test_derived_seeds_fit_63_bits_and_differ_with_every_part():
    seeds = [derive_seed(*parts) for parts in [(0,), (1,), (0, "rl", 1), (0, "rl", 11), (0, "r", "l1"), ("0", "rl", 2)]]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "rl", 1, "nq", "7") == derive_seed("0", "rl", "1", "nq", 7)
