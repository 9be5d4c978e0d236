"""Training states that any number of processes write and any other number reads: torch's distributed checkpoint (DCP).

Whole tensors and divided ones have the same names in it, so a learner in one process reads what two ranks wrote. What
needs torch.distributed imports it late: runs in one process name this module too.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from seekling.errors import DataError
from seekling.learn.checkpoint import WEIGHTS, LocalCheckpoint
from seekling.learn.learner import Learner
from seekling.learn.trained import TrainedModel, TrainingState

STATE = "policy.dcp"
"""Folder of a training state; `WEIGHTS` is the file that one process keeps instead."""
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError)


def save_state(model: TrainedModel, folder: Path) -> None:
    """Write a training state into a folder; all ranks that have a part of the model do so together."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(cast("dict[str, Any]", model.state()), checkpoint_id=folder / STATE)


def load_state(model: TrainedModel, folder: Path) -> None:
    """Read what `save_state` or `LocalCheckpoint` wrote; all ranks that have a part of the model do so together.

    Raises:
        DataError: it is missing, damaged, or of another model. Nothing has changed.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    is_file = (folder / WEIGHTS).exists() and not (folder / STATE).exists()
    path = folder / (WEIGHTS if is_file else STATE)
    try:
        state = _read_file(model, path) if is_file else _read(model, path)
    except (*_UNREADABLE, CheckpointException) as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise DataError(f"{path} is not a readable training state ({reason}); delete it to start over") from None
    if state is None:
        raise DataError(f"{path} is the training state of another model or adapter; delete it to start over")
    model.take_state(state)


def _read(model: TrainedModel, path: Path) -> TrainingState | None:
    """A state in new tensors; None: of another model."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    masters, optimizer = model.state()["masters"], model.state()["optimizer"]
    known: dict[str, Any] = FileSystemReader(path).read_metadata().state_dict_metadata
    shapes = {name: each.size for name, each in known.items() if name.startswith("masters.")}
    if shapes != {f"masters.{name}": value.shape for name, value in masters.items()}:
        return None
    state: TrainingState = {
        "masters": {name: torch.empty_like(value) for name, value in masters.items()},
        "optimizer": {"state": {}, "param_groups": optimizer["param_groups"]},
        "num_steps": 0,
        "num_skipped": 0,
    }
    for number, value in enumerate(masters.values()):
        kinds = [name.rpartition(".")[2] for name in known if name.startswith(f"optimizer.state.{number}.")]
        if kinds:
            like = {"step": torch.zeros((), device=model.device)}
            state["optimizer"]["state"][number] = {kind: torch.empty_like(like.get(kind, value)) for kind in kinds}
    if any(name.startswith("reference.") for name in known):
        state["reference"] = {name: torch.empty_like(value) for name, value in masters.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(cast("dict[str, Any]", state), checkpoint_id=path)
    return state


def _read_file(model: TrainedModel, path: Path) -> TrainingState | None:
    """The same of a file: each rank reads all of it and keeps its part."""
    state: TrainingState = torch.load(path, map_location="cpu", weights_only=True)
    if not model.fits(state):
        return None
    masters = model.state()["masters"]
    for number, name in enumerate(masters):
        moments = state["optimizer"]["state"].get(number, {})
        moments |= {kind: _part(value, masters[name]) for kind, value in moments.items() if kind != "step"}
    for kept in (state["masters"], state.get("reference", {})):
        kept |= {name: _part(value, masters[name]) for name, value in kept.items()}
    return state


def _part(value: Tensor, like: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@runtime_checkable
class _KeepsItself(Protocol):
    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


class AnyCheckpoint(LocalCheckpoint):
    """A `Checkpoint` of a learner in one process or several; each goes on from the other's states."""

    def save(self, learner: Learner, folder: Path) -> None:
        """See `Checkpoint.save`."""
        if isinstance(learner, _KeepsItself):
            learner.save(folder)
        else:
            super().save(learner, folder)

    def load(self, learner: Learner, folder: Path) -> None:
        """See `Checkpoint.load`."""
        if isinstance(learner, _KeepsItself):
            learner.load(folder)
        elif isinstance(learner, TrainedModel) and (folder / STATE).exists():
            load_state(learner, folder)
        else:
            super().load(learner, folder)
