"""Weights of eight bits: products and whole samplers against exact arithmetic with the rounded weights."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from torch import nn

from seekling.errors import ConfigError, InfrastructureError
from seekling.kernels import backend
from seekling.kernels.linear import EightBitLinear
from seekling.models import load_policy
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from seekling.serve.local_model import rounds_weights
from tests.kernels.test_linear import KINDS, model_of, scores_as

pytestmark = pytest.mark.skipif(
    backend.available_kernels() == ("reference",), reason="this torch has no vector kernels, so nothing is rounded"
)


def rounded(weight_NK: torch.Tensor) -> torch.Tensor:
    """The weights that eight bits keep, by the definition."""
    scale_N1 = weight_NK.abs().amax(1, keepdim=True) / 127
    return (weight_NK / scale_N1).round() * scale_N1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (33, 47), (1, 2)])
def test_a_layer_of_eight_bits_multiplies_exactly_with_the_rounded_weights(outputs, inputs, dtype):
    torch.manual_seed(0)
    rounding = 0.01 if dtype == torch.bfloat16 else 1e-5
    levels = min(32767, (2**31 - 1) // (127 * (inputs + inputs % 2)) - 1)
    for has_bias, rows in ((False, 1), (True, 2), (False, 3), (True, 7), (True, 300)):
        plain = nn.Linear(inputs, outputs, bias=has_bias).to(dtype)
        layer = EightBitLinear({"weight": plain.weight}, {"bias": plain.bias} if has_bias else {}, dtype=dtype)
        input_RK, more_RN = torch.randn(rows, inputs).to(dtype), torch.randn(rows, outputs).to(dtype)
        input_RK[-1, 0] = 50  # an outlier takes the levels of its own row only
        with torch.inference_mode():
            weight_NK = rounded(plain.weight.float()).double()  # ties as in float32
            bias_N = plain.bias.double() if has_bias else None
            expected_RN = nn.functional.linear(input_RK.double(), weight_NK, bias_N)
            # Half a level of every input, and the rounding of the result.
            bound_RN = input_RK.double().abs().amax(1, keepdim=True) / levels / 2 * weight_NK.abs().sum(1)
            bound_RN = 1.001 * bound_RN + rounding * (1 + expected_RN.abs())
            assert ((layer(input_RK[None])[0] - expected_RN).abs() <= bound_RN).all()
            assert ((layer.add_to(more_RN, input_RK) - (expected_RN + more_RN)).abs() <= bound_RN + rounding * 4).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_of_eight_bits_scores_as_transformers_does_with_the_rounded_weights(kind, dtype, tiny_model_dir):
    model = model_of(kind, dtype, tie_word_embeddings=False)
    plain = copy.deepcopy(model).float()
    sampler = LocalSampler(
        model, load_policy(tiny_model_dir)[1], in_flight=3, episode_tokens=120, draft_tokens=2, eight_bits=True
    )
    assert (sampler._loops is None) == (sampler._cache.layout != "blocks")

    def as_sampled(plain):
        exact = copy.deepcopy(plain)
        with torch.no_grad():
            for module in exact.modules():
                if isinstance(module, nn.Linear):
                    module.weight.copy_(rounded(module.weight))
        return exact

    bound = {"atol": 0.15, "rtol": 0.03} if dtype == torch.bfloat16 else {"atol": 2e-3, "rtol": 1e-3}
    scores_as(sampler, plain, as_sampled, **bound)


def test_damaged_weights_of_eight_bits_are_noticed(tiny_model_dir):
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    with torch.no_grad():
        model.get_decoder().layers[0].mlp.down_proj.weight[3, 5] = torch.nan
    sampler = LocalSampler(model, tokenizer, in_flight=1, episode_tokens=64, eight_bits=True)
    with pytest.raises(InfrastructureError, match="not finite"):
        asyncio.run(sampler.sample(SampleRequest(1, tuple(range(3, 40)), max_new_tokens=8)))


def test_where_nothing_can_be_rounded_it_is_refused_and_auto_does_not_try(tiny_model_dir, monkeypatch):
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    assert not rounds_weights("float32")  # whoever asks for float32 gets it
    monkeypatch.setattr(backend, "_chosen", "reference")
    assert not rounds_weights("auto")
    with pytest.raises(ConfigError, match=r"rollout\.weight_bits = 8 needs a CPU and model\.kernels = vector or amx"):
        LocalSampler(model, tokenizer, in_flight=1, episode_tokens=64, eight_bits=True)
