"""Norms and gated activations that keep less for the backward pass: their inputs, and nothing in float32.

transformers' own keep a float32 copy of every norm's input, the normalised values and the activated gate: a third of
what a layer keeps. The formulas are the same, so outputs are equal and gradients equal up to rounding. Layers of other
kinds stay as they are.

Shape letters: N tokens, D width of the model, F width of the gate.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
MLPS = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")


def make_lean(model: PreTrainedModel) -> int:
    """Replace the forward passes of the norms and MLPs that are known, in place.

    Args:
        model: to be trained; its weights and their names stay.

    Returns:
        How many were replaced.
    """
    count = 0
    for module in model.modules():
        kind = type(module).__name__
        if kind in NORMS:
            module.forward = partial(_norm, module)
        elif kind in MLPS and isinstance(module.act_fn, nn.Module) and type(module.act_fn).__name__.startswith("SiLU"):
            module.forward = partial(_mlp, module)
        else:
            continue
        count += 1
    return count


def _norm(module: nn.Module, hidden: Tensor) -> Tensor:
    output: Tensor = _RmsNorm.apply(hidden, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return output


def _mlp(module: Any, hidden: Tensor) -> Tensor:
    gated = _GatedSilu.apply(module.gate_proj(hidden), module.up_proj(hidden))  # type: ignore[no-untyped-call]
    output: Tensor = module.down_proj(gated)
    return output


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        wide_ND = hidden_ND.float()
        scale_N1 = torch.rsqrt(wide_ND.pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden_ND, weight_D, scale_N1)
        return weight_D * (wide_ND * scale_N1).to(hidden_ND.dtype)

    @staticmethod
    def backward(ctx: Any, d_output_ND: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_D, scale_N1 = ctx.saved_tensors
        normed_ND = hidden_ND.float() * scale_N1
        d_normed_ND = d_output_ND.float()
        d_weight_D = None
        if ctx.needs_input_grad[1]:
            rounded_ND = normed_ND.to(hidden_ND.dtype)
            d_weight_D = (d_normed_ND * rounded_ND).flatten(0, -2).sum(0).to(weight_D.dtype)
        d_normed_ND = d_normed_ND * weight_D.float()
        along_N1 = (d_normed_ND * normed_ND).mean(-1, keepdim=True)
        d_hidden_ND = d_normed_ND.sub_(normed_ND.mul_(along_N1)).mul_(scale_N1)
        return d_hidden_ND.to(hidden_ND.dtype), d_weight_D, None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_NF: Tensor, up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NF, up_NF)
        return F.silu(gate_NF).mul_(up_NF)

    @staticmethod
    def backward(ctx: Any, d_output_NF: Tensor) -> tuple[Tensor, Tensor]:
        gate_NF, up_NF = ctx.saved_tensors
        d_up_NF = F.silu(gate_NF).mul_(d_output_NF)
        d_active_NF = d_output_NF * up_NF
        d_gate_NF: Tensor = torch.ops.aten.silu_backward(d_active_NF, gate_NF)
        return d_gate_NF, d_up_NF
