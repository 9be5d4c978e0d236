"""Attention along strands against plain causal attention over each path alone: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seekling.kernels.strands import Strand
from seekling.kernels.vector import paths
from seekling.learn.trained import strand_attention

# A prompt, two continuations of all of it, one of its beginning and of part of the first; then padding.
STRANDS = (
    Strand(0, 200, ()),
    Strand(200, 150, ((0, 200),)),
    Strand(350, 5, ((0, 200),)),
    Strand(355, 130, ((0, 200), (200, 260))),
    Strand(485, 128, ((0, 128),)),
    Strand(613, 1, ((0, 3),)),
)
NUM_TOKENS = 624


def places(strand: Strand) -> list[int]:
    return [place for span in strand.path for place in range(*span)]


def reference(query, key, value, scaling):
    output = torch.zeros_like(query)
    for strand in STRANDS:
        path = places(strand)
        whole = F.scaled_dot_product_attention(
            query[:, :, path], key[:, :, path], value[:, :, path], is_causal=True, scale=scaling, enable_gqa=True
        )
        span = slice(strand.start, strand.start + strand.length)
        output[:, :, span] = whole[:, :, strand.num_before :]
    return output.transpose(1, 2)


def tensors(dtype, heads=4, kv_heads=2, depth=8, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, NUM_TOKENS, depth), (1, kv_heads, NUM_TOKENS, depth), (1, kv_heads, NUM_TOKENS, depth)]
    made = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]
    return made, torch.randn((1, NUM_TOKENS, heads, depth), generator=generator).to(device, dtype)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("depth", [8, 64, 128])
def test_outputs_and_gradients_are_those_of_each_path_alone(kernels, dtype, bound, heads, kv_heads, depth):
    compare(dtype, bound, heads, kv_heads, depth)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 0.06)])
def test_tiles_of_another_size_compute_the_same(kernels, dtype, bound, monkeypatch):
    monkeypatch.setattr(paths, "QUERIES", 64)
    monkeypatch.setattr(paths, "KEYS", 128)
    compare(dtype, bound, 4, 2, 64)


def test_several_threads_compute_the_same(kernels):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compare(torch.bfloat16, 0.06, 4, 2, 64)
    finally:
        torch.set_num_threads(before)


def compare(dtype, bound, heads, kv_heads, depth, device="cpu"):
    inputs, weights = tensors(dtype, heads, kv_heads, depth, device)
    found, _ = strand_attention(nn.Identity(), *inputs, None, strands=STRANDS, scaling=depth**-0.5)
    found_gradients = torch.autograd.grad((found * weights).sum(), inputs)
    # Rounding apart, bfloat16 must give what exact arithmetic gives of the same numbers.
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = reference(*exact, depth**-0.5)
    expected_gradients = torch.autograd.grad((expected * weights.double()).sum(), exact)
    torch.testing.assert_close(found.double(), expected, atol=bound, rtol=bound)
    for gradient, wanted in zip(found_gradients, expected_gradients, strict=True):
        assert gradient.dtype == dtype
        scale = float(wanted.abs().max())
        torch.testing.assert_close(gradient.double(), wanted, atol=bound * scale, rtol=bound)


def test_a_strand_sees_its_own_path_and_nothing_else(kernels):
    (query, key, value), _ = tensors(torch.float32)
    exact, _ = strand_attention(nn.Identity(), query, key, value, None, strands=STRANDS, scaling=0.35)
    other = value.detach().clone()
    other[:, :, 200:350] = 100.0  # the second strand: only it and the fourth follow it
    changed, _ = strand_attention(nn.Identity(), query, key, other, None, strands=STRANDS, scaling=0.35)
    for start, stop in [(0, 200), (350, 355), (485, NUM_TOKENS)]:
        assert torch.equal(changed[:, start:stop], exact[:, start:stop])
    assert (changed[:, 200:350] != exact[:, 200:350]).all()
    assert (changed[:, 355:485] != exact[:, 355:485]).all()


def test_padding_gets_zeros_and_gives_no_gradient(kernels):
    inputs, _ = tensors(torch.float32)
    found, _ = strand_attention(nn.Identity(), *inputs, None, strands=STRANDS, scaling=0.35)
    assert not found[:, -10:].any()
    assert all(not gradient[:, :, -10:].any() for gradient in torch.autograd.grad(found.sum(), inputs))
