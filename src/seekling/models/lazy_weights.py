"""Weights on their way from learner to sampler, each made when it is asked for: a second model would not always fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


class LazyWeights(Mapping[str, Tensor]):
    """Tensors by name that are made anew each time they are looked up.

    Args:
        makers: of each.
        shapes: of what they make.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Tensor]], shapes: Mapping[str, torch.Size]) -> None:
        self._makers, self.shapes = makers, shapes

    def __getitem__(self, name: str) -> Tensor:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def shapes_of(weights: Mapping[str, Tensor]) -> Mapping[str, torch.Size]:
    """The shape of each; none is made for it."""
    if isinstance(weights, LazyWeights):
        return weights.shapes
    return {name: tensor.shape for name, tensor in weights.items()}
