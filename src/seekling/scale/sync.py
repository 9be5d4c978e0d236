"""Weights from a learner to the samplers of a pool, by way of the store."""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from seekling.learn.learner import Learner
from seekling.rollout.sampler import Sampler
from seekling.scale.actor import Weights
from seekling.scale.pool import SamplerPool


@typing.runtime_checkable
class GivesWeights(typing.Protocol):
    """A learner whose weights can be had in this process."""

    def export_weights(self) -> Mapping[str, Tensor]:
        """The policy's weights by the names of the plain transformers model, adapters merged."""
        ...


class StoreSync:
    """Writes each version once; samplers read it before their next group.

    Args:
        load: a model directory into memory.
        keeps_digits: write weights as the learner has them; otherwise rounded to what the samplers compute in.
    """

    def __init__(self, load: Callable[[Path], PreTrainedModel], *, keeps_digits: bool) -> None:
        self._load, self._keeps_digits = load, keeps_digits

    def publish(self, learner: Learner, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish`."""
        assert isinstance(learner, GivesWeights), f"{type(learner).__name__} has its weights elsewhere"
        self._publish(learner.export_weights(), sampler, version)

    def publish_exported(self, folder: Path, sampler: Sampler, version: int) -> None:
        """See `WeightSync.publish_exported`."""
        self._publish(dict(self._load(folder).named_parameters()), sampler, version)

    def _publish(self, weights: Mapping[str, Tensor], sampler: Sampler, version: int) -> None:
        assert isinstance(sampler, SamplerPool), f"{type(sampler).__name__} reads no weights from a store"
        started = time.perf_counter()
        dtype = None if self._keeps_digits else getattr(torch, sampler.dtype.removeprefix("torch."))
        sampler.weights = Weights(sampler.store.write(weights, dtype), version)
        sampler.store.prune()
        sampler.sync_s = time.perf_counter() - started
