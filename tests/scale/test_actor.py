"""Weights are exchanged between the turns of an episode, never within one; calls that come early; busy times."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from seekling.rollout.sampler import SampleRequest
from seekling.scale.actor import Place, SamplerActor, SwapsBetweenTurns
from tests.rollout.policies import ScriptedSampler
from tests.settings import recipe_of


def test_a_turn_ends_with_the_weights_it_began_with_and_the_next_one_has_the_new_ones():
    inner = ScriptedSampler([[([5, 6], "stop"), ([7], "stop")]])
    sampler = SwapsBetweenTurns(inner)

    def load() -> None:
        assert inner.num_running == 0
        inner.policy_version, inner.scale = 1, 2.0

    async def episode() -> list:
        first = asyncio.create_task(sampler.sample(SampleRequest(1, (1, 2), 8, seed=0)))
        await asyncio.sleep(0)
        assert inner.num_running == 1
        swapping = asyncio.create_task(sampler.swap(load))
        await asyncio.sleep(0)
        second = asyncio.create_task(sampler.sample(SampleRequest(1, (1, 2, 5, 6), 8, seed=1)))
        return [await first, await second, await swapping][:2]

    first, second = asyncio.run(episode())
    assert (first.policy_version, second.policy_version) == (0, 1)
    np.testing.assert_allclose([*first.logprobs, *second.logprobs], [-1 / 8, -2 / 8, -2 / 8])


def test_a_load_that_fails_lets_the_turns_that_wait_go_on():
    sampler = SwapsBetweenTurns(ScriptedSampler([[([5], "stop")]]))

    def load() -> None:
        raise ValueError("no such weights")

    async def episode() -> int:
        swapping = asyncio.create_task(sampler.swap(load))
        sample = await sampler.sample(SampleRequest(1, (1, 2), 8, seed=0))
        (failure,) = await asyncio.gather(swapping, return_exceptions=True)
        assert isinstance(failure, ValueError)
        return sample.policy_version

    assert asyncio.run(episode()) == 0


def test_a_sampler_that_is_not_ready_yet_can_be_taught_stopped_and_closed(tmp_path):
    actor = SamplerActor(Place(recipe_of({}), tmp_path, tmp_path, tmp_path))
    actor.teach([])
    asyncio.run(actor.stop())
    asyncio.run(actor.close())


def test_the_time_of_samplers_counts_once_and_only_within_the_period():
    pytest.importorskip("ray")
    from seekling.scale.roller import Period

    period = Period(0, started=10.0)
    period.work += [(1, 18.0, 19.0), (0, 8.0, 12.0), (0, 11.0, 13.0), (0, 11.5, 12.5), (1, 9.0, 9.5), (0, 19.0, 25.0)]
    assert period.busy_s(20.0) == 3 + 1 + 1
