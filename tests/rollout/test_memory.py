"""Sizes of packed sequences come in steps, so that few matrix products are compiled."""

from __future__ import annotations

from seekling.rollout.engine.memory import in_steps


def test_a_size_is_never_smaller_and_wastes_at_most_an_eighth_or_fifteen_tokens():
    for num_tokens in range(1, 5000):
        size = in_steps(num_tokens)
        assert num_tokens <= size <= max(num_tokens + 15, num_tokens * 9 / 8)
        assert in_steps(size) == size


def test_the_sizes_up_to_a_row_of_a_thousand_tokens_are_few():
    assert len({in_steps(num_tokens) for num_tokens in range(1, 1025)}) == 16 + 8 + 8
