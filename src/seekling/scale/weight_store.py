"""Versions of the policy's weights in a folder that every sampler can read: written whole or not at all, and checked.

Each version has a folder of its own, named by a number that only rises: a policy version may be published twice with
other weights (after a crash), a number never is. A folder appears under its name when all of it is
written; its marker, written last, says what must be in it.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from seekling.errors import InfrastructureError
from seekling.files import remove_leftovers, replacing

WEIGHTS, MARKER = "weights.safetensors", "complete.blake2b"
TRIES, PAUSE_S = 10, 1.0
"""A network file system may show a folder's name before its content."""


class WeightStore:
    """The versions in one folder, which belongs to one run; it is made when it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, weights: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> int:
        """Add a version of weights, by the names of the plain transformers model, rounded to `dtype` if there is one.

        Returns:
            Its number, higher than any that is there.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        number = max(self._numbers(), default=0) + 1
        with replacing(self._path(number)) as folder:
            folder.mkdir()
            tensors = {name: each.detach().to(device="cpu", dtype=dtype).contiguous() for name, each in weights.items()}
            save_file(tensors, folder / WEIGHTS)
            (folder / MARKER).write_text(_digest(folder / WEIGHTS), encoding="ascii")
        return number

    def read(self, number: int) -> dict[str, Tensor]:
        """The weights of a version; an InfrastructureError where it is missing or damaged, also after some seconds."""
        folder = self._path(number)
        for _ in range(TRIES):
            try:
                if _digest(folder / WEIGHTS) == (folder / MARKER).read_text(encoding="ascii"):
                    return load_file(folder / WEIGHTS)
                problem = "another checksum"
            except (OSError, SafetensorError) as error:
                problem = str(error)
            time.sleep(PAUSE_S)
        raise InfrastructureError(
            f"{folder} does not hold the weights that were written there ({problem}); scale.weights_dir must be one "
            "folder that every machine of the cluster sees"
        )

    def prune(self, keep: int = 2) -> None:
        """Remove all but the newest versions."""
        for number in self._numbers()[:-keep]:
            shutil.rmtree(self._path(number), ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder with all that is in it: a run that is over needs none."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
