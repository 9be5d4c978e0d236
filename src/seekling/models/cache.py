"""A folder of finished models that survives a crash at any point.

An entry is built in a hidden folder beside its final name, gets a marker that lists the size of every file, and is then
renamed into place. An entry whose marker or files are not as listed is built anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seekling.errors import ModelError
from seekling.files import remove_leftovers, replacing

MARKER = "seekling.json"


def cache_home() -> Path:
    """The folder for everything that can be made again: `$SEEKLING_HOME`, else `~/.cache/seekling`."""
    named = os.environ.get("SEEKLING_HOME")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "seekling"


def models_folder() -> Path:
    """Return the folder whose entries are finished models."""
    return cache_home() / "models"


def is_complete(entry: Path) -> bool:
    """Tell whether an entry has its marker and every file that the marker lists, at its listed size."""
    try:
        files = json.loads((entry / MARKER).read_text(encoding="utf-8"))["files"]
        return all((entry / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def cached_or_built(name: str, build: Callable[[Path], dict[str, str]], *, log: Callable[[str], None]) -> Path:
    """Return the complete entry of this name, building it first when there is none.

    The name must change whenever `build` would write something else. `build` fills an empty folder and returns facts
    for the marker; `log` is told when a half-written entry is found.

    Raises:
        ModelError: the cache folder cannot be written; or whatever `build` raises, with nothing left behind.
    """
    entry = models_folder() / name
    if is_complete(entry):
        return entry
    with _only_builder(entry.parent):
        if is_complete(entry):  # another process finished it while we waited
            return entry
        if entry.exists():
            log(f"the cached model {entry} is half-written or damaged; building it again")
        _build(entry, build)
    return entry


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache {folder}: {error.strerror}; set SEEKLING_HOME to a folder you can write to"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(entry: Path, build: Callable[[Path], dict[str, str]]) -> None:
    remove_leftovers(entry.parent)
    try:
        with replacing(entry) as folder:
            folder.mkdir()
            facts = build(folder)
            files = [file for file in folder.rglob("*") if file.is_file()]
            sizes = {str(file.relative_to(folder)): file.stat().st_size for file in files}
            (folder / MARKER).write_text(json.dumps({**facts, "files": sizes}, indent=2) + "\n", encoding="utf-8")
            for file in files:  # safetensors makes them private; a cache may be shared
                file.chmod(0o644)
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache {entry}: {error}; free some disk space or set SEEKLING_HOME"
        ) from error
