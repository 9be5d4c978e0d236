"""What an earlier index, or an interrupted build, has already read: pages that need not be parsed again."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from seekling.corpus.readers import Source
from seekling.errors import IndexMismatchError
from seekling.retrieval.index_record import IndexRecord
from seekling.retrieval.store import DocumentStore, mend_documents
from seekling.types import Document, Json

_NOTE = "build.json"


class KnownPages:
    """Documents by the digest of the raw page that they were parsed from."""

    def __init__(self, stores: Sequence[DocumentStore] = ()) -> None:
        self._stores = stores

    def documents(self, sources: Iterator[Source]) -> Iterator[tuple[Document, str]]:
        """Each page as a document, parsed only where it is not known, with its digest."""
        for source in sources:
            yield self._find(source) or source.parse(), source.digest

    def _find(self, source: Source) -> Document | None:
        for store in self._stores if source.digest else ():
            row = store.row_of(source.id)
            if row is not None:
                document, digest = store.at(row)
                if digest == source.digest:
                    return document
        return None


def known_pages(readers: dict[str, str], index: tuple[Path, IndexRecord] | None, partial: Path | None) -> KnownPages:
    """What can be used again: documents of an index and of an interrupted build, where the same readers made them.

    Args:
        readers: as `describe_readers` has them now.
        index: folder and record of an index that is known to be whole.
        partial: the folder of an interrupted build.
    """
    stores = []
    if index is not None and index[1].readers == readers:
        stores.append(DocumentStore(index[0]))
    if partial is not None and _read_note(partial).get("readers") == readers:
        try:
            mend_documents(partial)
            stores.append(DocumentStore(partial))
        except (OSError, ValueError, IndexMismatchError):
            pass  # a machine that crashed may have lost any part of it; what cannot be used is read again
    return KnownPages(stores)


def write_note(building: Path, readers: dict[str, str], encoder: str) -> None:
    """Say in a build's folder what a later build must know to go on from it."""
    (building / _NOTE).write_text(json.dumps({"readers": readers, "encoder": encoder}), encoding="utf-8")


def remove_note(building: Path) -> None:
    """The build is complete."""
    (building / _NOTE).unlink()


def move_vectors(partial: Path, building: Path, encoder: str) -> None:
    """Take over the vectors of an interrupted build, if it had the same passages and the same note of its encoder.

    `build_dense` goes on after the last of them.
    """
    passages = partial / "passages.jsonl", building / "passages.jsonl"
    is_same = _read_note(partial).get("encoder") == encoder and passages[0].exists()
    if not is_same or not filecmp.cmp(*passages, shallow=False):
        return
    for path in partial.glob("vectors*"):
        path.replace(building / path.name)


def _read_note(partial: Path) -> dict[str, Json]:
    try:
        note = json.loads((partial / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}
