"""Documents and passages on disk, read one row at a time through a memory map.

A table is a file of JSON lines and an array of byte offsets, so that row n of a million is one slice of a map. Ids are
found through sorted 64-bit hashes. Nothing here loads a table into memory, neither when writing nor when reading.

Tables of an index: `documents` (id, title, content, digest of the raw page), `metadata` (id, title, then column and
value in turn) and `passages` (id, document id, title, text), with `passages.documents.npy` for the document of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType

import numpy as np

from seekling.errors import IndexMismatchError
from seekling.types import Document, Passage

PASSAGE_DOCUMENTS = "passages.documents.npy"


class TableWriter:
    """Appends rows of strings to `<name>.jsonl`; its end adds the offsets. Use as a context manager."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._file = (folder / f"{name}.jsonl").open("wb")
        self._offsets = array("q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, *cells: str) -> None:
        """Append one row."""
        line = json.dumps(cells, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
        self._file.write(line)
        self._offsets.append(self._offsets[-1] + len(line))

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        np.save(self._folder / f"{self._name}.offsets.npy", np.frombuffer(self._offsets, dtype=np.int64))


KEPT_PASSAGES = 4096
"""Passages that a store has read last, some megabytes: what is found once is found again in training."""


class Table:
    """Rows of strings, read lazily. Safe to share between threads."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.jsonl"
        self._offsets = load_array(folder / f"{name}.offsets.npy")
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if size != int(self._offsets[-1]):
                raise IndexMismatchError(f"{self._path} has {size} bytes, its offsets say {int(self._offsets[-1])}")
            # An empty file cannot be mapped.
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def row(self, position: int) -> list[str]:
        """The cells of one row; an IndexMismatchError when the bytes at its place are none."""
        line = self._bytes[int(self._offsets[position]) : int(self._offsets[position + 1])]
        try:
            cells = json.loads(line.decode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise IndexMismatchError(f"{self._path}: row {position} is damaged ({error}); rebuild the index") from None
        return [str(cell) for cell in cells]


class PassageStore:
    """The passages of an index, by position."""

    def __init__(self, folder: Path) -> None:
        self._table = Table(folder, "passages")
        self._kept = lru_cache(KEPT_PASSAGES)(partial(_passage, self._table))
        self.document_rows_N = load_array(folder / PASSAGE_DOCUMENTS)
        """(N,) int32: the row of each passage's document, ascending."""

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, position: int) -> Passage:
        return self._kept(position)

    def __iter__(self) -> Iterator[Passage]:
        return (_passage(self._table, position) for position in range(len(self)))


def _passage(table: Table, position: int) -> Passage:
    return Passage(*table.row(position))


class DocumentStore:
    """The documents of an index, by id."""

    def __init__(self, folder: Path) -> None:
        self._table = Table(folder, "documents")
        self._metadata = Table(folder, "metadata")
        self._keys = load_array(folder / "documents.keys.npy")
        self._rows = load_array(folder / "documents.rows.npy")

    def __len__(self) -> int:
        return len(self._table)

    def find(self, document_id: str) -> Document | None:
        """The document with exactly this id, or None."""
        row = self.row_of(document_id)
        return None if row is None else self.at(row)[0]

    def row_of(self, document_id: str) -> int | None:
        """The row of the document with exactly this id, or None."""
        key = id_key(document_id)
        place = int(np.searchsorted(self._keys, key))
        # Two ids may share a hash, so the id itself decides.
        while place < len(self._keys) and self._keys[place] == key:
            row = int(self._rows[place])
            if self._metadata.row(row)[0] == document_id:
                return row
            place += 1
        return None

    def at(self, row: int) -> tuple[Document, str]:
        """The document of a row, and the digest of the raw page that it was parsed from."""
        document_id, title, content, digest = self._table.row(row)
        pairs = self._metadata.row(row)[2:]
        return Document(document_id, title, content, dict(zip(pairs[::2], pairs[1::2], strict=True))), digest


class DocumentWriter:
    """Writes the documents of an index with what finds them. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys = array("Q")
        self._tables = contextlib.ExitStack()
        self._documents, self._metadata = (
            self._tables.enter_context(TableWriter(folder, name)) for name in ("documents", "metadata")
        )

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, document: Document, digest: str) -> None:
        """Append a document; `digest` is of the raw page that it was parsed from."""
        self._documents.add(document.id, document.title, document.content, digest)
        pairs = [cell for pair in document.metadata.items() for cell in pair]
        self._metadata.add(document.id, document.title, *pairs)
        self._keys.append(int(id_key(document.id)))

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tables.close()
        keys_N = np.frombuffer(self._keys, dtype=np.uint64)
        order_N = np.argsort(keys_N, kind="stable")
        np.save(self._folder / "documents.keys.npy", keys_N[order_N])
        np.save(self._folder / "documents.rows.npy", order_N.astype(np.int64))


def id_key(document_id: str) -> np.uint64:
    """A 64-bit hash of an id that is the same on every machine and in every process."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def new_array(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> np.memmap:
    """Make an .npy file and map it for writing, with all of its room on the disk taken first.

    A mapped file without its room would end the process by a signal when the disk is full, not by an OSError.
    """
    array_N: np.memmap = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        os.posix_fallocate(file.fileno(), 0, size)
    return array_N


def load_array(path: Path) -> np.ndarray:
    """Map an .npy file as a plain array (slices of np.memmap are slow), writable as a copy: torch takes no other.

    Raises:
        IndexMismatchError: the file is missing, cut or not an array.
    """
    try:
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise IndexMismatchError(f"{path} is missing or damaged ({error}); rebuild the index") from None
