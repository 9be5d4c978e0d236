"""Training states that any number of processes write and any other number reads: torch's distributed checkpoint (DCP).

Tensors go by their parameters' names, whole ones and divided ones alike, so a learner in one process reads what two
ranks wrote. The rest is a JSON file beside them. torch's own parts are imported where they are used: runs in one
process name this module too, and need none of them.
"""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from seekling.errors import DataError
from seekling.learn.checkpoint import WEIGHTS, LocalCheckpoint
from seekling.learn.learner import Learner
from seekling.learn.trained import TrainedModel, TrainingState

STATE = "policy.dcp"
"""Folder of a training state that holds tensors."""
_SETTINGS = "settings.json"
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, pickle.UnpicklingError)


def save_state(model: TrainedModel, folder: Path, *, writes_settings: bool = True) -> None:
    """Write a model's training state; called by all ranks that have a part of it.

    Args:
        model: whole, or a rank's part.
        folder: of the state; exists, on a disk that all ranks see.
        writes_settings: one of them does.
    """
    import torch.distributed.checkpoint as dcp

    state = model.state()
    names, optimizer = list(state["masters"]), state["optimizer"]
    kept = {names[number]: moments for number, moments in optimizer["state"].items()}
    tensors = {f"weight.{name}": value for name, value in state["masters"].items()}
    tensors |= {f"{kind}.{name}": value for name, moments in kept.items() for kind, value in moments.items()}
    tensors |= {f"reference.{name}": value for name, value in state.get("reference", {}).items()}
    if writes_settings:
        settings = {
            "shapes": {name: list(value.shape) for name, value in state["masters"].items()},
            "moments": {name: sorted(moments) for name, moments in kept.items()},
            "reference": list(state["reference"]) if "reference" in state else None,
            "groups": optimizer["param_groups"],
            "num_steps": state["num_steps"],
            "num_skipped": state.get("num_skipped", 0),
        }
        (folder / STATE).mkdir(exist_ok=True)
        (folder / STATE / _SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(tensors, checkpoint_id=folder / STATE)


def load_state(model: TrainedModel, folder: Path) -> None:
    """Read what `save_state` or `LocalCheckpoint` wrote; called by all ranks that have a part of the model.

    Raises:
        DataError: it is missing, damaged, or of another model. Nothing has changed.
    """
    from torch.distributed.checkpoint import CheckpointException

    is_local = (folder / WEIGHTS).exists() and not (folder / STATE).exists()
    path = folder / (WEIGHTS if is_local else STATE)
    try:
        state = _read_whole(model, path) if is_local else _read(model, path)
        is_ours = state is not None and model.fits(state)
    except (*_UNREADABLE, CheckpointException) as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise DataError(f"{path} is not a readable training state ({reason}); delete it to start over") from None
    if state is None or not is_ours:
        raise DataError(f"{path} is the training state of another model or adapter; delete it to start over")
    model.take_state(state)


def _read(model: TrainedModel, path: Path) -> TrainingState | None:
    """A state in new tensors; None: of another model."""
    import torch.distributed.checkpoint as dcp

    settings: dict[str, Any] = json.loads((path / _SETTINGS).read_text(encoding="utf-8"))
    masters = model.state()["masters"]
    if settings["shapes"] != {name: list(value.shape) for name, value in masters.items()}:
        return None
    found = {f"weight.{name}": torch.empty_like(value) for name, value in masters.items()}
    found |= {
        f"{kind}.{name}": torch.zeros((), device=model.device) if kind == "step" else torch.empty_like(masters[name])
        for name, kinds in settings["moments"].items()
        for kind in kinds
    }
    found |= {f"reference.{name}": torch.empty_like(masters[name]) for name in settings["reference"] or ()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(found, checkpoint_id=path)
    moments: dict[int, dict[str, Tensor]] = {
        number: {kind: found[f"{kind}.{name}"] for kind in settings["moments"][name]}
        for number, name in enumerate(masters)
        if name in settings["moments"]
    }
    state: TrainingState = {
        "masters": {name: found[f"weight.{name}"] for name in masters},
        "optimizer": {"state": moments, "param_groups": settings["groups"]},
        "num_steps": int(settings["num_steps"]),
        "num_skipped": int(settings["num_skipped"]),
    }
    if settings["reference"] is not None:
        state["reference"] = {name: found[f"reference.{name}"] for name in settings["reference"]}
    return state


def _read_whole(model: TrainedModel, path: Path) -> TrainingState | None:
    """The same of a file that one process wrote: each rank reads all of it and keeps its part."""
    state: TrainingState = torch.load(path, map_location="cpu", weights_only=True)
    masters = model.state()["masters"]
    if not model.fits(state):
        return None
    for number, name in enumerate(masters):
        moments = state["optimizer"]["state"].get(number, {})
        moments |= {kind: _part(value, masters[name]) for kind, value in moments.items() if kind != "step"}
    for each in (state["masters"], state.get("reference", {})):
        each |= {name: _part(value, masters[name]) for name, value in each.items()}
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
