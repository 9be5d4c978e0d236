"""Content hashes: equal hashes mean the same pages, whatever file or format they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from seekling.types import Document


def corpus_hash(documents: Iterable[Document]) -> str:
    """Hash a corpus while it streams by: SHA-256 over id, title and content of each document.

    The order of the documents counts: an index ranks equal scores by position, so the same pages in another order make
    another index. Readers give the documents of a file or folder always in the same order.
    """
    digest = hashlib.sha256()
    for document in documents:
        _update(digest, document.id, document.title, document.content)
    return digest.hexdigest()


class MetadataHash:
    """Hashes the columns of documents as they stream by; one column more, renamed or changed makes another hash."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, metadata: Mapping[str, str]) -> None:
        """Take in the columns of the next document."""
        _update(self._digest, str(len(metadata)), *(text for pair in metadata.items() for text in pair))

    def value(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()


def text_digest(*texts: str) -> str:
    """A short hash of texts, the same on every machine: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    _update(digest, *texts)
    return digest.hexdigest()


def _update(digest: hashlib._Hash | hashlib.blake2b, *texts: str) -> None:
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        # The length in front keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
