"""One process of a learner whose weights are divided among several: torch FSDP2, data parallel over packed rows.

Each rank holds a part of every weight, of its gradient and of its moments in float32; a layer's weights are gathered
when the layer computes, so its kernels see plain tensors. All ranks are given the same calls. They pack the same rows,
and each learns its own; gradients are summed, never averaged: they are divided by the size of the whole batch before,
as one process does it (and over gloo an average would be a sum, pytorch issue 162338).

A gather takes all ranks. One that has no row of its own computes one of another's, whose gradients count nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from seekling.errors import SeeklingError
from seekling.learn.local import LocalLearner
from seekling.learn.lora import save_adapter
from seekling.learn.pack import PackedRow
from seekling.models.lazy_weights import Adapters
from seekling.models.load import Device, Dtype, load_model, pick_device, pick_dtype
from seekling.scale.state import load_state, save_state

T = TypeVar("T")
_SCORE = "score_row"


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """What every rank makes its part of; see `LocalLearner`."""

    model_dir: Path
    """On a disk that all ranks see."""
    dtype: Dtype = "float32"
    """Of the forward pass; weights and moments are kept in float32."""
    device: Device = "cpu"
    lora_rank: int = 0
    lora_alpha: int = 32
    seed: int = 0
    weight_decay: float = 0.0
    row_tokens: int = 1024
    max_grad_norm: float = 1.0
    checkpoint_layers: bool = False


class RankLearner(LocalLearner):
    """A rank's part of a learner: the `LocalLearner` with its weights divided among all ranks, the mesh."""

    def __init__(self, spec: LearnerSpec, mesh: DeviceMesh) -> None:
        self._spec, self._mesh = spec, mesh
        half = pick_dtype(spec.dtype, pick_device(spec.device)) == "bfloat16"
        self._dtype = torch.bfloat16 if half else torch.float32
        super().__init__(
            load_model(spec.model_dir, dtype="float32"),  # each layer goes to its device when it is divided
            lora_rank=spec.lora_rank,
            lora_alpha=spec.lora_alpha,
            seed=spec.seed,
            weight_decay=spec.weight_decay,
            row_tokens=spec.row_tokens,
            max_grad_norm=spec.max_grad_norm,
            checkpoint_layers=spec.checkpoint_layers,
        )

    def _place(self, model: PreTrainedModel) -> None:
        """Divide a model's weights among the ranks, layer by layer; the rest are gathered for a whole row."""
        # Inputs stay as they are: rotary angles need all their digits.
        policy = MixedPrecisionPolicy(self._dtype, torch.float32, cast_forward_inputs=False)
        for module in (*model.get_decoder().layers, model):
            # The outermost too: what stays gathered after a pass without gradients is stale after the next step.
            sharded = fully_shard(module, mesh=self._mesh, mp_policy=policy, reshard_after_forward=True)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        # Decoder and head run apart: their weights are gathered around both, and not around a forward pass.
        setattr(model, _SCORE, partial(super()._score, model))
        register_fsdp_forward_method(model, _SCORE)

    def _score(self, model: PreTrainedModel, row: PackedRow) -> tuple[Tensor, Tensor]:
        return cast("Callable[[PackedRow], tuple[Tensor, Tensor]]", getattr(model, _SCORE))(row)

    def _each_row(self, rows: Sequence[PackedRow], work: Callable[[PackedRow, float], T]) -> list[T]:
        """Do the rows that are this rank's; returns what all ranks found."""
        turns = divide_rows([len(row.token_ids_N) for row in rows], self._mesh.size())
        mine: dict[int, T] = {}
        for turn in turns:
            index, is_own = turn[self._mesh.get_local_rank()]
            found = work(rows[index], float(is_own))
            if is_own:
                mine[index] = found
        theirs: list[dict[int, T]] = [{} for _ in range(self._mesh.size())]
        dist.all_gather_object(theirs, mine)
        found_by_index = {index: found for each in theirs for index, found in each.items()}
        return [found_by_index[index] for index in range(len(rows))]

    def _gradient_norm(self) -> Tensor:
        return _whole(super()._gradient_norm())

    def export_weights(self) -> Mapping[str, Tensor]:
        """See `LocalLearner.export_weights`; gathered from all ranks, copies in the processor's memory."""
        return self._gathered(super().export_weights())

    def adapters(self) -> Adapters | None:
        """See `LocalLearner.adapters`; as `export_weights`, but in all digits."""
        found = super().adapters()
        return found and replace(found, tensors={n: _whole(each.detach()).cpu() for n, each in found.tensors.items()})

    def base_weights(self) -> Mapping[str, Tensor]:
        """See `LocalLearner.base_weights`; as `export_weights`."""
        return self._gathered(super().base_weights())

    def _gathered(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: _whole(weights[name].detach()).to("cpu", self._dtype) for name in weights}

    def save_adapter(self, folder: Path, *, base_model: str) -> None:
        """See `LocalLearner.save_adapter`; the first rank writes."""
        if self._adapted is None:
            super().save_adapter(folder, base_model=base_model)
        weights = {f"base_model.model.{name}": _whole(value.detach()).cpu() for name, value in self._trained.items()}
        if self._mesh.get_local_rank() == 0:
            assert self._adapted is not None
            save_adapter(self._adapted, folder, base_model=base_model, weights=weights)

    def keep_reference(self, folder: Path | None = None) -> None:
        """See `Learner.keep_reference`; the copy is divided too."""
        super().keep_reference(folder)
        if self._reference is not None:
            self._place(self._reference)

    def _load(self, folder: Path) -> PreTrainedModel:
        return load_model(folder, dtype="float32")

    @torch.no_grad()
    def _copy_policy(self) -> PreTrainedModel:
        weights, made = self.export_weights(), self._load(self._spec.model_dir)
        for name, parameter in made.named_parameters():
            parameter.copy_(weights[name])
        return made

    def save(self, folder: Path) -> None:
        """Write what training goes on from; each rank its part."""
        save_state(self, folder)

    def load(self, folder: Path) -> None:
        """Read what any number of ranks saved."""
        load_state(self, folder)


def _returning_errors(method: Callable[..., object]) -> Callable[..., object]:
    """A method that returns the errors that are its user's: they are no failure of the process that it runs in."""

    @wraps(method)
    def tried(*args: object, **kwargs: object) -> object:
        try:
            return method(*args, **kwargs)
        except SeeklingError as error:
            return error

    return tried


class Rank:
    """A process's place among the ranks, and the learners that it has a part of: what an actor is made of.

    Args:
        number: 0 and up.
        num_ranks: of all.
        device: where the weights are.
        timeout_s: so long it waits for the others.
    """

    def __init__(self, number: int, num_ranks: int, device: Device, timeout_s: float) -> None:
        self._number, self._num_ranks, self._device, self._timeout_s = number, num_ranks, device, timeout_s
        self._learners: dict[int, RankLearner] = {}

    def place(self) -> tuple[int, str]:
        """Its process id, and a free port of its machine where the others can meet it, as host:port."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            return os.getpid(), f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"

    @_returning_errors
    def join(self, address: str) -> None:
        """Meet the other ranks at the place of the first one."""
        self._device = pick_device(self._device)
        backend = "cpu:gloo,cuda:nccl" if self._device == "cuda" else "gloo"
        limit = timedelta(seconds=self._timeout_s)
        dist.init_process_group(
            backend, f"tcp://{address}", rank=self._number, world_size=self._num_ranks, timeout=limit
        )

    @_returning_errors
    def open(self, key: int, spec: LearnerSpec) -> None:
        """Make this rank's part of a learner."""
        self._learners[key] = RankLearner(spec, init_device_mesh(self._device, (self._num_ranks,)))

    def drop(self, key: int) -> None:
        """Give a learner's memory back."""
        self._learners.pop(key).close()

    @_returning_errors
    def run(self, key: int, name: str, *args: object, **kwargs: object) -> object:
        """Call a method of a learner, or read a property; what all ranks find, the first one says."""
        found = getattr(self._learners[key], name)
        result: object = found(*args, **kwargs) if callable(found) else found
        return result if self._number == 0 else None


def divide_rows(num_tokens: Sequence[int], num_ranks: int) -> list[list[tuple[int, bool]]]:
    """Who learns which row when: rows of like length at the same time, since all wait for the longest.

    Returns:
        For each turn and rank, the index of a row and whether it counts; those that count are all rows, each once.
    """
    order = sorted(range(len(num_tokens)), key=lambda index: -num_tokens[index])
    turns: list[list[tuple[int, bool]]] = []
    for start in range(0, len(order), num_ranks):
        own = order[start : start + num_ranks]
        idle = [(order[-1], False)] * (num_ranks - len(own))
        turn = [*((index, True) for index in own), *idle]
        turns.append(turn[::-1] if len(turns) % 2 else turn)
    return turns


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
