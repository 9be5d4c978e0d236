"""Files written whole or not at all: a reader never meets half a file, whatever interrupts the writing."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content as a whole.

    The text goes to a hidden file beside it, which then takes its name; when the writing fails the old content stays
    and the hidden file goes.

    Args:
        path: the file; its folder is made when it is missing.
        text: all of it, written as UTF-8.

    Raises:
        OSError: the folder cannot be made, or the file cannot be written.
        UnicodeEncodeError: the text holds a lone surrogate.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
