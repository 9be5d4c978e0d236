"""Which back end computes: chosen once for the process, by what the machine and the build can do.

reference: torch's public operations; any device, any type. vector: loops that numba compiles for the processor's vector
units, and oneDNN's packed weights where it has them; bfloat16 and float32 on a CPU. amx: the same, with a CPU's tile
registers where bfloat16 is multiplied. What a back end does not take, the next simpler one does.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from seekling.errors import ConfigError
from seekling.kernels.amx.tiles import SIDE, has_tiles

Kernels = Literal["reference", "vector", "amx"]
FUSED_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
"""Torch's attention on CPUs that returns log-sums, which the backward pass needs."""
_chosen: Kernels | None = None


def available_kernels() -> tuple[Kernels, ...]:
    """The back ends that this machine and this build of torch have; the last is the fastest."""
    if not has_operators(FUSED_ATTENTION):
        return ("reference",)
    return ("reference", "vector", "amx") if has_tiles() else ("reference", "vector")


def has_operators(*names: str) -> bool:
    """Whether this build of torch has operators such as aten::name, which are private to it."""
    try:
        return all(getattr(getattr(torch.ops, room), name) for room, name in (each.split("::") for each in names))
    except AttributeError:
        return False


def use_kernels(name: Literal["auto"] | Kernels) -> Kernels:
    """Choose the back end of this process, before a sampler or a learner is made; auto takes the fastest there is.

    Raises:
        ConfigError: this machine, or this build of torch, has no such back end.
    """
    global _chosen
    there = available_kernels()
    if name != "auto" and name not in there:
        reason = (
            "a CPU with AMX, and a system that allows it" if name == "amx" else "a torch that has " + FUSED_ATTENTION
        )
        raise ConfigError(
            f'model.kernels = "{name}" needs {reason}; here there is {", ".join(there)}: give model.kernels=auto'
        )
    _chosen = there[-1] if name == "auto" else name
    return _chosen


def chosen_kernels() -> Kernels:
    """The back end in use; without a choice the fastest."""
    return _chosen or use_kernels("auto")


def takes_loops(*tensors: Tensor) -> bool:
    """Whether compiled loops take these tensors, of one type on a CPU."""
    return (
        chosen_kernels() != "reference"
        and all(each.device.type == "cpu" for each in tensors)
        and {each.dtype for each in tensors} in ({torch.bfloat16}, {torch.float32})
    )


def takes_tiles(dtype: torch.dtype, device: torch.device, head_dim: int = 2 * SIDE) -> bool:
    """Whether tiles multiply such tensors; attention has heads of so many numbers."""
    is_theirs = device.type == "cpu" and dtype == torch.bfloat16 and head_dim % (2 * SIDE) == 0
    return is_theirs and chosen_kernels() == "amx"
