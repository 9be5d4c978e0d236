"""vLLM behind the seam: the engine's greedy tokens, the learner's log-probabilities, and new weights that are new.

These run where vLLM is installed, as in an environment of its own; elsewhere all but the last two skip.
"""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from seekling.config import Recipe
from seekling.env.protocol.stopping import StopRule
from seekling.errors import ConfigError, InfrastructureError, MissingExtraError
from seekling.models import load_model, load_policy
from seekling.rollout.sampler import SampleRequest, takes_vllm
from tests.env.fakes import make_env
from tests.pipeline.test_sync import StaleSync, rl_steps
from tests.rollout.memory import memorised, prompt_of
from tests.rollout.policies import changed, encode, open_sampler, plain_logprobs, run, sample_all
from tests.rollout.test_engine import TEXTS, drawn, greedy
from tests.rollout.vllm_models import HAS_VLLM, skip_without_vllm, wide_model
from tests.settings import recipe_of

pytestmark = pytest.mark.filterwarnings("default")  # vLLM warns of what is not ours to change

EPISODE_TOKENS = 256


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir, tmp_path_factory):
    return wide_model(tiny_model_dir, tmp_path_factory.mktemp("model") / "wide")


def open_vllm(folder, **settings):
    skip_without_vllm()
    from seekling.rollout.vllm_sampler import VllmSampler

    model, tokenizer = load_policy(folder, dtype="float32")
    given = {"in_flight": 8, "episode_tokens": EPISODE_TOKENS, "cache_bytes": 64 * 1024**2} | settings
    return VllmSampler(folder, model, tokenizer, **given)


@pytest.fixture(scope="module")
def shared(model_dir):
    sampler = open_vllm(model_dir)
    yield sampler
    sampler.close()


@pytest.fixture
def sampler(shared, model_dir):
    """The one engine of this file, with the weights that are on disk."""
    shared.load_weights(dict(load_policy(model_dir, dtype="float32")[0].named_parameters()), version=0)
    return shared


@pytest.fixture(scope="module")
def plain(model_dir):
    return load_policy(model_dir, dtype="float32")


@pytest.fixture(scope="module")
def prompts(plain):
    return [encode(plain[1], text) for text in TEXTS]


def assert_same(samples, expected):
    assert [sample.token_ids for sample in samples] == [sample.token_ids for sample in expected]
    assert [sample.finish for sample in samples] == [sample.finish for sample in expected]
    for one, other in zip(samples, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_greedy_tokens_and_their_logprobs_are_the_engines(sampler, model_dir, prompts):
    assert_same(sample_all(sampler, greedy(prompts)), sample_all(open_sampler(model_dir), greedy(prompts)))


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_logprobs_are_those_of_the_requests_temperature_and_of_what_a_truncation_leaves(sampler, plain, prompts, top_p):
    requests = [
        replace(request, temperature=0.5 + 0.3 * number, top_p=top_p) for number, request in enumerate(drawn(prompts))
    ]
    for request, sample in zip(requests, sample_all(sampler, requests), strict=True):
        expected_TV = plain_logprobs(plain[0], [*request.prompt_ids, *sample.token_ids], request.temperature)
        start = len(request.prompt_ids) - 1
        expected = np.asarray([float(expected_TV[start + n, token]) for n, token in enumerate(sample.token_ids)])
        if top_p == 1:
            np.testing.assert_allclose(sample.logprobs, expected, atol=1e-4)
        else:  # of a share of at least top_p, renormalised
            assert (np.asarray(sample.logprobs) >= expected - 1e-4).all()
            assert (np.asarray(sample.logprobs) <= expected - np.log(top_p) + 1e-4).all()


def test_turns_go_on_from_the_ids_that_were_sampled(sampler, model_dir, prompts):
    engine, history = open_sampler(model_dir), prompts[0]
    for observation in (prompts[4], prompts[1]):
        request = SampleRequest(1, history, 6, temperature=0.0)
        assert_same(sample_all(sampler, [request]), found := sample_all(engine, [request]))
        history = (*history, *found[0].token_ids, *observation)


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(sampler, prompts):
    requests = drawn(prompts)
    together = [sample.token_ids for sample in sample_all(sampler, requests)]
    assert [sample_all(sampler, [request])[0].token_ids for request in requests] == together
    other = sample_all(sampler, [replace(request, seed=request.seed + 1) for request in requests])
    assert [sample.token_ids for sample in other] != together


def test_a_stop_string_ends_the_turn_with_the_token_that_completes_it(sampler, plain, prompts):
    request = SampleRequest(0, prompts[1], 40, temperature=2.0, seed=8)
    (free,) = sample_all(sampler, [request])
    texts = [plain[1].decode(free.token_ids[: n + 1]) for n in range(40)]
    stop = next(
        found
        for n in range(9, 30)
        if (found := texts[n + 2][len(texts[n]) : len(texts[n + 1]) + 1]).isascii() and len(found) > 2
    )
    expected = next(n for n, text in enumerate(texts) if stop in text) + 1
    assert expected < 40
    (stopped,) = sample_all(sampler, [replace(request, stops=StopRule(("</never>", stop)))])
    assert (stopped.finish, stopped.token_ids) == ("stop", free.token_ids[:expected])
    assert stopped.logprobs == pytest.approx(free.logprobs[:expected], abs=1e-4)
    # One in the prompt stops nothing.
    (other,) = sample_all(sampler, [SampleRequest(0, prompts[1], 5, StopRule(("<search>",)), temperature=0.0)])
    assert (len(other.token_ids), other.finish) == (5, "length")


def test_a_quoted_action_ends_no_turn_and_a_thought_has_its_cap_as_in_the_engine(model_dir, tmp_path):
    folder = memorised(
        model_dir, tmp_path / "model", "<think>I may write <search>and</search>.</think>\n<search>Fowey</search>so"
    )
    vllm, engine = open_vllm(folder, episode_tokens=512), open_sampler(folder, episode_tokens=512)
    tokenizer = load_policy(folder, dtype="float32")[1]
    request = SampleRequest(1, prompt_of(tokenizer), 60, make_env().protocol.stops, temperature=0.0)
    requests = [request, *(replace(request, session=2 + cap, thought_tokens=cap) for cap in (1, 7, 99))]
    requests.append(replace(request, session=200, stops=StopRule(("</search>",))))
    try:
        found = sample_all(vllm, requests)
    finally:
        vllm.close()
    expected = sample_all(engine, requests)
    assert [(each.token_ids, each.finish) for each in found] == [(each.token_ids, each.finish) for each in expected]
    assert [each.finish for each in found] == ["stop", "length", "length", "stop", "stop"]
    assert tokenizer.decode(found[0].token_ids).endswith("</think>\n<search>Fowey</search>")
    assert tokenizer.decode(found[-1].token_ids).endswith("<search>and</search>")


def test_the_end_of_turn_token_is_kept_and_said(sampler, plain, prompts):
    end = plain[1].eos_token_id
    requests = [SampleRequest(n, prompts[0], 200, temperature=2.0, seed=n) for n in range(16)]
    ended = [sample for sample in sample_all(sampler, requests) if sample.finish == "eos"]
    assert ended
    assert all(sample.token_ids.index(end) == len(sample.token_ids) - 1 for sample in ended)
    assert all(len(sample.logprobs) == len(sample.token_ids) for sample in ended)


def test_after_an_update_greedy_tokens_are_those_of_the_new_weights(sampler, model_dir, prompts):
    engine = open_sampler(model_dir)
    before = sample_all(sampler, greedy(prompts))
    for version, scale in ((4, 0.05), (5, 0.1)):
        weights = dict(changed(load_model(model_dir, dtype="float32"), scale).named_parameters())
        sampler.load_weights(weights, version)
        engine.load_weights(weights, version)
        for tensor in weights.values():
            tensor.detach().zero_()  # what the learner does with them afterwards is its own business
        after = sample_all(sampler, greedy(prompts))
        assert_same(after, sample_all(engine, greedy(prompts)))
        assert [each.token_ids for each in after] != [each.token_ids for each in before]
        assert {each.policy_version for each in after} == {version}


def test_no_prefix_of_older_weights_is_read_even_if_vllm_kept_it(sampler, model_dir, prompts, monkeypatch):
    monkeypatch.setattr(sampler._llm, "reset_prefix_cache", lambda: None)
    long = [prompts[3] * 3]  # several blocks of the cache
    sample_all(sampler, greedy(long))
    model = changed(load_model(model_dir, dtype="float32"))
    sampler.load_weights(dict(model.named_parameters()), version=0)  # not even the number of the version is new
    (sample,) = sample_all(sampler, greedy(long))
    expected_TV = plain_logprobs(model, [*long[0], *sample.token_ids])[len(long[0]) - 1 : -1]
    assert sample.token_ids == tuple(expected_TV.argmax(-1).tolist())
    np.testing.assert_allclose(sample.logprobs, expected_TV.max(-1).values, atol=1e-4)


def test_weights_are_refused_while_samples_run_and_taken_after_a_rollout_that_was_given_up(sampler, model_dir, prompts):
    weights = dict(changed(load_model(model_dir, dtype="float32")).named_parameters())

    async def load_too_early():
        running = asyncio.create_task(sampler.sample(greedy(prompts)[0]))
        await asyncio.sleep(0)
        with pytest.raises(InfrastructureError, match="samples are still running"):
            sampler.load_weights(weights, version=1)
        return await running

    async def give_up():
        await asyncio.wait_for(sampler.sample(replace(greedy(prompts)[0], max_new_tokens=200)), timeout=0.01)

    assert len(run(load_too_early()).token_ids) == 12
    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    sampler.load_weights(weights, version=1)
    assert sampler.policy_version == 1


def test_what_vllm_would_draw_otherwise_is_refused(sampler, prompts):
    with pytest.raises(ConfigError, match=r"top_p = 0\.9 to what min_p = 0\.1 has left"):
        sample_all(sampler, [SampleRequest(0, prompts[0], 4, top_p=0.9, min_p=0.1)])


def test_rl_steps_with_vllm_agree_with_the_learner_to_rounding(sampler, model_dir, tmp_path):
    passed = rl_steps(model_dir, tmp_path, Recipe(), sampler=sampler, limit=0.01)
    learned = [metrics for metrics in passed if "logprob_drift" in metrics]
    assert len(learned) >= 3
    assert all(metrics["logprob_drift"] <= metrics["logprob_drift_max"] < 1e-4 for metrics in learned)


def test_a_sync_that_was_skipped_stops_the_run_before_anything_is_sampled_with_it(sampler, model_dir, tmp_path):
    with pytest.raises(InfrastructureError, match=r"weights of version [23]: .* stale or damaged"):
        rl_steps(model_dir, tmp_path, Recipe(), sync=StaleSync, sampler=sampler, limit=0.01)


def test_where_vllm_is_missing_the_message_says_what_to_install(model_dir):
    if HAS_VLLM:
        pytest.skip("vLLM is installed")
    from seekling.rollout.vllm_sampler import VllmSampler

    with pytest.raises(MissingExtraError, match=r"seekling\[vllm\]"):
        VllmSampler(model_dir, *load_policy(model_dir, dtype="float32"))


def test_recipes_that_vllm_would_follow_otherwise_are_refused():
    for section, values, word in (
        ("rollout", {"draft_tokens": 2}, "draft_tokens = 2 has no effect"),
        ("rollout", {"top_p": 0.9, "min_p": 0.1}, "rollout.top_p and rollout.min_p"),
        ("eval", {"top_p": 0.9, "min_p": 0.1}, "eval.rollout.top_p and eval.rollout.min_p"),
    ):
        raw = {section: values, "rl": {"steps": 0}}
        recipe_of(raw)
        raw["rollout"] = {"sampler": "vllm"} | raw.get("rollout", {})
        with pytest.raises(ConfigError, match=word):
            recipe_of(raw)
    assert recipe_of({"rollout": {"sampler": "vllm", "draft_tokens": 4}}).rollout.sampler == "vllm"


@pytest.mark.parametrize("settings", [{}, {"draft_tokens": 2}])
@pytest.mark.parametrize(("has_gpu", "has_vllm"), [(True, True), (True, False), (False, True)])
def test_without_a_choice_vllm_samples_where_there_are_a_gpu_and_vllm_that_can(
    has_gpu, has_vllm, settings, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if has_vllm else None)
    recipe = recipe_of({"rollout": settings, "rl": {"steps": 0}})
    assert takes_vllm(recipe) == (has_gpu and has_vllm and not settings)
    for name in ("engine", "vllm"):
        named = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"sampler": name})})
        assert takes_vllm(named) == (name == "vllm")
