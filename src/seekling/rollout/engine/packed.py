"""Linear layers whose weights lie as oneDNN's bfloat16 kernels read them: for a decode step's few rows twice as fast.

The plain weights of these layers are gone, so memory does not grow. Only for sampling: no gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class PackedLinear(nn.Module):
    """A linear layer over packed weights.

    Args:
        linear: the layer whose place it takes; its weights are packed and given up.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self.load(linear.weight)

    @torch.no_grad()
    def load(self, weight: Tensor) -> None:
        """Pack other weights, (out, in) of any floating type."""
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16).contiguous())

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) bfloat16 to (..., out)."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")
        return output


def can_pack(model: PreTrainedModel) -> bool:
    """Whether this model's layers can be packed here: bfloat16 on a CPU whose oneDNN has kernels for it."""
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linear_layers(model: PreTrainedModel) -> Mapping[str, PackedLinear]:
    """Pack every linear layer of a model in place.

    Args:
        model: one that `can_pack` accepts.

    Returns:
        The packed layers by the names under which `named_parameters` had their weights; an output layer tied to the
        embedding by the embedding's, which stays.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    packed = {}
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            layer = PackedLinear(module)
            packed[names[id(module.weight)]] = layer
            model.set_submodule(name, layer)
    return packed
