"""Guessing ahead: what the guesses are, when they pause, and that they never change what is sampled."""

from __future__ import annotations

import numpy as np
import pytest

from seekling.env.protocol.stopping import StopRule
from seekling.models import load_policy
from seekling.rollout.engine.draft import HISTORY_N, Draft, Drafter, ngrams_of
from seekling.rollout.sampler import SampleRequest
from seekling.types import Trajectory
from tests.rollout.policies import encode, open_sampler, sample_all


def context(*token_ids: int) -> np.ndarray:
    return np.asarray(token_ids, np.int64)


def test_the_context_is_looked_up_at_its_latest_match():
    drafter = Drafter(3)
    assert drafter.draft(context(5, 6, 7, 8, 9, 5, 6, 1, 2, 3, 5, 6), limit=9) == Draft((1, 2, 3), 0)
    assert drafter.draft(context(5, 6, 7, 8, 9), limit=9) == Draft()
    assert drafter.draft(context(5), limit=9) == Draft()


def test_what_was_sampled_before_comes_first_and_the_context_goes_on_from_there():
    drafter = Drafter(6)
    drafter.remember([1, 2, 3, 4, 5], 2)
    # (1, 2, 3) -> 4 and (2, 3, 4) -> 5 are remembered; (4, 5) stands earlier in the context, before 70 and 71.
    assert drafter.draft(context(4, 5, 70, 71, 1, 2, 3), limit=9) == Draft((4, 5, 70, 71, 1, 2), 2)


def test_what_was_taught_is_used_where_nothing_newer_is_known():
    taught = ngrams_of(
        [
            Trajectory(np.asarray([1, 2, 3, 4, 5, 6]), np.asarray([0, 0, 0, 1, 0, 1], bool), np.zeros(6, np.float32)),
            Trajectory(np.asarray([1, 7]), np.asarray([0, 1], bool), np.zeros(2, np.float32)),
        ]
    )
    assert taught == {(1, 2, 3): 4, (3, 4, 5): 6}
    drafter = Drafter(4, taught)
    assert drafter.draft(context(9, 1, 2, 3), limit=4) == Draft((4,), 1)
    drafter.remember([1, 2, 3, 8], 1)
    assert drafter.draft(context(9, 1, 2, 3), limit=4) == Draft((8,), 1)


@pytest.mark.parametrize(("limit", "expected"), [(4, (3, 4, 5, 6)), (2, (3, 4)), (0, ()), (-1, ())])
def test_a_draft_stays_within_its_limits(limit, expected):
    assert Drafter(4).draft(context(1, 2, 3, 4, 5, 6, 7, 1, 2), limit=limit).token_ids == expected


def test_a_source_that_guesses_badly_pauses_and_comes_back_when_it_pays():
    drafter, text = Drafter(1), context(1, 2, 3, 1, 2)
    for _ in range(100):
        drafter.judge(Draft((3,), 0), 0)
    asked = [bool(drafter.draft(text, limit=1).token_ids) for _ in range(160)]
    assert sum(asked) == 10  # a probe now and then
    for _ in range(100):
        drafter.judge(Draft((3,), 0), 1)
    assert all(drafter.draft(text, limit=1).token_ids for _ in range(20))


def test_a_wrong_token_of_the_history_is_not_held_against_the_lookup_behind_it():
    drafter, text = Drafter(2), context(1, 2, 3, 1, 2)
    for _ in range(200):
        drafter.judge(Draft((7, 8), 1), 0)
    assert drafter.draft(text, limit=2) == Draft((3, 1), 0)


REPETITIVE = [
    "Cahors lost its walls in 1111. Cahors lost its walls in 1111. Cahors lost",
    "Fowey, Evora, Delft; Fowey, Evora, Delft; Fowey",
    "Bergen has a harbour built in",
    "Cahors lost its walls in 1111. Fowey held its first fair in",
]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_drafts_change_no_token_and_no_logprob(tiny_model_dir, temperature):
    outputs, accepted = [], []
    for draft_tokens in (0, 1, 5):
        sampler = open_sampler(tiny_model_dir, draft_tokens=draft_tokens)
        texts = [encode(sampler._tokenizer, text) for text in REPETITIVE]
        requests = [
            SampleRequest(
                10 * number + index, text, 30 + index, temperature=temperature, seed=index, top_p=1 - 0.1 * index
            )
            for number, text in enumerate(texts)
            for index in range(2)
        ]
        samples = sample_all(sampler, requests)
        outputs.append(samples)
        accepted.append((sampler.stats.drafted_tokens, sampler.stats.accepted_tokens, sampler.stats.steps))
        told = sum(each.num_drafted for each in samples), sum(each.num_accepted for each in samples)
        assert told == accepted[-1][:2]
    for samples in outputs[1:]:
        assert [sample.token_ids for sample in samples] == [sample.token_ids for sample in outputs[0]]
        assert [sample.finish for sample in samples] == [sample.finish for sample in outputs[0]]
        for sample, plain in zip(samples, outputs[0], strict=True):
            np.testing.assert_allclose(sample.logprobs, plain.logprobs, atol=1e-5)
    assert accepted[0][:2] == (0, 0)
    if temperature == 0:
        # Left to itself a small random model soon repeats itself, which drafts foresee.
        assert 0 < accepted[1][1] <= accepted[1][0]
        assert accepted[2][1] > accepted[1][1]
        assert accepted[2][2] < accepted[1][2] < accepted[0][2]


def test_turns_after_a_draft_continue_from_the_right_cache(tiny_model_dir):
    """Keys of rejected guesses stay in the slot; nothing may ever read them."""
    drafting, plain = (open_sampler(tiny_model_dir, draft_tokens=n) for n in (6, 0))
    prompt = encode(plain._tokenizer, REPETITIVE[0])
    observation = encode(plain._tokenizer, "Delft has two canals.")
    for _ in range(4):
        request = SampleRequest(1, prompt, 30, temperature=0.0)
        (expected,) = sample_all(plain, [request])
        text = [*prompt, *expected.token_ids]
        for end in (len(prompt) + 5, len(prompt) + 12):
            drafting._drafter.remember([*text[end - HISTORY_N : end], text[end] + 1], 1)  # a lie
        (sample,) = sample_all(drafting, [request])
        assert sample.token_ids == expected.token_ids
        np.testing.assert_allclose(sample.logprobs, expected.logprobs, atol=1e-5)
        prompt = (*prompt, *sample.token_ids, *observation)
    assert drafting.stats.drafted_tokens > drafting.stats.accepted_tokens


def test_a_stop_string_inside_an_accepted_draft_ends_the_turn_there(tiny_model_dir):
    plain = open_sampler(tiny_model_dir, draft_tokens=0)
    prompt = encode(plain._tokenizer, REPETITIVE[0])
    (free,) = sample_all(plain, [SampleRequest(1, prompt, 40, temperature=0.0)])
    stop = plain._tokenizer.decode(list(free.token_ids[20:22]))
    request = SampleRequest(2, prompt, 40, temperature=0.0, stops=StopRule((stop,)))
    (expected,), (sample,) = sample_all(plain, [request]), sample_all(open_sampler(tiny_model_dir), [request])
    assert expected.finish == sample.finish == "stop"
    assert sample.token_ids == expected.token_ids


def test_new_weights_forget_what_was_remembered(tiny_model_dir):
    sampler = open_sampler(tiny_model_dir)
    prompt = encode(sampler._tokenizer, REPETITIVE[2])
    weights = dict(load_policy(tiny_model_dir, dtype="float32")[0].named_parameters())
    runs = []
    for _ in range(2):
        sampler.load_weights(weights, version=1)
        before = sampler.stats.drafted_tokens
        samples = sample_all(sampler, [SampleRequest(number, prompt, 30, seed=number) for number in range(3)])
        runs.append((samples, sampler.stats.drafted_tokens - before))
    assert runs[0] == runs[1]
    assert HISTORY_N == 3
