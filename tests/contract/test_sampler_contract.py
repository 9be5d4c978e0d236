"""What every sampler promises, wherever its weights are."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from seekling.errors import InfrastructureError
from seekling.models import load_policy
from seekling.rollout.sampler import SampleRequest
from tests.learn.models import trajectory
from tests.rollout.policies import ScriptedSampler, encode, open_sampler, run, sample_all
from tests.rollout.vllm_models import skip_without_vllm, wide_model

SETTINGS = {"in_flight": 3, "episode_tokens": 256}


def open_vllm(folder):
    skip_without_vllm()
    from seekling.rollout.vllm_sampler import VllmSampler

    return VllmSampler(folder, *load_policy(folder, dtype="float32"), cache_bytes=64 * 1024**2, **SETTINGS)


@pytest.fixture(scope="module", params=["engine", "vllm", "scripted"])
def shared(request, tiny_model_dir, tokenizer, tmp_path_factory):
    if request.param == "scripted":
        script = [(encode(tokenizer, "<search> Bergen harbour </search>"), "stop")] * 99
        sampler = ScriptedSampler([script], num_slots=3, keeps_budgets=True)
    elif request.param == "vllm":
        sampler = open_vllm(wide_model(tiny_model_dir, tmp_path_factory.mktemp("model") / "wide"))
    else:
        sampler = open_sampler(tiny_model_dir, **SETTINGS)
    yield sampler
    sampler.close()


@pytest.fixture
def sampler(shared):
    shared.release_caches()
    return shared


@pytest.fixture
def prompt(tokenizer):
    return encode(tokenizer, "Bergen has a harbour built in")


def test_it_says_what_it_is(sampler):
    assert (sampler.num_slots, sampler.dtype, sampler.policy_version) == (3, "torch.float32", 0)


@pytest.mark.parametrize("budget", [1, 6, 40])
def test_a_sample_has_a_logprob_for_each_id_and_keeps_to_its_budget(sampler, prompt, budget):
    (sample,) = sample_all(sampler, [SampleRequest(1, prompt, budget, temperature=0.8, seed=4)])
    sampler.close_session(1)
    assert 1 <= len(sample.token_ids) == len(sample.logprobs) <= budget
    assert max(sample.logprobs) <= 0
    assert sample.finish in ("stop", "eos", "length")
    assert sample.finish != "length" or len(sample.token_ids) == budget
    assert sample.policy_version == sampler.policy_version


def test_a_prompt_without_room_for_a_token_gets_an_empty_sample(sampler, prompt):
    (sample,) = sample_all(sampler, [SampleRequest(1, prompt, 0)])
    assert (sample.token_ids, sample.logprobs, sample.finish) == ((), (), "length")


def test_the_same_request_gives_the_same_sample_in_any_session_also_after_caches_are_gone(sampler, prompt):
    first = SampleRequest(1, prompt, 8, seed=3)
    found = []
    for session in (1, 2):
        found += sample_all(sampler, [replace(first, session=session)])
        sampler.close_session(session)
        sampler.release_caches()
    assert found[0].token_ids == found[1].token_ids
    np.testing.assert_allclose(found[0].logprobs, found[1].logprobs, atol=1e-5)


def test_more_episodes_than_slots_wait_for_each_other_and_turns_go_on_from_what_was_sampled(sampler, prompt):
    async def episode(number):
        request = SampleRequest(number, prompt, 5, seed=number)
        for _ in range(2):
            sample = await sampler.sample(request)
            request = replace(request, prompt_ids=(*request.prompt_ids, *sample.token_ids, *prompt))
        sampler.close_session(number)
        return sample

    async def all_episodes():
        return await asyncio.gather(*map(episode, range(1, 8)))

    assert all(sample.token_ids for sample in run(all_episodes()))


def test_a_session_that_nobody_knows_is_closed_without_a_word(sampler):
    sampler.close_session(12345)


def test_caches_are_not_given_back_while_samples_run_but_after_a_rollout_that_was_given_up(sampler, prompt):
    async def too_early():
        running = asyncio.create_task(sampler.sample(SampleRequest(1, prompt, 20)))
        await asyncio.sleep(0)
        with pytest.raises(InfrastructureError, match="samples are still running"):
            sampler.release_caches()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(too_early())
    sampler.close_session(1)
    sampler.release_caches()


def test_what_it_is_taught_to_guess_changes_no_sample(sampler, prompt):
    request = SampleRequest(1, prompt, 12, temperature=0.0)
    (before,) = sample_all(sampler, [request])
    sampler.close_session(1)
    ids = [*prompt, *before.token_ids[:3], *prompt]
    sampler.teach_drafts([trajectory(ids, [1] * len(ids))])
    (after,) = sample_all(sampler, [replace(request, session=2)])
    sampler.close_session(2)
    sampler.teach_drafts([])
    assert after.token_ids == before.token_ids
