"""Content hashes: equal hashes mean the same pages, whatever file or format they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from seekling.types import Document


def corpus_hash(documents: Iterable[Document]) -> str:
    """Hash a corpus while it streams by.

    The order of the documents counts: an index ranks equal scores by position, so the same pages in another order make
    another index. Readers give the documents of a file or folder always in the same order.

    Args:
        documents: any iterable; read once, nothing is kept.

    Returns:
        SHA-256 over id, title and content of each document, 64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for document in documents:
        for text in (document.id, document.title, document.content):
            data = text.encode("utf-8")
            # The length in front keeps ("ab", "c") apart from ("a", "bc").
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()
