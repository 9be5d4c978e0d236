"""The same code on an NVIDIA GPU: its numbers are the processor's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import clipped_policy_loss
from seekling.models import load_policy
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from seekling.types import Trajectory
from tests.kernels import test_strands
from tests.learn.models import assert_close_gradients, gradients, group, small_model
from tests.rollout.policies import sample_all

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("row_tokens", [64, 4096])
def test_gradients_and_reference_are_those_of_the_processor(lora_rank, row_tokens):
    found = []
    for device in ("cpu", "cuda"):
        model = copy.deepcopy(small_model()).to(device)
        learner = LocalLearner(model, lora_rank=lora_rank, row_tokens=row_tokens)
        with torch.no_grad():
            for name, each in model.named_parameters():
                if "lora_B" in name:  # 0 at first, and then nothing reaches the other half
                    each.copy_(torch.linspace(-0.1, 0.1, each.numel()).view_as(each))
        learner.keep_reference()
        trajectories = [*group(0), *group(1)]
        learner.forward_backward(Batch(trajectories, np.linspace(-1, 2, len(trajectories))), clipped_policy_loss)
        own = {name: each.cpu() for name, each in gradients(model).items()}
        found.append((own, learner.logprobs(trajectories), learner.reference_logprobs(trajectories)))
        assert learner.optim_step(1e-4) > 0
    assert_close_gradients(found[1][0], found[0][0], relative=1e-3)
    for kind in (1, 2):
        for mine, theirs in zip(found[1][kind], found[0][kind], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("depth", [8, 64])
def test_attention_and_its_gradients_are_those_of_each_path_alone(dtype, bound, heads, kv_heads, depth):
    test_strands.compare(dtype, bound, heads, kv_heads, depth, device="cuda")


@pytest.mark.parametrize(("dtype", "mean", "most"), [("float32", 1e-5, 1e-4), ("bfloat16", 0.05, 0.5)])
def test_the_learner_finds_the_log_probabilities_that_the_sampler_recorded(tiny_model_dir, dtype, mean, most):
    model, tokenizer = load_policy(tiny_model_dir, dtype=dtype, device="cuda")
    sampler = LocalSampler(model, tokenizer, in_flight=8, episode_tokens=512)
    learner = LocalLearner(load_policy(tiny_model_dir, dtype=dtype, device="cuda")[0], row_tokens=1024)
    prompts = [tuple(np.random.default_rng(n // 4).integers(3, 60, 200).tolist()) for n in range(8)]
    requests = [SampleRequest(n, prompt, 100, seed=n) for n, prompt in enumerate(prompts)]
    trajectories, recorded = [], []
    for prompt, sample in zip(prompts, sample_all(sampler, requests), strict=True):
        ids = np.asarray([*prompt, *sample.token_ids], np.int64)
        is_action = np.arange(len(ids)) >= len(prompt)
        trajectories.append(Trajectory(ids, is_action, np.zeros(len(ids), np.float32)))
        recorded.append(sample.logprobs)
    found = [each[-len(own) :] for each, own in zip(learner.logprobs(trajectories), recorded, strict=True)]
    difference = np.abs(np.concatenate(found) - np.concatenate(recorded))
    assert difference.mean() < mean
    assert difference.max() < most
