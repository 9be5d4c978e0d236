"""The in-process sampler against plain transformers: same tokens, same log-probabilities, whatever is shared."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from seekling.doctor.shape import read_model_shape
from seekling.env.protocol.stopping import StopRule
from seekling.errors import ConfigError, InfrastructureError
from seekling.models import load_policy
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from tests.rollout.policies import changed, encode, open_sampler, plain_logprobs, run, sample_all

TEXTS = [
    "Bergen has a harbour built in",
    "<think>I should look up Delft.</think>\n<search>",
    "Evora",
    "Answer the question. You may search as often as you want. Question: When was the harbour built? " * 2,
    "Cahors lost its walls in 1111. Fowey held its first fair in",
]


@pytest.fixture(scope="module")
def plain(tiny_model_dir):
    """Model with transformers' own attention, and tokenizer."""
    return load_policy(tiny_model_dir, dtype="float32")


@pytest.fixture(scope="module")
def prompts(plain):
    return [encode(plain[1], text) for text in TEXTS]


def generate(model, prompt, num_tokens):
    output = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=num_tokens,
    )
    return tuple(output[0, len(prompt) :].tolist())


def greedy(prompts, num_tokens=12, **settings):
    return [
        SampleRequest(number, prompt, num_tokens, temperature=0.0, **settings) for number, prompt in enumerate(prompts)
    ]


def drawn(prompts, num_tokens=12, **settings):
    return [
        SampleRequest(number, prompt, num_tokens, seed=100 + number, **settings)
        for number, prompt in enumerate(prompts)
    ]


def test_greedy_output_of_concurrent_prompts_is_that_of_transformers_generate(tiny_model_dir, plain, prompts):
    assert len({len(prompt) for prompt in prompts}) == len(prompts)
    samples = sample_all(open_sampler(tiny_model_dir), greedy(prompts, 20))
    assert [sample.token_ids for sample in samples] == [generate(plain[0], prompt, 20) for prompt in prompts]


def test_logprobs_are_those_of_a_plain_forward_pass_at_the_requests_temperature(tiny_model_dir, plain, prompts):
    requests = [
        replace(request, temperature=0.5 + 0.4 * number, top_p=1.0 - 0.1 * number)
        for number, request in enumerate(drawn(prompts))
    ]
    for request, sample in zip(requests, sample_all(open_sampler(tiny_model_dir), requests), strict=True):
        expected_TV = plain_logprobs(plain[0], [*request.prompt_ids, *sample.token_ids], request.temperature)
        start = len(request.prompt_ids) - 1
        expected = [float(expected_TV[start + n, token]) for n, token in enumerate(sample.token_ids)]
        np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)


def test_a_cache_kept_over_turns_gives_what_a_fresh_prefill_gives(tiny_model_dir, prompts):
    kept = open_sampler(tiny_model_dir)
    history, turns = prompts[0], []
    for number, observation in enumerate([prompts[4], prompts[1], prompts[2]]):
        request = SampleRequest(1, history, 6, seed=number)
        (sample,) = sample_all(kept, [request])
        turns.append((request, sample))
        history = (*history, *sample.token_ids, *observation)
    for request, sample in turns:
        fresh = open_sampler(tiny_model_dir)
        (again,) = sample_all(fresh, [request])
        assert again.token_ids == sample.token_ids
        np.testing.assert_allclose(again.logprobs, sample.logprobs, atol=1e-5)
        assert fresh.stats.prefilled_tokens == len(request.prompt_ids)
    # Each later turn prefills its observation and the one sampled token whose keys were never needed.
    observations = len(prompts[4]) + len(prompts[1])
    assert kept.stats.prefilled_tokens == len(prompts[0]) + observations + 2


def test_a_groups_prompt_is_prefilled_once(tiny_model_dir, prompts):
    sampler = open_sampler(tiny_model_dir)
    prompt = prompts[3]
    samples = sample_all(sampler, [SampleRequest(number, prompt, 5, seed=number) for number in range(6)])
    assert len({sample.token_ids for sample in samples}) > 1
    # Every sibling computes the prompt's last token itself: it needs the logits.
    assert sampler.stats.prefilled_tokens == len(prompt) + 5
    assert sampler.stats.reused_tokens == 5 * (len(prompt) - 1)
    alone = [sample_all(open_sampler(tiny_model_dir), [SampleRequest(0, prompt, 5, seed=n)])[0] for n in range(6)]
    assert [sample.token_ids for sample in alone] == [sample.token_ids for sample in samples]


def test_rows_that_read_a_siblings_prefix_see_their_own_tokens_whatever_becomes_of_the_siblings_slot(
    tiny_model_dir, plain
):
    sampler, random = open_sampler(tiny_model_dir, in_flight=3, episode_tokens=600), np.random.default_rng(0)
    size = plain[0].config.vocab_size
    shared = [random.integers(3, size, 400).tolist() for _ in range(2)]
    read = []

    def leaders(slots, found=sampler._slots.leaders):
        read.extend(length for slot, (leader, length) in zip(slots, found(slots), strict=True) if leader != slot)
        return found(slots)

    sampler._slots.leaders = leaders

    async def episode(number):
        tokens = [*shared[number % 2][: int(random.integers(100, 400))], *random.integers(3, size, 5).tolist()]
        for turn in range(1 + number % 3):
            request = SampleRequest(number, tuple(tokens), 6, seed=10 * number + turn)
            sample = await sampler.sample(request)
            expected_TV = plain_logprobs(plain[0], [*tokens, *sample.token_ids])
            expected = [float(expected_TV[len(tokens) - 1 + n, token]) for n, token in enumerate(sample.token_ids)]
            np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)
            tokens += [*sample.token_ids, *random.integers(3, size, int(random.integers(1, 40))).tolist()]
        sampler.close_session(number)

    async def all_episodes():
        await asyncio.gather(*map(episode, range(24)))

    asyncio.run(all_episodes())
    assert {64, 128, 192} <= set(read)


def test_siblings_with_the_same_observation_prefill_it_once(tiny_model_dir, prompts):
    sampler = open_sampler(tiny_model_dir)
    first = sample_all(sampler, [SampleRequest(n, prompts[0], 4, temperature=0.0) for n in range(3)])
    assert len({sample.token_ids for sample in first}) == 1
    before = sampler.stats.prefilled_tokens
    observation = prompts[3]
    assert len(observation) > 16
    prompt = (*prompts[0], *first[0].token_ids, *observation)
    sample_all(sampler, [SampleRequest(n, prompt, 4, temperature=0.0) for n in range(3)])
    assert sampler.stats.prefilled_tokens - before == (1 + len(observation)) + 1 + 1


@pytest.mark.parametrize("settings", [{"in_flight": 1}, {"in_flight": 2}, {"in_flight": 16}, {"prefill_tokens": 7}])
def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(tiny_model_dir, prompts, settings):
    requests = drawn(prompts)
    alone = [sample_all(open_sampler(tiny_model_dir), [request])[0].token_ids for request in requests]

    async def with_sessions_closed(sampler):
        async def one(request):
            sample = await sampler.sample(request)
            sampler.close_session(request.session)
            return sample.token_ids

        return await asyncio.gather(*(one(request) for request in reversed(requests)))

    sampler = open_sampler(tiny_model_dir, **settings)
    assert run(with_sessions_closed(sampler))[::-1] == alone


def test_temperature_top_p_min_p_and_seed_are_each_rows_own(tiny_model_dir, plain, prompts):
    prompt = prompts[0]
    requests = [
        SampleRequest(0, prompt, 8, temperature=0.0),
        SampleRequest(1, prompt, 8, temperature=5.0, seed=1),
        SampleRequest(2, prompt, 8, temperature=5.0, seed=2),
        SampleRequest(3, prompt, 8, temperature=5.0, seed=1),
        SampleRequest(4, prompt, 8, temperature=5.0, top_p=1e-6, seed=1),  # a nucleus of one token is greedy
        SampleRequest(5, prompt, 8, temperature=5.0, min_p=1.0, seed=1),  # nothing less likely than the best: greedy
    ]
    ids = [sample.token_ids for sample in sample_all(open_sampler(tiny_model_dir), requests)]
    assert ids[0] == ids[4] == ids[5] == generate(plain[0], prompt, 8)
    assert ids[1] == ids[3]
    assert len({ids[0], ids[1], ids[2]}) == 3


def test_a_stop_string_split_over_tokens_ends_the_turn_with_its_last_token(tiny_model_dir, plain, prompts):
    _, tokenizer = plain
    request = SampleRequest(0, prompts[1], 40, temperature=3.0, seed=7)
    (free,) = sample_all(open_sampler(tiny_model_dir), [request])
    texts = [tokenizer.decode(free.token_ids[: n + 1]) for n in range(40)]
    # Two whole tokens and the first character of a third: the end of the stop string is inside a token.
    stop = texts[12][len(texts[9]) : len(texts[11]) + 1]
    expected = next(n for n, text in enumerate(texts) if stop in text) + 1
    assert expected == 13
    (stopped,) = sample_all(open_sampler(tiny_model_dir), [replace(request, stops=StopRule(("</never>", stop)))])
    assert stopped.finish == "stop"
    assert stopped.token_ids == free.token_ids[:expected]
    assert stopped.logprobs == pytest.approx(free.logprobs[:expected], abs=1e-5)


def test_a_stop_string_in_the_prompt_stops_nothing(tiny_model_dir, prompts):
    (sample,) = sample_all(
        open_sampler(tiny_model_dir),
        [SampleRequest(0, prompts[1], 5, StopRule(("<search>", "earch>")), temperature=0.0)],
    )
    assert (len(sample.token_ids), sample.finish) == (5, "length")


def test_an_end_of_turn_token_of_the_generation_config_ends_the_turn_and_is_kept(tiny_model_dir, prompts):
    request = SampleRequest(0, prompts[0], 30, temperature=3.0, seed=3)
    (free,) = sample_all(open_sampler(tiny_model_dir), [request])
    end = free.token_ids[9]
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    (ended,) = sample_all(LocalSampler(model, tokenizer, in_flight=1, episode_tokens=256), [request])
    assert ended.finish == "eos"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(end) + 1]


def test_budgets_of_turn_and_episode_end_a_sample_as_length(tiny_model_dir, prompts):
    sampler = open_sampler(tiny_model_dir, episode_tokens=len(prompts[0]) + 3)
    turn, episode, full, none = sample_all(
        sampler,
        [
            SampleRequest(0, prompts[0], 2, temperature=0.0),
            SampleRequest(1, prompts[0], 50, temperature=0.0),
            SampleRequest(2, (*prompts[0], 5, 6, 7), 50),
            SampleRequest(3, prompts[0], 0),
        ],
    )
    assert [(len(s.token_ids), s.finish) for s in (turn, episode, full, none)] == [
        (2, "length"),
        (3, "length"),
        (0, "length"),
        (0, "length"),
    ]


def test_cache_bytes_bound_the_slots_and_too_few_for_one_are_refused(tiny_model_dir):
    slot_bytes = 2 * 2 * 2 * 64 * 16 * 4  # keys and values, layers, kv heads, tokens, head dimension, float32
    sampler = open_sampler(tiny_model_dir, in_flight=8, episode_tokens=64, cache_bytes=3 * slot_bytes + 1)
    assert sampler.num_slots == 3
    with pytest.raises(ConfigError, match=f"takes {slot_bytes} bytes; raise rollout.cache_bytes"):
        open_sampler(tiny_model_dir, episode_tokens=64, cache_bytes=slot_bytes - 1)


@pytest.mark.parametrize("episode_tokens", [100, 128, 129])
def test_the_memory_that_doctor_and_tune_reckon_with_holds_exactly_their_episodes(tiny_model_dir, episode_tokens):
    slot_bytes = 4 * read_model_shape(tiny_model_dir).slot_values(episode_tokens)
    for cache_bytes, expected in [(3 * slot_bytes, 3), (3 * slot_bytes - 1, 2)]:
        sampler = open_sampler(tiny_model_dir, in_flight=9, episode_tokens=episode_tokens, cache_bytes=cache_bytes)
        assert sampler.num_slots == expected


def test_new_weights_forget_every_cache(tiny_model_dir, prompts):
    weights = dict(changed(load_policy(tiny_model_dir, dtype="float32")[0]).named_parameters())
    used, fresh = open_sampler(tiny_model_dir), open_sampler(tiny_model_dir)
    before = sample_all(used, drawn(prompts))  # sessions stay open, so every slot still belongs to its episode
    prefilled = used.stats.prefilled_tokens
    for sampler in (used, fresh):
        sampler.load_weights(weights, version=4)
    after, expected = sample_all(used, drawn(prompts)), sample_all(fresh, drawn(prompts))
    assert after == expected
    assert [s.token_ids for s in after] != [s.token_ids for s in before]
    assert {s.policy_version for s in before} == {0}
    assert {s.policy_version for s in after} == {4}
    assert used.stats.prefilled_tokens - prefilled == sum(map(len, prompts))


@pytest.mark.parametrize("change", ["missing", "unknown", "another size"])
def test_weights_of_another_model_are_refused_by_name_and_leave_caches_and_drafts(tiny_model_dir, prompts, change):
    sampler, undisturbed = open_sampler(tiny_model_dir), open_sampler(tiny_model_dir)
    for each in (sampler, undisturbed):
        sample_all(each, greedy(prompts))
    weights = dict(changed(load_policy(tiny_model_dir, dtype="float32")[0]).named_parameters())
    if change == "missing":
        del weights["model.norm.weight"]
    elif change == "unknown":
        weights["model.layers.9.mlp.up_proj.weight"] = torch.zeros(1)
    else:
        weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    with pytest.raises(InfrastructureError, match=r"model\.norm\.weight|model\.layers\.9\.mlp"):
        sampler.load_weights(weights, version=1)
    assert sampler.policy_version == 0
    assert sample_all(sampler, greedy(prompts)) == sample_all(undisturbed, greedy(prompts))
    assert replace(sampler.stats, busy_s=0.0) == replace(undisturbed.stats, busy_s=0.0)


def test_a_failing_engine_ends_all_waiting_samples_as_infrastructure_failures(tiny_model_dir, prompts):
    sampler = open_sampler(tiny_model_dir, in_flight=2)
    requests = [*greedy(prompts), SampleRequest(99, (5, 100_000, 6), 4)]  # no such token

    async def outcomes():
        return await asyncio.gather(*(sampler.sample(request) for request in requests[::-1]), return_exceptions=True)

    failures = run(outcomes())
    assert {type(failure) for failure in failures} == {InfrastructureError}
    for number in range(100):
        sampler.close_session(number)
    fresh = open_sampler(tiny_model_dir)
    for sample, expected in zip(*(sample_all(each, greedy(prompts)[:2]) for each in (sampler, fresh)), strict=True):
        assert sample.token_ids == expected.token_ids
        np.testing.assert_allclose(sample.logprobs, expected.logprobs, atol=1e-5)


def test_what_recycled_memory_holds_beyond_an_episode_reaches_nobody(tiny_model_dir, prompts):
    """Decoding rows of different lengths read past the shorter ones, masked; NaN in there would pass any mask."""
    for _ in range(20):
        shape = (8, 2, 256, 16)  # of one layer's keys, so that the allocator hands this memory out again
        garbage = [torch.full(shape, float("nan")) for _ in range(4)]
        del garbage
        samples = sample_all(open_sampler(tiny_model_dir), greedy(prompts, 2))
        assert all(np.isfinite(sample.logprobs).all() for sample in samples)


def test_logits_that_are_not_finite_are_a_failure_not_a_token(tiny_model_dir, prompts):
    sampler = open_sampler(tiny_model_dir)
    weights = dict(changed(load_policy(tiny_model_dir, dtype="float32")[0]).named_parameters())
    with torch.no_grad():
        weights["model.norm.weight"][0] = float("nan")
    sampler.load_weights(weights, version=1)
    with pytest.raises(InfrastructureError, match="logits are not finite"):
        sample_all(sampler, greedy(prompts))
