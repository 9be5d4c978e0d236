"""Leaner layers: the outputs and gradients of transformers' own, and less kept between the passes."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from seekling.models.lean import make_lean
from tests.learn.models import gradients, small_model


def passes(model, ids):
    kept: list[int] = []

    def keep(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids, use_cache=False).logits
    logits.float().pow(2).mean().backward()
    return logits.detach(), gradients(model), sum(kept)


def qwen3(dtype):
    config = Qwen3Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).to(dtype)


@pytest.mark.parametrize("make", [lambda dtype: small_model(dtype=dtype), qwen3])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_outputs_and_gradients_agree_and_less_is_kept(make, dtype, bound):
    plain = make(dtype)
    lean = copy.deepcopy(plain)
    assert make_lean(lean) == sum(type(m).__name__.endswith(("RMSNorm", "MLP")) for m in plain.modules()) >= 7
    ids = torch.arange(3, 43)[None]
    (logits, wanted, kept), (found_logits, found, found_kept) = passes(plain, ids), passes(lean, ids)
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
    model = LlamaForCausalLM(config)
    assert make_lean(model) == 3  # its norms; the MLP has another activation
