"""Files and folders written whole or not at all: a reader never meets half of one, whatever interrupts the writing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ENDING = ".tmp"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Hand out a hidden name beside a path; what is written there, a file or a folder, then takes the path's place.

    When the block fails the old content stays and the hidden one goes. The folder around it is made when it is missing.
    What is left of an old folder that cannot be removed stays under a hidden name, for `remove_leftovers`.

    Raises:
        OSError: the folder around it cannot be made, or the new content cannot take its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_ENDING}")
    try:
        yield temporary
        if path.is_dir():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=f".{os.getpid()}{_ENDING}", dir=path.parent))
            try:
                move_over(path, temporary, aside=old)
            finally:
                _remove(old)
        else:
            os.replace(temporary, path)
    finally:
        _remove(temporary)


def move_over(path: Path, new: Path, *, aside: Path) -> None:
    """Give a folder's place to a new one, and move the old one aside, where nothing or an empty folder is.

    Raises:
        OSError: one of them cannot be moved; the old one is back in its place.
    """
    os.replace(path, aside)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(aside, path)
        raise


@contextlib.contextmanager
def sole_process(folder: Path) -> Iterator[None]:
    """Hold a folder, which exists, for this process alone; the hold ends with the process, however that ends.

    It is a POSIX record lock on `.lock`: forked children do not inherit it, so none keeps it for a dead parent.

    Raises:
        BlockingIOError: another living process holds it.
        OSError: the folder cannot be written to.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the name of the error is the system's choice
            raise BlockingIOError(f"{folder} is held by another process") from None
        yield


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name; where the disk cannot, copy it. It is for files that are replaced, not changed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content as a whole, in UTF-8; its folder is made when it is missing.

    Raises:
        OSError: the folder cannot be made, or the file cannot be written.
        UnicodeEncodeError: the text holds a lone surrogate.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_appended(path: Path) -> list[str]:
    """All lines of a file that is only ever appended to, damaged and empty ones too; none of a missing one.

    A last line that a kill cut short is ended on disk, so that it swallows none of those that are appended from now on.
    """
    if not path.is_file():
        return []
    raw = path.read_bytes()
    if raw and not raw.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    return raw.decode("utf-8", errors="replace").split("\n")


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while writing left in a folder; what a running one writes stays."""
    for path in folder.glob(f".*{_ENDING}"):
        writer = path.name.split(".")[-2]
        if writer.isdecimal() and not _is_running(int(writer)):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()
