"""Weights of this process in folders: one file of torch to go on from, and directories that everybody loads."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import safetensors.torch
import torch
from torch import Tensor

from seekling.errors import DataError
from seekling.files import replacing
from seekling.learn.learner import Learner
from seekling.learn.local import LocalLearner
from seekling.models import load_tokenizer
from seekling.models.lazy_weights import Adapters

WEIGHTS = "policy.pt"
"""File of a training state that holds the policy's weights and its optimizer."""
_UNREADABLE = (
    OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError, AttributeError, pickle.UnpicklingError
)  # fmt: skip


@runtime_checkable
class GivesWeights(Protocol):
    """A learner whose weights can be had in this process."""

    def export_weights(self) -> Mapping[str, Tensor]:
        """The policy's weights by the names of the plain transformers model, adapters merged."""
        ...

    def adapters(self) -> Adapters | None:
        """The policy's low-rank adapters alone; None where all weights train."""
        ...

    def base_weights(self) -> Mapping[str, Tensor]:
        """What the adapters are added to, by the same names as the policy's weights; it never changes."""
        ...

    def save_adapter(self, folder: Path, *, base_model: str) -> None:
        """Write the low-rank adapters alone; see `Checkpoint.export_adapter`."""
        ...


class LocalCheckpoint:
    """A `Checkpoint` of a `LocalLearner`; exports every learner that gives its weights."""

    def save(self, learner: Learner, folder: Path) -> None:
        """See `Checkpoint.save`."""
        with replacing(folder / WEIGHTS) as temporary:
            torch.save(_local(learner).state(), temporary)

    def load(self, learner: Learner, folder: Path) -> None:
        """See `Checkpoint.load`."""
        local, path = _local(learner), folder / WEIGHTS
        try:
            state = torch.load(path, map_location=local.device, weights_only=True)
            is_ours = local.fits(state)
        except _UNREADABLE as error:
            raise DataError(f"{path} is not a readable training state ({error}); delete it to start over") from None
        if not is_ours:
            raise DataError(f"{path} is the training state of another model or adapter; delete it to start over")
        local.take_state(state)

    def export(self, learner: Learner, folder: Path, *, base: Path) -> None:
        """See `Checkpoint.export`."""
        with replacing(folder) as building:
            building.mkdir()
            for name in ("config.json", "generation_config.json"):
                if (base / name).exists():
                    shutil.copy(base / name, building / name)
            weights = {
                name: tensor.detach().cpu().contiguous() for name, tensor in giving(learner).export_weights().items()
            }
            safetensors.torch.save_file(weights, building / "model.safetensors", metadata={"format": "pt"})
            config = json.loads((building / "config.json").read_text(encoding="utf-8"))
            config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
            (building / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            load_tokenizer(base).save_pretrained(str(building))

    def export_adapter(self, learner: Learner, folder: Path, *, base: Path, base_name: str) -> None:
        """See `Checkpoint.export_adapter`."""
        with replacing(folder) as building:
            giving(learner).save_adapter(building, base_model=base_name)
            load_tokenizer(base).save_pretrained(str(building))


def giving(learner: Learner) -> GivesWeights:
    """The learner, as one that gives its weights."""
    assert isinstance(learner, GivesWeights), f"{type(learner).__name__} has its weights elsewhere"
    return learner


def _local(learner: Learner) -> LocalLearner:
    assert isinstance(learner, LocalLearner), f"{type(learner).__name__} has its weights elsewhere"
    return learner
