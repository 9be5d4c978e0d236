"""Versions of the policy's weights in a folder that every sampler can read: written whole or not at all, and checked.

Each version has a folder of its own, named by a number that only rises: a policy version may be published twice with
other weights (after a crash), a number never is. A folder appears under its name when all of it is
written; its marker, written last, says what must be in it.

Of a policy whose adapters alone train, a version is these: low-rank factors with the number of the version that they
are added to, which is written once and read once by each sampler.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seekling.errors import InfrastructureError
from seekling.files import remove_leftovers, replacing
from seekling.models.lazy_weights import Adapters

WEIGHTS, MARKER = "weights.safetensors", "complete.blake2b"
TRIES, PAUSE_S = 10, 1.0
"""A network file system may show a folder's name before its content."""


class WeightStore:
    """The versions in one folder, which belongs to one run; it is made when it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base_of: dict[int, int] = {}
        """Of versions that are adapters, and that this process wrote."""
        self._base: tuple[int, Mapping[str, Tensor]] | None = None
        """The one that was read last."""

    def write(self, weights: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> int:
        """Add a version of weights, by the names of the plain transformers model, rounded to `dtype` if there is one.

        Returns:
            Its number, higher than any that is there.
        """
        return self._write({name: each.to(dtype=dtype) for name, each in weights.items()}, {})

    def write_adapters(self, adapters: Adapters, *, base: int) -> int:
        """Add a version that is another one with adapters; returns its number as `write` does."""
        about = {"base": str(base), "rank": str(adapters.rank), "alpha": str(adapters.alpha)}
        number = self._write(adapters.tensors, about)
        self._base_of[number] = base
        return number

    def _write(self, weights: Mapping[str, Tensor], about: dict[str, str]) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        number = max(self._numbers(), default=0) + 1
        with replacing(self._path(number)) as folder:
            folder.mkdir()
            tensors = {name: each.detach().cpu().contiguous() for name, each in weights.items()}
            save_file(tensors, folder / WEIGHTS, about)
            (folder / MARKER).write_text(_digest(folder / WEIGHTS), encoding="ascii")
        return number

    def read(self, number: int) -> Mapping[str, Tensor]:
        """The weights of a version; an InfrastructureError where it is missing or damaged, also after some seconds."""
        tensors, about = self._read(number)
        if "base" not in about:
            return tensors
        base = int(about["base"])
        if self._base is None or self._base[0] != base:
            self._base = base, self._read(base)[0]
        return Adapters(int(about["rank"]), int(about["alpha"]), tensors).merged(self._base[1])

    def _read(self, number: int) -> tuple[dict[str, Tensor], dict[str, str]]:
        folder = self._path(number)
        for _ in range(TRIES):
            try:
                if _digest(folder / WEIGHTS) == (folder / MARKER).read_text(encoding="ascii"):
                    with safe_open(folder / WEIGHTS, "pt") as file:
                        return load_file(folder / WEIGHTS), dict(file.metadata() or {})
                problem = "another checksum"
            except (OSError, SafetensorError) as error:
                problem = str(error)
            time.sleep(PAUSE_S)
        raise InfrastructureError(
            f"{folder} does not hold the weights that were written there ({problem}); scale.weights_dir must be one "
            "folder that every machine of the cluster sees"
        )

    def num_bytes(self, number: int) -> int:
        """Size of a version, without what its adapters are added to."""
        return (self._path(number) / WEIGHTS).stat().st_size

    def prune(self, keep: int = 2) -> None:
        """Remove all but the newest versions, what these are added to, and the newest that any is added to."""
        numbers = self._numbers()
        kept = [each for each in numbers if each not in self._base_of.values()][-keep:]
        bases = {self._base_of.get(each, 0) for each in kept} | {max(self._base_of.values(), default=0)}
        for number in {*numbers} - bases - {*kept}:
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
