"""A sampler that is asked after every sync whether it has the weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from seekling.errors import InfrastructureError
from seekling.learn.local import LocalLearner
from seekling.models import load_model, load_policy
from seekling.pipeline.sync import NUM_PROBES, CheckedSync, InMemorySync
from seekling.rollout.engine.local import LocalSampler
from tests.rollout.policies import encode, open_sampler

LOAD = partial(load_model, dtype="float32")


def changed(model):
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


@pytest.fixture
def learner(tiny_model_dir):
    """One whose weights are no longer those on disk."""
    return LocalLearner(changed(LOAD(tiny_model_dir)))


@pytest.fixture
def checked(tiny_model_dir):
    prompt = encode(load_policy(tiny_model_dir, dtype="float32")[1], "Bergen has a harbour built in")
    return lambda inner, limit, load=LOAD: CheckedSync(inner, load, prompt, limit=limit)


class Deaf(InMemorySync):
    """Says that the sampler has the weights."""

    def publish(self, learner, sampler, version):
        pass

    def publish_exported(self, folder, sampler, version):
        pass


def test_a_sampler_that_has_the_weights_passes_and_its_caches_are_given_back(tiny_model_dir, learner, checked):
    sampler = open_sampler(tiny_model_dir)
    checked(InMemorySync(LOAD), 1e-4).publish(learner, sampler, version=7)
    assert sampler.policy_version == 7
    assert sampler.stats.decoded_tokens >= NUM_PROBES
    assert not sampler._cache.keys[0].any()


def test_a_sampler_that_kept_the_old_weights_is_stopped_unless_there_is_no_limit(tiny_model_dir, learner, checked):
    sampler = open_sampler(tiny_model_dir)
    with pytest.raises(InfrastructureError, match=r"weights of version 7: .* stale or damaged.*rl\.loss\.drift_limit"):
        checked(Deaf(LOAD), 0.2).publish(learner, sampler, version=7)
    with pytest.raises(InfrastructureError, match="weights of version 2"):
        checked(Deaf(LOAD), 0.2, load=lambda folder: changed(LOAD(folder))).publish_exported(tiny_model_dir, sampler, 2)
    checked(Deaf(LOAD), 0.0).publish(learner, sampler, version=7)


class Untempered(LocalSampler):
    """Draws, and records, at temperature 1 whatever it is asked for."""

    async def sample(self, request):
        return await super().sample(replace(request, temperature=1.0))


def test_a_sampler_that_records_another_temperature_is_stopped(tiny_model_dir, learner, checked):
    sampler = Untempered(*load_policy(tiny_model_dir, dtype="float32"), in_flight=8, episode_tokens=256)
    with pytest.raises(InfrastructureError, match="weights of version 7"):
        checked(InMemorySync(LOAD), 0.01).publish(learner, sampler, version=7)
