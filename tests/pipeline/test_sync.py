"""A sampler that is asked after every sync whether it has the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from seekling.errors import InfrastructureError
from seekling.learn.learner import Learner
from seekling.models import load_policy
from seekling.pipeline.sync import NUM_PROBES, CheckedSampler, scored_by
from tests.rollout.policies import encode, open_sampler


def changed(model):
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


@pytest.fixture
def learner(tiny_model_dir):
    """One whose weights are no longer those on disk."""
    return Learner(changed(load_policy(tiny_model_dir, dtype="float32")[0]))


@pytest.fixture
def prompt(tiny_model_dir):
    return encode(load_policy(tiny_model_dir, dtype="float32")[1], "Bergen has a harbour built in")


class Deaf:
    """Says that it has the weights."""

    def __init__(self, inner):
        self._inner = inner

    def load_weights(self, weights, version):
        pass

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_sampler_that_has_the_weights_passes_and_its_caches_are_given_back(tiny_model_dir, learner, prompt):
    inner = open_sampler(tiny_model_dir)
    checked = CheckedSampler(inner, learner.logprobs, prompt, limit=1e-4)
    checked.load_weights(learner.export_weights(), version=7)
    assert checked.policy_version == 7
    assert inner.stats.decoded_tokens >= NUM_PROBES
    assert [slot.length for slot in inner._slots] == [0] * inner.num_slots


def test_a_sampler_that_kept_the_old_weights_is_stopped_unless_there_is_no_limit(tiny_model_dir, learner, prompt):
    deaf = Deaf(open_sampler(tiny_model_dir))
    with pytest.raises(InfrastructureError, match=r"weights of version 7: .* stale or damaged.*rl\.loss\.drift_limit"):
        CheckedSampler(deaf, learner.logprobs, prompt, limit=0.2).load_weights(learner.export_weights(), version=7)
    CheckedSampler(deaf, learner.logprobs, prompt, limit=0.0).load_weights(learner.export_weights(), version=7)


class Untempered:
    """Draws, and records, at temperature 1 whatever it is asked for."""

    def __init__(self, inner):
        self._inner = inner

    async def sample(self, request):
        return await self._inner.sample(replace(request, temperature=1.0))

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_sampler_that_records_another_temperature_is_stopped(tiny_model_dir, learner, prompt):
    checked = CheckedSampler(Untempered(open_sampler(tiny_model_dir)), learner.logprobs, prompt, limit=0.01)
    with pytest.raises(InfrastructureError, match="weights of version 7"):
        checked.load_weights(learner.export_weights(), version=7)


def test_a_model_without_a_learner_scores_as_the_learner_does(tiny_model_dir, prompt):
    model = changed(load_policy(tiny_model_dir, dtype="float32")[0])
    inner = open_sampler(tiny_model_dir)
    CheckedSampler(inner, scored_by(model), prompt, limit=1e-4).load_weights(dict(model.named_parameters()), version=1)
    with pytest.raises(InfrastructureError, match="weights of version 2"):
        CheckedSampler(Deaf(open_sampler(tiny_model_dir)), scored_by(model), prompt, limit=0.2).load_weights({}, 2)
