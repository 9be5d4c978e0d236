"""Weights on their way from learner to sampler: each made when it is asked for, and those of another model refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from seekling.errors import InfrastructureError


class LazyWeights(Mapping[str, Tensor]):
    """Tensors by name that are made anew each time they are looked up; their shapes are known before."""

    def __init__(self, makers: Mapping[str, Callable[[], Tensor]], shapes: Mapping[str, torch.Size]) -> None:
        self._makers, self.shapes = makers, shapes

    def __getitem__(self, name: str) -> Tensor:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank factors (LoRA, arXiv:2106.09685), apart from the weights that they change."""

    rank: int
    alpha: int
    tensors: Mapping[str, Tensor]
    """`NAME.lora_A` (rank, in) and `NAME.lora_B` (out, rank), with the names of weights of the plain model."""

    def merged(self, base: Mapping[str, Tensor]) -> LazyWeights:
        """All weights by their names, base + alpha / rank * B A where there is an adapter.

        The sum is formed afresh when a weight is looked up, so repeated merging does not drift.
        """
        makers = {name: partial(self._merged, name, each) for name, each in base.items()}
        return LazyWeights(makers, {name: each.shape for name, each in base.items()})

    @torch.no_grad()
    def _merged(self, name: str, base: Tensor) -> Tensor:
        if f"{name}.lora_A" not in self.tensors:
            return base
        down, up = (self.tensors[f"{name}.lora_{factor}"].to(base.device).float() for factor in "AB")
        return (base.float() + up @ down * (self.alpha / self.rank)).to(base.dtype)


@dataclass(frozen=True, slots=True)
class ExpectedWeights:
    """What a model's weights are called, and how large they are."""

    shapes: Mapping[str, torch.Size]
    """Of all that the model may be given, by name."""
    needed: frozenset[str]
    """Those that it must be given; of tensors that are one, such as a tied output layer's, one name."""

    @staticmethod
    def of(model: PreTrainedModel) -> ExpectedWeights:
        """Look at a model as transformers made it."""
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        return ExpectedWeights(shapes, frozenset(name for name, _ in model.named_parameters()))

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse weights of another model.

        Raises:
            InfrastructureError: a name is missing or unknown, or a tensor has another shape.
        """
        unknown, missing = set(weights) - set(self.shapes), self.needed - set(weights)
        if unknown or missing:
            raise InfrastructureError(
                f"weights of another model: {sorted(missing)[:3]} missing, {sorted(unknown)[:3]} unknown; "
                "sampler and learner must load the same model"
            )
        if isinstance(weights, LazyWeights):
            shapes = weights.shapes
        else:
            shapes = {name: tensor.shape for name, tensor in weights.items()}
        others = [name for name, shape in shapes.items() if shape != self.shapes[name]]
        if others:
            name = min(others)
            raise InfrastructureError(
                f"weights of another model: {len(others)} of {len(weights)} have other sizes, such as {name} with "
                f"{tuple(shapes[name])} instead of {tuple(self.shapes[name])}; sampler and learner must load "
                "the same model"
            )
