"""Norms, gates and softmaxes against torch's own operations, in both types and with one and two threads."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from seekling.kernels.norms import make_lean, rms_norm, rotate_, silu_gate
from seekling.kernels.vector.pointwise import (
    gated_silu,
    gated_silu_backward,
    rms_norm_backward,
    softmax_gradient_,
    softmax_stats,
)
from seekling.kernels.vector.pointwise import rms_norm as norm_loop
from tests.learn.models import gradients, small_model

ROWS, WIDTH = 130, 576  # enough elements for threads

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2**-7}


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn(dtype, count, scale=1.0):
    dice = torch.Generator().manual_seed(7)
    return [(scale * torch.randn(ROWS, WIDTH, generator=dice)).to(dtype) for _ in range(count)]


def differentiated(function, *inputs, d_output):
    """The output and the gradients of a function, in float64."""
    wide = [each.double().requires_grad_() for each in inputs]
    output = function(*wide)
    return output.detach(), torch.autograd.grad(output, wide, d_output.double())


def agree(found, wanted, dtype):
    largest = float(wanted.abs().max())
    torch.testing.assert_close(found.double(), wanted, atol=BOUNDS[dtype] * largest, rtol=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_its_gradients(kernels, dtype, threads):
    hidden, d_output = drawn(dtype, 2, scale=3.0)
    weight = (1 + 0.1 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))).to(dtype)
    wanted, (d_hidden, d_weight) = differentiated(
        lambda hidden, weight: weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5),
        hidden,
        weight,
        d_output=d_output,
    )
    inputs = [each.clone().requires_grad_() for each in (hidden, weight)]
    output = rms_norm(*inputs, 1e-5)
    found_hidden, found_weight = torch.autograd.grad(output, inputs, d_output)
    assert {output.dtype, found_hidden.dtype, found_weight.dtype} == {dtype}
    with torch.no_grad():
        assert torch.equal(rms_norm(hidden, weight, 1e-5), output)
    agree(output, wanted, dtype)
    agree(found_hidden, d_hidden, dtype)
    agree(found_weight, d_weight, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_and_its_gradients(kernels, dtype, threads):
    gate, up, d_output = drawn(dtype, 3, scale=4.0)
    wanted, (d_gate, d_up) = differentiated(lambda gate, up: F.silu(gate) * up, gate, up, d_output=d_output)
    inputs = [each.clone().requires_grad_() for each in (gate, up)]
    output = silu_gate(*inputs)
    agree(output, wanted, dtype)
    for found, each in zip(torch.autograd.grad(output, inputs, d_output), (d_gate, d_up), strict=True):
        assert found.dtype == dtype
        agree(found, each, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 80.0, -300.0])
def test_a_softmax_over_a_vocabulary_of_several_blocks(dtype, offset, threads):
    logits = (offset + 3 * torch.randn(37, 5003, generator=torch.Generator().manual_seed(2))).to(dtype)
    temperature = torch.linspace(0.5, 1.5, 37)
    wide = logits.double() / temperature.double()[:, None]
    logsum, mean = softmax_stats(logits, temperature)
    probabilities = torch.softmax(wide, -1)
    torch.testing.assert_close(logsum.double(), torch.logsumexp(wide, -1), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(mean.double(), (probabilities * wide).sum(-1), atol=2e-4, rtol=1e-6)
    factor = torch.linspace(-2, 2, 37)
    softmax_gradient_(logits, temperature, logsum, factor)
    assert logits.dtype == dtype
    wanted = probabilities * factor[:, None]
    # The float32 logarithm of the sum is rounded, the more so the larger it is.
    torch.testing.assert_close(logits.double(), wanted, atol=1e-9, rtol=2**-7 if dtype == torch.bfloat16 else 2e-4)


def test_extremes_and_what_is_not_a_number_come_out_as_torch_has_them():
    gate = torch.tensor([[-1e4, -200.0, -88.0, 0.0, 88.0, 200.0, 1e4, torch.inf, torch.nan]])
    ones = torch.ones_like(gate)
    torch.testing.assert_close(gated_silu(gate, ones), F.silu(gate), equal_nan=True)
    d_gate, _ = gated_silu_backward(ones, gate[:, :7].contiguous(), ones[:, :7].contiguous())
    torch.testing.assert_close(d_gate, torch.ops.aten.silu_backward(ones[:, :7], gate[:, :7]), atol=1e-6, rtol=1e-6)
    assert bool((rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6) == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("damage", [torch.nan, -torch.nan])
def test_damage_stays_in_its_row_and_is_not_lost(dtype, damage):
    damaged, ones = torch.ones(2, 96).to(dtype), torch.ones(96).to(dtype)
    damaged[1, 37] = damage
    sound = torch.ones(2, 96).to(dtype)
    output, scale = norm_loop(damaged, ones, 1e-6)
    d_hidden, _ = rms_norm_backward(sound, damaged, ones, scale)
    logsum, mean = softmax_stats(damaged, torch.ones(2))
    probabilities = damaged.clone()
    softmax_gradient_(probabilities, torch.ones(2), logsum, torch.ones(2))
    for each in (output, scale, d_hidden, logsum, mean, probabilities):
        assert each[0].isfinite().all()
        assert each[1].isnan().all()
    for each in (gated_silu(damaged, sound), gated_silu(sound, damaged), *gated_silu_backward(damaged, sound, sound)):
        assert each[0].isfinite().all()
        assert each[1].isnan().sum() == 1


@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_first_heads_are_rotated_as_transformers_rotates_them_and_the_others_left(kernels, threads, dtype):
    (states,) = drawn(dtype, 1)
    heads_NED = states.view(ROWS, 9, 64)
    angle_ND = torch.arange(ROWS)[:, None] * 0.9 ** torch.arange(32)
    cos_ND, sin_ND = (each.repeat(1, 2).to(dtype) for each in (angle_ND.cos(), angle_ND.sin()))
    sides = heads_NED[:, :5].transpose(0, 1)[None], heads_NED[:, 5:7].transpose(0, 1)[None]
    expected = apply_rotary_pos_emb(*sides, cos_ND[None], sin_ND[None])
    found = heads_NED.clone()
    rotate_(found, 7, cos_ND, sin_ND)
    expected_NED = torch.cat([each[0].transpose(0, 1) for each in expected], 1)
    torch.testing.assert_close(found[:, :7], expected_NED, atol=0 if dtype == torch.bfloat16 else 1e-6, rtol=0)
    assert torch.equal(found[:, 7:], heads_NED[:, 7:])


def passes(model):
    """Logits, gradients, and how many bytes were kept between the passes."""
    kept: list[int] = []

    def keep(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.arange(3, 43)[None], use_cache=False).logits
    logits.float().pow(2).mean().backward()
    return logits.detach(), gradients(model), sum(kept)


def qwen3(dtype):
    config = Qwen3Config(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).to(dtype)


@pytest.mark.parametrize("make", [lambda dtype: small_model(dtype=dtype), qwen3])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_lean_models_compute_what_transformers_does_and_keep_less(kernels, make, dtype, bound):
    plain = make(dtype)
    lean = copy.deepcopy(plain)
    assert make_lean(lean) == sum(type(m).__name__.endswith(("RMSNorm", "MLP")) for m in plain.modules()) >= 7
    (logits, wanted, kept), (found_logits, found, found_kept) = passes(plain), passes(lean)
    torch.testing.assert_close(found_logits, logits, atol=bound, rtol=bound)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, atol=bound * largest, rtol=bound, msg=name)
    assert found_kept < 0.85 * kept


def test_layers_of_other_kinds_stay():
    config = LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, hidden_act="gelu"
    )
    assert make_lean(LlamaForCausalLM(config)) == 3  # its norms; the MLP has another activation
