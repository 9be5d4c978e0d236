"""Decode passes of a fixed shape: the same samples as rows that are packed anew each step, and idle slots unharmed."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from seekling.models import load_policy
from seekling.rollout.engine.graphs import DecodeGraphs, has_changing_frequencies
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import Sample, SampleRequest
from tests.rollout.policies import run


def open_double(folder, *, fixed: bool, episode_tokens: int = 100) -> LocalSampler:
    """On a CPU float64 takes the path of a GPU: caches in rows, torch's own kernels."""
    model, tokenizer = load_policy(folder, dtype="float32")
    sampler = LocalSampler(model.double(), tokenizer, in_flight=4, episode_tokens=episode_tokens, draft_tokens=0)
    assert sampler._cache.layout == "rows"
    if fixed:
        sampler._graphs = DecodeGraphs(
            sampler._decoder, sampler._cache, num_slots=sampler.num_slots, device=sampler.device
        )
    return sampler


async def episodes(sampler: LocalSampler, *, turns: int = 3) -> list[list[Sample]]:
    """Six episodes in four slots; between its turns an episode's cache lies idle while the others decode."""

    async def episode(number: int) -> list[Sample]:
        prompt = tuple(np.random.default_rng(number // 2).integers(3, 60, 5 + 9 * (number // 2)).tolist())
        found = []
        for turn in range(turns):
            request = SampleRequest(number, prompt, 4 + 3 * number, seed=10 * number + turn)
            found.append(await sampler.sample(request))
            for _ in range(7 * number):
                await asyncio.sleep(0)
            prompt = (*prompt, *found[-1].token_ids, 5, 6, 7)
        sampler.close_session(number)
        return found

    return list(await asyncio.gather(*(episode(number) for number in range(6))))


@pytest.mark.parametrize("longest", [256, 32])
def test_passes_over_all_slots_sample_what_packed_rows_sample(tiny_model_dir, monkeypatch, longest):
    monkeypatch.setattr("seekling.rollout.engine.graphs.LENGTH_STEP", longest)
    packed, fixed = (run(episodes(open_double(tiny_model_dir, fixed=fixed))) for fixed in (False, True))
    for expected, found in zip(packed, fixed, strict=True):
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_most_passes_have_the_fixed_shape(tiny_model_dir, monkeypatch):
    sampler, count = open_double(tiny_model_dir, fixed=True), 0
    inner = sampler._graphs.run

    def counted(*args, **settings):
        nonlocal count
        count += 1
        return inner(*args, **settings)

    monkeypatch.setattr(sampler._graphs, "run", counted)
    run(episodes(sampler, turns=1))
    assert count > sampler.stats.steps / 2


def test_a_slot_filled_to_its_end_is_unharmed_while_it_idles(tiny_model_dir):
    """64 tokens are a whole block: behind an episode that is as long there is no room for an idle slot's token."""

    async def turns(sampler: LocalSampler) -> list[Sample]:
        prompt = tuple(np.random.default_rng(3).integers(3, 60, 40).tolist())
        first = await sampler.sample(SampleRequest(1, prompt, 24, seed=1))
        other = await sampler.sample(SampleRequest(2, prompt[:20], 30, seed=2))
        again = await sampler.sample(SampleRequest(3, (*prompt, *first.token_ids[:-1]), 1, seed=3))
        return [first, other, again]

    packed, fixed = (run(turns(open_double(tiny_model_dir, fixed=each, episode_tokens=64))) for each in (False, True))
    assert len(packed[0].token_ids) == 24
    for expected, found in zip(packed, fixed, strict=True):
        assert found.token_ids == expected.token_ids
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-5)


def test_caches_that_are_not_finite_are_gone_after_a_release(tiny_model_dir):
    sampler = open_double(tiny_model_dir, fixed=False)
    sampler._cache._memory = None  # as on a GPU
    expected = run(episodes(sampler, turns=1))
    for each in (*sampler._cache.keys, *sampler._cache.values):
        each.fill_(float("nan"))
    sampler.release_caches()
    assert run(episodes(sampler, turns=1)) == expected


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(("rope", "expected"), [(None, False), (LLAMA3, False), (DYNAMIC, True)])
def test_frequencies_that_change_with_the_length_are_known(rope, expected):
    assert has_changing_frequencies(LlamaConfig(rope_parameters=rope)) is expected


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")


def open_on_gpu(folder, *, is_recorded: bool = True, **settings: int) -> LocalSampler:
    model, tokenizer = load_policy(folder, dtype="float32", device="cuda")
    sampler = LocalSampler(model, tokenizer, in_flight=4, episode_tokens=100, draft_tokens=0, **settings)
    assert sampler._graphs is not None
    if not is_recorded:
        sampler._graphs = None
    return sampler


def assert_same(found: list[list[Sample]], expected: list[list[Sample]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.token_ids for each in mine] == [each.token_ids for each in theirs]
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.gpu
@needs_gpu
def test_recorded_passes_sample_what_packed_rows_sample(tiny_model_dir):
    recorded, packed = (run(episodes(open_on_gpu(tiny_model_dir, is_recorded=each))) for each in (True, False))
    assert_same(recorded, packed)


@pytest.mark.gpu
@needs_gpu
def test_caches_and_what_was_recorded_over_them_go_while_others_learn(tiny_model_dir):
    sampler = open_on_gpu(tiny_model_dir)
    assert not sampler._cache.keys  # until somebody asks for a sample
    first = run(episodes(sampler))
    held = [weakref.ref(each) for each in (*sampler._cache.keys, *sampler._cache.values)]
    held += [weakref.ref(hidden_SD) for _, hidden_SD in sampler._graphs._recorded.values()]
    assert len(held) > 4
    weights = {name: each.detach().clone() for name, each in sampler._model.named_parameters()}
    sampler.release_caches()
    gc.collect()
    assert not any(each() is not None for each in held)
    assert_same(run(episodes(sampler)), first)
    # A recording reads the weights where they lie, so new ones must come there.
    sampler.load_weights({name: each + 0.02 for name, each in weights.items()}, version=1)
    other = run(episodes(sampler))
    fresh = open_on_gpu(tiny_model_dir, is_recorded=False)
    fresh.load_weights({name: each + 0.02 for name, each in weights.items()}, version=1)
    assert_same(other, run(episodes(fresh)))
