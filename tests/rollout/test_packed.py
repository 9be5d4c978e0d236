"""Packed linear layers: the same sampler, with weights in another layout."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import nn

from seekling.models import load_policy
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.engine.packed import PackedLinear, can_pack, pack_linear_layers
from seekling.rollout.sampler import SampleRequest
from tests.learn.models import small_model

needs_packing = pytest.mark.skipif(
    not can_pack(small_model(dtype=torch.bfloat16)), reason="this CPU has no bfloat16 kernels to pack for"
)


@needs_packing
@pytest.mark.parametrize("rows", [1, 7, 200])
def test_a_packed_layer_computes_what_the_plain_one_does(rows):
    torch.manual_seed(0)
    for bias in (False, True):
        plain = nn.Linear(48, 33, bias=bias, dtype=torch.bfloat16)
        input = torch.randn(1, rows, 48).bfloat16()
        with torch.inference_mode():
            torch.testing.assert_close(PackedLinear(plain)(input), plain(input), atol=0.02, rtol=0.02)


@needs_packing
@pytest.mark.parametrize("tied", [True, False])
def test_every_linear_layer_is_packed_under_the_name_of_its_weight(tied):
    model = small_model(dtype=torch.bfloat16, tied=tied)
    names = {name for name, _ in model.named_parameters()}
    packed = pack_linear_layers(model)
    assert set(packed) | {name for name, _ in model.named_parameters()} == names
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert ("lm_head.weight" in packed) is not tied
    assert ("model.embed_tokens.weight" in packed) is tied


@needs_packing
def test_new_weights_reach_the_packed_layers_and_samples_are_those_of_the_plain_model(tiny_model_dir):
    model, tokenizer = load_policy(tiny_model_dir, dtype="bfloat16")
    other, _ = load_policy(tiny_model_dir, dtype="bfloat16")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    sampler = LocalSampler(model, tokenizer, in_flight=2, episode_tokens=64)
    sampler.load_weights(dict(other.named_parameters()), version=1)
    prompt = tuple(range(3, 40))
    sample = asyncio.run(sampler.sample(SampleRequest(1, prompt, max_new_tokens=8, seed=3)))
    ids = torch.tensor([[*prompt, *sample.token_ids]])
    with torch.inference_mode():
        logprobs = torch.log_softmax(other(ids, use_cache=False).logits[0].float(), -1)
    expected = logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=0.05, rtol=0.02)
