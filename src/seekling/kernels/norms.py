"""Norms and gates, which keep little for the backward pass: their inputs, and one number a token; and rotations.

transformers' own keep a float32 copy of every norm's input, the normalised values and the activated gate. The formulas
are the same, so outputs and gradients are equal up to rounding. Of 1,024 tokens of a layer (width 576, bfloat16, one
thread of an AVX-512 CPU) loops take 1.5 ms forward and backward, torch 4.7, the layer's products 55.

Shape letters: N tokens, D width of the model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seekling.kernels.backend import takes_loops
from seekling.kernels.vector import pointwise


def rms_norm(hidden: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm of (..., D), as LlamaRMSNorm computes it; `epsilon` is added to the mean square."""
    if not torch.is_grad_enabled() and takes_loops(hidden, weight_D):
        return pointwise.rms_norm(_flat(hidden), weight_D, epsilon)[0].view(hidden.shape)
    output: Tensor = _RmsNorm.apply(hidden, weight_D, epsilon)  # type: ignore[no-untyped-call]
    return output


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, of one shape."""
    output: Tensor = _GatedSilu.apply(gate, up)  # type: ignore[no-untyped-call]
    return output


def silu_gate_halves(both_NG: Tensor) -> Tensor:
    """As `silu_gate`, of the halves of (N, 2 F), of which the gate is the first: (N, F), without gradients."""
    if takes_loops(both_NG):
        return pointwise.gated_silu_halves(both_NG)
    gate_NF, up_NF = both_NG.chunk(2, 1)
    return F.silu(gate_NF) * up_NF


def rotate_(heads_NED: Tensor, num_rotated: int, cos_ND: Tensor, sin_ND: Tensor) -> None:
    """Turn the first heads of every token by its position, as rotary embeddings do, without gradients.

    Args:
        heads_NED: (N, E, D), contiguous; changed in place.
        num_rotated: how many of the E heads.
        cos_ND: of each token's angles, of the same type, both halves.
        sin_ND: likewise.
    """
    if takes_loops(heads_NED, cos_ND, sin_ND):
        pointwise.rotate_(heads_NED, num_rotated, cos_ND, sin_ND)
        return
    turned_NED = heads_NED[:, :num_rotated]
    left_NEH, right_NEH = turned_NED.chunk(2, -1)
    swapped_NED = torch.cat([-right_NEH, left_NEH], -1)
    turned_NED.copy_(turned_NED * cos_ND[:, None] + swapped_NED * sin_ND[:, None])


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        if takes_loops(hidden, weight_D):
            output_ND, scale_N = pointwise.rms_norm(_flat(hidden), weight_D, epsilon)
            ctx.save_for_backward(hidden, weight_D, scale_N)
            return output_ND.view(hidden.shape)
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden, weight_D, scale)
        return weight_D * (wide * scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight_D, scale = ctx.saved_tensors
        if takes_loops(hidden, weight_D, d_output):
            d_hidden_ND, wide_D = pointwise.rms_norm_backward(_flat(d_output), _flat(hidden), weight_D, scale)
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
        if takes_loops(gate, up):
            return pointwise.gated_silu(*map(_flat, (gate, up))).view(gate.shape)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        if takes_loops(gate, up, d_output):
            d_gate, d_up = pointwise.gated_silu_backward(*map(_flat, (d_output, gate, up)))
            return d_gate.view(gate.shape), d_up.view(up.shape)
        d_up = F.silu(gate).mul_(d_output)
        d_gate = torch.ops.aten.silu_backward(d_output * up, gate)
        return d_gate, d_up


def _flat(tensor: Tensor) -> Tensor:
    """(N, width), contiguous."""
    return tensor.reshape(-1, tensor.shape[-1]).contiguous()
