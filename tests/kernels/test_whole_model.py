"""Sampler and learner of a bfloat16 model with heads wide enough for tiles, against float32 of the same weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import cross_entropy
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from seekling.types import Trajectory
from tests.rollout.policies import plain_logprobs, run

NUM_EPISODES, NUM_TURNS = 8, 3
BOUND = 0.12
"""Nats. 8 bits of mantissa through two layers; logits are of size 4."""


def wide_model(dtype: torch.dtype, head_dim: int) -> LlamaForCausalLM:
    """The same bfloat16 numbers whatever the type; 6 heads on 2 of keys and values."""
    config = LlamaConfig(
        vocab_size=600, hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=4096, initializer_range=0.1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).bfloat16().to(dtype).eval()


def temperature_of(number: int) -> float:
    """A cold policy repeats itself, which drafts foresee; of a warm one they are rejected."""
    return 0.2 if number < 4 else 1.0


def play(sampler: LocalSampler) -> list[tuple[list[int], list[bool], list[float]]]:
    """Episodes in two groups, more than there are slots: drafts, common prompts, observations of odd lengths."""
    random = np.random.default_rng(0)
    prompts = [np.tile(random.integers(3, 600, length), 3).tolist() for length in (31, 70)]
    observations = random.integers(3, 600, (NUM_TURNS, 90))

    async def episode(number: int) -> tuple[list[int], list[bool], list[float]]:
        token_ids, logprobs = list(prompts[number % 2]), [0.0] * len(prompts[number % 2])
        is_sampled = [False] * len(token_ids)
        for turn in range(NUM_TURNS):
            drawn = await sampler.sample(
                SampleRequest(number, tuple(token_ids), 21, temperature=temperature_of(number), seed=97 * number + turn)
            )
            seen = observations[turn, : 17 + 13 * (number % 3)].tolist()
            token_ids += [*drawn.token_ids, *seen]
            logprobs += [*drawn.logprobs, *[0.0] * len(seen)]
            is_sampled += [True] * len(drawn.token_ids) + [False] * len(seen)
        sampler.close_session(number)
        return token_ids, is_sampled, logprobs

    async def together() -> list[tuple[list[int], list[bool], list[float]]]:
        return list(await asyncio.gather(*map(episode, range(NUM_EPISODES))))

    return run(together())


@pytest.mark.parametrize("head_dim", [64, *(pytest.param(each, marks=pytest.mark.long) for each in (128, 192))])
def test_sampler_and_learner_both_give_the_log_probabilities_of_exact_arithmetic(tiny_model_dir, kernels, head_dim):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    sampler = LocalSampler(
        wide_model(torch.bfloat16, head_dim), tokenizer, in_flight=5, episode_tokens=512, draft_tokens=4
    )
    assert sampler._cache.layout == {"reference": "rows", "vector": "blocks", "amx": "pairs"}[kernels]
    episodes, exact = play(sampler), wide_model(torch.float32, head_dim)
    assert 0 < sampler.stats.accepted_tokens < sampler.stats.drafted_tokens
    trajectories, expected = [], []
    for number, (token_ids, is_sampled, logprobs) in enumerate(episodes):
        mask_T, temperature = np.asarray(is_sampled), temperature_of(number)
        tempered_TV = (plain_logprobs(exact, token_ids)[:-1] / temperature).log_softmax(-1)
        expected_T = tempered_TV.gather(1, torch.tensor(token_ids)[1:, None])[:, 0].numpy()
        expected.append(expected_T[mask_T[1:]])
        np.testing.assert_allclose(np.asarray(logprobs)[mask_T], expected[-1], atol=BOUND / temperature)
        logprobs_T = np.asarray(logprobs, np.float32)
        trajectories.append(Trajectory(np.asarray(token_ids), mask_T, logprobs_T, temperature=temperature))
    learners = [LocalLearner(wide_model(dtype, head_dim), row_tokens=1024) for dtype in (torch.bfloat16, torch.float32)]
    for each, found_T, expected_A in zip(trajectories, learners[0].logprobs(trajectories), expected, strict=True):
        np.testing.assert_allclose(found_T[each.train_mask_T], expected_A, atol=BOUND / each.temperature)
    batch = Batch([replace(each, temperature=1.0) for each in trajectories], np.linspace(-1, 1, NUM_EPISODES))
    for learner in learners:
        learner.forward_backward(batch, cross_entropy)
    gradients = [torch.cat([each.grad.float().flatten() for each in learner._masters.values()]) for learner in learners]
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 0.03
