"""Norms and gated activations that keep less for the backward pass, and on a CPU take one pass over memory.

transformers' own keep a float32 copy of every norm's input, the normalised values and the activated gate: a third of
what a layer keeps. The formulas are the same, so outputs and gradients are equal up to rounding. Layers of other kinds
stay as they are.

Shape letters: N tokens, D width of the model.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from seekling.models.pointwise import can_loop, gated_silu, gated_silu_backward, rms_norm, rms_norm_backward

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
    def forward(ctx: Any, hidden: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        if can_loop(hidden, weight_D):
            output_ND, scale_N = rms_norm(_flat(hidden), weight_D, epsilon)
            ctx.save_for_backward(hidden, weight_D, scale_N)
            return output_ND.view(hidden.shape)
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden, weight_D, scale)
        return weight_D * (wide * scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight_D, scale = ctx.saved_tensors
        if can_loop(hidden, weight_D, d_output):
            d_hidden_ND, wide_D = rms_norm_backward(_flat(d_output), _flat(hidden), weight_D, scale)
            return d_hidden_ND.view(hidden.shape), wide_D.to(weight_D.dtype), None
        normed = hidden.float() * scale
        d_normed = d_output.float()
        d_weight_D = None
        if ctx.needs_input_grad[1]:
            d_weight_D = (d_normed * normed.to(hidden.dtype)).flatten(0, -2).sum(0).to(weight_D.dtype)
        d_normed = d_normed * weight_D.float()
        along = (d_normed * normed).mean(-1, keepdim=True)
        d_hidden = d_normed.sub_(normed.mul_(along)).mul_(scale)
        return d_hidden.to(hidden.dtype), d_weight_D, None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        if can_loop(gate, up):
            return gated_silu(*map(_flat, (gate, up))).view(gate.shape)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        if can_loop(gate, up, d_output):
            d_gate, d_up = gated_silu_backward(*map(_flat, (d_output, gate, up)))
            return d_gate.view(gate.shape), d_up.view(up.shape)
        d_up = F.silu(gate).mul_(d_output)
        d_gate = torch.ops.aten.silu_backward(d_output * up, gate)
        return d_gate, d_up


def _flat(tensor: Tensor) -> Tensor:
    """(N, width), contiguous."""
    return tensor.reshape(-1, tensor.shape[-1]).contiguous()
