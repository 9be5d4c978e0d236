"""Linear layers whose weights lie as oneDNN reads them: in bfloat16 a decode step's few rows are twice as fast.

In float32 they are a fifth to a half faster, since torch's own products pack the weights anew at every call. The plain
weights of these layers are gone. Only for sampling: no gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from seekling.kernels.amx.products import FEW_TOKENS, product, words_of
from seekling.kernels.backend import chosen_kernels, has_operators, takes_tiles
from seekling.kernels.memory import release_free_memory, resident_bytes
from seekling.kernels.vector import eight_bits
from seekling.kernels.vector.pointwise import bits_of

PACKING = "mkldnn::_reorder_linear_weight", "mkldnn::_linear_pointwise"
"""Torch's operators that pack weights and multiply with them; without them layers stay as they are."""
MOST_FREED_BYTES = 500_000_000
"""Packing and merging leave holes: a quarter of a model of billions of weights, if nothing is given back meanwhile."""


class PackedLinear(nn.Module):
    """One or several linear layers of the same input and type, their outputs side by side, over packed weights.

    Weights (out, in) and biases (out,), none or as many, come by their names.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor], *, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__()
        self._dtype = dtype
        self.weight_names, self.bias_names = tuple(weights), tuple(biases)
        self.load({**weights, **biases})

    @classmethod
    def of(cls, *linears: nn.Linear, names: Mapping[int, str]) -> Self:
        """Pack linear layers, given the names of parameters by their ids."""
        biases = [linear.bias for linear in linears if linear.bias is not None]
        return cls(
            {names[id(linear.weight)]: linear.weight for linear in linears},
            {names[id(bias)]: bias for bias in biases},
            dtype=linears[0].weight.dtype,
        )

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over other weights and biases, of any floating type, from among a model's by their names."""
        self.words: np.ndarray | None = None
        """The weights as a loop for few tokens reads them, if there is one; of the last ones that were loaded."""
        # What the given tensors become later must not show, even where packing leaves weights as they lie.
        weights = [tensors[name].to(self._dtype, copy=len(self.weight_names) == 1) for name in self.weight_names]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        self._packed: Tensor = weight.detach().contiguous()  # what was packed before goes first, and makes room
        del weights, weight
        self.out_features, self.in_features = self._packed.shape
        biases = [tensors[name].to(self._dtype) for name in self.bias_names]
        self._bias = torch.cat(biases) if biases else None
        self._pack()

    def _pack(self) -> None:
        plain_NK = self._packed
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain_NK)
        self.words = words_of(plain_NK) if takes_tiles(plain_NK.dtype, plain_NK.device) else None
        self.bias_words = np.empty(0, np.uint16) if self._bias is None else bits_of(self._bias)
        """Of the bias, none without."""

    @property
    def operands(self) -> tuple[np.ndarray | None, ...]:
        """What a layer's loop takes of it."""
        return self.words, self.bias_words

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if self._loop_takes(input):
            return self._multiply(input, input.new_empty(*input.shape[:-1], self.out_features), adds=False)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(input, self._packed, self._bias, "none", [], "")
        return output

    def add_to(self, other: Tensor, input: Tensor) -> Tensor:
        """The layer's output plus another tensor of its shape, rounded once."""
        if self._loop_takes(input):
            return self._multiply(input, other.clone(memory_format=torch.contiguous_format), adds=True)
        output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(input, other, self._packed, self._bias, "add")
        return output

    def _loop_takes(self, input: Tensor) -> bool:
        num_tokens = input.numel() // self.in_features
        return self.words is not None and input.dtype == torch.bfloat16 and 0 < num_tokens <= FEW_TOKENS

    def _multiply(self, input: Tensor, output: Tensor, *, adds: bool) -> Tensor:
        rows = input.reshape(-1, self.in_features).contiguous()
        self._product(rows, output.view(-1, self.out_features), adds)
        return output

    def _product(self, rows: Tensor, output: Tensor, adds: bool) -> None:
        assert self.words is not None
        product(rows, self.words, self.bias_words, output, adds=adds)


class EightBitLinear(PackedLinear):
    """As `PackedLinear`, its weights rounded to eight bits; see `vector/eight_bits.py`."""

    def _pack(self) -> None:
        self.words, self.scale_N = eight_bits.quantise(self._packed)
        self._packed = self._packed.new_empty(0)
        self.bias_N = np.empty(0, np.float32) if self._bias is None else self._bias.float().numpy()

    @property
    def operands(self) -> tuple[np.ndarray | None, ...]:
        """What a layer's loop takes of it."""
        return self.words, self.scale_N, self.bias_N

    def _loop_takes(self, input: Tensor) -> bool:
        return True

    def _product(self, rows: Tensor, output: Tensor, adds: bool) -> None:
        assert self.words is not None
        eight_bits.product(rows, self.words, self.scale_N, self.bias_N, output, adds=adds)


def sparing(layers: Iterable[PackedLinear]) -> Iterator[PackedLinear]:
    """The same layers; freed memory goes back whenever it has grown while each was made, or is loaded by the caller."""
    before = resident_bytes()
    for layer in layers:
        yield layer
        if resident_bytes() - before > MOST_FREED_BYTES:
            release_free_memory()


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of this type can be packed here: on a CPU whose oneDNN has kernels for it."""
    is_there = torch.backends.mkldnn.is_available() and has_operators(*PACKING)
    if device.type != "cpu" or chosen_kernels() == "reference" or not is_there:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def can_round(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of this type can be rounded to eight bits here: on any CPU, by loops."""
    return dtype in (torch.float32, torch.bfloat16) and device.type == "cpu" and chosen_kernels() != "reference"


def pack_linear_layers(
    model: nn.Module, names: Mapping[int, str], kind: type[PackedLinear] = PackedLinear
) -> Iterator[PackedLinear]:
    """Pack every linear layer of a model in place that is not packed yet, and yield it.

    `names` are of the parameters by their ids; an output layer tied to the embedding has the embedding's, which stays.
    """
    for name in [name for name, module in model.named_modules() if type(module) is nn.Linear]:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        packed = kind.of(linear, names=names)
        model.set_submodule(name, packed)
        del linear  # its weight, if the model is all that still had it
        yield packed
