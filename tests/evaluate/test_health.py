"""Signs of collapse, read from histories of metrics."""

from __future__ import annotations

import pytest

from seekling.config import HealthConfig
from seekling.evaluate.health import (
    describe_health,
    find_signs,
)

CONFIG = HealthConfig(window=3)
HEALTHY = {
    "entropy": 0.4,
    "logprob_right_mean": -0.2,
    "kl_sampler": 0.001,
    "repetition_rate": 0.05,
    "action_tokens_mean": 60.0,
    "invalid_rate": 0.02,
    "reward_mean": 0.5,
}


def history(*changes, num_healthy=6):
    return [dict(HEALTHY) for _ in range(num_healthy)] + [HEALTHY | change for change in changes]


def names(rows, config=CONFIG):
    return [sign.name for sign in find_signs(rows, config)]


def test_a_steady_run_shows_no_sign_and_neither_does_a_better_one():
    assert names(history()) == []
    better = {"reward_mean": 1.0, "invalid_rate": 0.0, "action_tokens_mean": 20.0, "logprob_right_mean": -0.01}
    assert names(history(better, better, better)) == []


@pytest.mark.parametrize(
    ("sign", "change", "beside_it"),
    [
        ("entropy_low", {"entropy": 0.039}, {"entropy": 0.041}),
        ("entropy_high", {"entropy": 1.41}, {"entropy": 1.39}),
        ("likelihood", {"logprob_right_mean": -0.71}, {"logprob_right_mean": -0.69}),
        ("kl", {"kl_sampler": 0.11}, {"kl_sampler": 0.09}),
        ("repetition", {"repetition_rate": 0.36}, {"repetition_rate": 0.34}),
        ("length", {"action_tokens_mean": 121.0}, {"action_tokens_mean": 119.0}),
        ("invalid", {"invalid_rate": 0.33}, {"invalid_rate": 0.31}),
        ("reward", {"reward_mean": 0.24}, {"reward_mean": 0.26}),
    ],
)
def test_each_sign_has_its_limit(sign, change, beside_it):
    assert names(history(change, change, change)) == [sign]
    assert names(history(beside_it, beside_it, beside_it)) == []


def test_one_bad_step_is_no_sign_two_of_three_are():
    bad = {"invalid_rate": 0.9}
    assert names(history(bad)) == []
    assert names(history(bad, {}, {})) == []
    assert names(history(bad, {}, bad)) == ["invalid"]


def test_nothing_is_said_before_there_is_something_to_compare():
    bad = {"entropy": 0.0, "invalid_rate": 1.0, "reward_mean": 0.0}
    assert names(history(bad, bad, num_healthy=3)) == []
    assert names(history(bad, bad, bad, num_healthy=3)) == ["entropy_low", "invalid", "reward"]


def test_metrics_that_a_step_lacks_are_left_out():
    bare = {"reward_mean": 0.5}
    assert find_signs([bare] * 8, CONFIG) == []
    rows = [*history({"kl_sampler": 0.5}), bare, bare]
    assert names(rows) == ["kl"]


def test_a_sign_says_what_it_saw():
    (sign,) = find_signs(history(*[{"kl_sampler": 0.25}] * 3), CONFIG)
    assert str(sign) == "sampler and learner disagree (KL per token): 0.25, limit 0.1"
    assert names(history(*[{"kl_sampler": 0.25}] * 3), HealthConfig(window=3, action="off")) == []


def test_what_was_logged_is_told_once_for_each_time_it_comes_up():
    rows = [
        {"step": 1, "reward_mean": 0.5},
        {"step": 2, "health_kl": 0.25, "health_reward": 0.1},
        {"step": 3, "health_kl": 0.3},
        {"step": 4},
        {"step": 5, "health_kl": "damaged", "health_of_the_author": 1, "num_skipped_steps": 0},
        {"step": 6, "num_skipped_steps": 1},
    ]
    assert describe_health(rows) == [
        "Step 2: sampler and learner disagree (KL per token): 0.25.",
        "Step 2: the reward has fallen (mean): 0.1.",
        "Step 5: sampler and learner disagree (KL per token).",
        "Step 6: a gradient was not finite; its update was skipped.",
    ]
