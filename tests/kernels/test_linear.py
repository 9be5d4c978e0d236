"""Packed linear layers: the same sampler, with weights in another layout."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from seekling.kernels.linear import PackedLinear, can_pack, pack_linear_layers
from seekling.models import load_policy
from seekling.rollout.engine.layers import fuse_layers
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from tests.learn.models import small_model

needs_packing = pytest.mark.skipif(
    not can_pack(torch.bfloat16, torch.device("cpu")), reason="this CPU has no bfloat16 kernels to pack for"
)
TYPES = [pytest.param(torch.bfloat16, marks=needs_packing), torch.float32]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 7, 200])
def test_a_packed_layer_computes_what_the_plain_one_does(rows, dtype):
    torch.manual_seed(0)
    rounding = 0.01 if dtype == torch.bfloat16 else 1e-6
    for bias in (False, True):
        plain = nn.Linear(48, 33, bias=bias, dtype=dtype)
        input = torch.randn(1, rows, 48).to(dtype)
        with torch.inference_mode():
            biases = {"bias": plain.bias} if bias else {}
            layer = PackedLinear({"weight": plain.weight}, biases, dtype=dtype)
            twice = layer.add_to(layer(input), input)
            torch.testing.assert_close(layer(input), plain(input), atol=2 * rounding, rtol=2 * rounding)
            torch.testing.assert_close(twice, 2 * plain(input), atol=4 * rounding, rtol=2 * rounding)


def test_packed_float32_weights_do_not_follow_the_tensors_that_they_were_made_of():
    for shape in ((33, 48), (64, 64), (1, 16), (16, 1)):
        weight = torch.randn(shape)
        layer, input = PackedLinear({"weight": weight}, {}, dtype=torch.float32), torch.randn(3, shape[1])
        with torch.inference_mode():
            before = layer(input)
            weight.zero_()
            assert torch.equal(layer(input), before)


def names_of(model):
    return {id(parameter): name for name, parameter in model.named_parameters()}


@needs_packing
def test_several_layers_of_one_input_give_their_outputs_side_by_side_and_take_new_weights():
    torch.manual_seed(0)
    layers = [nn.Linear(48, size, dtype=torch.bfloat16) for size in (16, 33)]
    names = {id(each): f"{n}.{kind}" for n, layer in enumerate(layers) for kind, each in layer.named_parameters()}
    packed = PackedLinear.of(*layers, names=names)
    input = torch.randn(5, 48).bfloat16()
    for _ in range(2):
        expected = torch.cat([layer(input) for layer in layers], -1)
        torch.testing.assert_close(packed(input), expected, atol=0.02, rtol=0.02)
        new = {name: torch.randn(tensor.shape) for layer in layers for tensor in layer.parameters()
               if (name := names[id(tensor)])}  # fmt: skip
        packed.load(new | {"of another layer": torch.ones(1)})
        with torch.no_grad():
            for layer in layers:
                for tensor in layer.parameters():
                    tensor.copy_(new[names[id(tensor)]])


@needs_packing
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_every_linear_layer_is_packed_under_the_name_of_its_weight(tied, fused):
    model = small_model(dtype=torch.bfloat16, tied=tied)
    names = names_of(model)
    packed = [*(fuse_layers(model, names) if fused else []), *pack_linear_layers(model, names)]
    packed_names = {name for layer in packed for name in (*layer.weight_names, *layer.bias_names)}
    assert packed_names | {name for name, _ in model.named_parameters()} == set(names.values())
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert len(packed) == (9 if fused else 15)
    assert ("lm_head.weight" in packed_names) is not tied
    assert ("model.embed_tokens.weight" in packed_names) is tied


KINDS = {
    "llama": (LlamaConfig, {"attention_bias": True}),
    "mistral": (MistralConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
}


def model_of(kind, dtype, **settings):
    """Numbers of bfloat16 in any type."""
    make, more = KINDS[kind]
    config = make(
        vocab_size=200, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=2, pad_token_id=0, bos_token_id=1, initializer_range=0.2, **more,
        **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model.bfloat16().to(dtype)


def scores_as(sampler, plain, as_sampled=lambda model: model, **bound):
    """Whether it samples with the log-probabilities of a float32 model, as loaded and then with other weights."""
    sampler._eos_ids = frozenset()
    prompts = [tuple(range(3, 3 + size)) for size in (5, 64, 90)]

    async def sample_all():
        requests = [SampleRequest(n, prompt, 9, seed=n) for n, prompt in enumerate(prompts)]
        return await asyncio.gather(*map(sampler.sample, requests))

    for _ in range(2):
        exact = as_sampled(plain)
        for prompt, sample in zip(prompts, asyncio.run(sample_all()), strict=True):
            ids = torch.tensor([[*prompt, *sample.token_ids]])
            with torch.inference_mode():
                logprobs = torch.log_softmax(exact(ids, use_cache=False).logits[0], -1)
            expected = logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, **bound)
        with torch.no_grad():  # as after an update
            for parameter in plain.parameters():
                parameter.mul_(1.1)
                parameter.copy_(parameter.bfloat16())
        for session in range(len(prompts)):
            sampler.close_session(session)
        sampler.load_weights(dict(plain.named_parameters()), version=1)


@needs_packing
@pytest.mark.parametrize("kind", KINDS)
def test_fused_layers_compute_what_transformers_does(kind, tiny_model_dir):
    model = model_of(kind, torch.bfloat16)
    plain = copy.deepcopy(model).float()
    sampler = LocalSampler(model, load_policy(tiny_model_dir)[1], in_flight=3, episode_tokens=120)
    assert not any("q_proj" in name for name, _ in model.named_modules())
    scores_as(sampler, plain, atol=0.15, rtol=0.03)
