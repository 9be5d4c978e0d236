"""The folder in which an index is built: beside its place, held by one process, kept when the build can be resumed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from seekling.errors import DataError, IndexMismatchError, InfrastructureError
from seekling.files import move_over
from seekling.retrieval.index_record import RECORD_NAME

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def building_folder(out: Path) -> Iterator[tuple[Path, Path | None]]:
    """A new folder for a build, and what an interrupted one has left: hidden folders beside `out`.

    After Ctrl-C, a failing server or the death of the process they stay, and the next build finds them; after any other
    error, and after success, they are gone.

    Yields:
        (the empty folder to build in, the folder of an interrupted build or None).

    Raises:
        IndexMismatchError: another process is building there.
        DataError: the disk is full, or the place cannot be written to.
    """
    building, partial = out.parent / f".{out.name}.building", out.parent / f".{out.name}.partial"
    is_resumable = False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if building.exists():
            with _held(building, out):
                # A build that ended before it took over the vectors of the one before it is worth less than that.
                if partial.exists() and not any(building.glob("vectors*")):
                    shutil.rmtree(building)
                else:
                    shutil.rmtree(partial, ignore_errors=True)
                    os.rename(building, partial)
        try:
            building.mkdir()
        except FileExistsError:
            raise _HeldElsewhereError(out) from None
        with _held(building, out):
            yield building, partial if partial.exists() else None
    except (KeyboardInterrupt, InfrastructureError):
        is_resumable = True
        raise
    except OSError as error:
        raise DataError(
            f"cannot write the index {out}: {error.strerror or error}; expected room for about three times the corpus; "
            "free some, or choose another place with --out (nothing was left behind)"
        ) from error
    except _HeldElsewhereError:
        is_resumable = True  # by its holder: not ours to remove
        raise IndexMismatchError(
            f"another process is building {out}; wait for it to end, or choose another --out"
        ) from None
    finally:
        if not is_resumable:
            shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)


def move_into_place(building: Path, out: Path) -> None:
    """Rename a finished index to its place; the old one, if any, goes away only after that.

    An old one that cannot be removed, such as one whose files are open on a network disk, is warned of: the new index
    stands.
    """
    if not (out / RECORD_NAME).exists():
        os.rename(building, out)
        return
    old = out.parent / f".{out.name}.old{time.time_ns()}"
    move_over(out, building, aside=old)
    _remove_moved(out)
    if old.exists():
        _LOG.warning("%s: the index that was replaced could not be removed whole; remove that folder", old)


def restore_moved(out: Path) -> None:
    """Put the old index back that a process was replacing when it died between the two renames."""
    moved = _moved(out)
    if moved and not out.exists():
        os.rename(moved[-1], out)
    _remove_moved(out)


def restore_abandoned(out: Path) -> None:
    """As `restore_moved`, for whoever only reads: a living process that is between its two renames is waited for."""
    for _ in range(100):
        if out.exists() or not _moved(out):
            return
        try:
            with _held(out.parent / f".{out.name}.building", out):
                break
        except _HeldElsewhereError:
            time.sleep(0.05)
        except FileNotFoundError:
            break
    else:
        return
    with contextlib.suppress(OSError):  # another reader was faster, or the place is not ours to write to
        restore_moved(out)


def _moved(out: Path) -> list[Path]:
    """What was moved out of an index's place and is still there, the newest last."""
    start = f".{out.name}.old"
    numbers = {path: path.name.removeprefix(start) or "0" for path in out.parent.glob(f"{glob.escape(start)}*")}
    return sorted((path for path, number in numbers.items() if number.isdecimal()), key=lambda path: int(numbers[path]))


def _remove_moved(out: Path) -> None:
    for path in _moved(out):
        shutil.rmtree(path, ignore_errors=True)


class _HeldElsewhereError(Exception):
    """The folder is locked by a living process."""


@contextlib.contextmanager
def _held(folder: Path, out: Path) -> Iterator[None]:
    """Lock a folder; the lock goes with the process, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _HeldElsewhereError(out) from None
        yield
    finally:
        os.close(handle)
