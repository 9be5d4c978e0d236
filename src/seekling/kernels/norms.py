"""Norms and gates, which keep little for the backward pass: their inputs, and one number a token; and rotations.

transformers' own keep a float32 copy of every norm's input, the normalised values and the activated gate. The formulas
are the same, so outputs and gradients are equal up to rounding. Of 1,024 tokens of a layer (width 576, bfloat16, one
thread of an AVX-512 CPU) loops take 1.5 ms forward and backward, torch 4.7, the layer's products 55.

Shape letters: N tokens, D width of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seekling.kernels.backend import takes_loops
from seekling.kernels.vector import pointwise

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
MLPS = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")
Found = TypeVar("Found")


def make_lean(model: nn.Module) -> int:
    """Replace the forward passes of the norms and MLPs that are known, in place; returns how many.

    Weights and their names stay, and so do layers of other kinds.
    """
    count = 0
    for module in model.modules():
        kind = type(module).__name__
        if kind in NORMS:
            module.forward = partial(_norm_layer, module)
        elif kind in MLPS and isinstance(module.act_fn, nn.Module) and type(module.act_fn).__name__.startswith("SiLU"):
            module.forward = partial(_mlp_layer, module)
        else:
            continue
        count += 1
    return count


def _norm_layer(module: Any, hidden: Tensor) -> Tensor:
    # A copy: memory that loops have seen cannot be given back, and weights that are divided among processes are.
    return rms_norm(hidden, module.weight.clone(), module.variance_epsilon)


def _mlp_layer(module: Any, hidden: Tensor) -> Tensor:
    output: Tensor = module.down_proj(silu_gate(module.gate_proj(hidden), module.up_proj(hidden)))
    return output


def rms_norm(hidden: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm of (..., D), as LlamaRMSNorm computes it; `epsilon` is added to the mean square."""
    if not takes_loops(hidden, weight_D):
        return recomputed(_plain_norm, hidden, weight_D, epsilon)
    if not torch.is_grad_enabled():
        return pointwise.rms_norm(_flat(hidden), weight_D, epsilon)[0].view(hidden.shape)
    output: Tensor = _RmsNorm.apply(hidden, weight_D, epsilon)  # type: ignore[no-untyped-call]
    return output


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, of one shape."""
    if not takes_loops(gate, up):
        return recomputed(_plain_gate, gate, up)
    output: Tensor = _GatedSilu.apply(gate, up)  # type: ignore[no-untyped-call]
    return output


def silu_gate_halves(both_NG: Tensor) -> Tensor:
    """As `silu_gate`, of the halves of (N, 2 F), of which the gate is the first: (N, F), without gradients."""
    return pointwise.gated_silu_halves(both_NG) if takes_loops(both_NG) else _plain_gate(*both_NG.chunk(2, 1))


def rotate_(heads_NED: Tensor, num_rotated: int, cos_ND: Tensor, sin_ND: Tensor) -> None:
    """Turn the first of E heads of every token by its position, as rotary embeddings do, in place, without gradients.

    Heads are contiguous; cosines and sines of each token's angles are of their type, both halves.
    """
    if takes_loops(heads_NED, cos_ND, sin_ND):
        pointwise.rotate_(heads_NED, num_rotated, cos_ND, sin_ND)
        return
    turned_NED = heads_NED[:, :num_rotated]
    left_NEH, right_NEH = turned_NED.chunk(2, -1)
    swapped_NED = torch.cat([-right_NEH, left_NEH], -1)
    turned_NED.copy_(turned_NED * cos_ND[:, None] + swapped_NED * sin_ND[:, None])


def recomputed(function: Callable[..., Found], *inputs: object) -> Found:
    """Of the reference: what a function gives, and keeps of it for the backward pass only what goes in."""
    if not torch.is_grad_enabled():
        return function(*inputs)
    found: Found = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return found


def _plain_norm(hidden: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    wide = hidden.float()
    return weight_D * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(hidden.dtype)


def _plain_gate(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        output_ND, scale_N = pointwise.rms_norm(_flat(hidden), weight_D, epsilon)
        ctx.save_for_backward(hidden, weight_D, scale_N)
        return output_ND.view(hidden.shape)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight_D, scale_N = ctx.saved_tensors
        d_hidden_ND, wide_D = pointwise.rms_norm_backward(_flat(d_output), _flat(hidden), weight_D, scale_N)
        return d_hidden_ND.view(hidden.shape), wide_D.to(weight_D.dtype), None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return pointwise.gated_silu(_flat(gate), _flat(up)).view(gate.shape)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = pointwise.gated_silu_backward(*map(_flat, (d_output, gate, up)))
        return d_gate.view(gate.shape), d_up.view(up.shape)


def _flat(tensor: Tensor) -> Tensor:
    """(N, width), contiguous."""
    return tensor.reshape(-1, tensor.shape[-1]).contiguous()
