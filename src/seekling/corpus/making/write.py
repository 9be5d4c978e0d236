"""What all rules share: a question's form, the spellings of its answer, and draws that depend on names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from seekling.corpus.making.facts import without_article
from seekling.corpus.making.language import Language
from seekling.types import Hop, Question

SOURCE = "made"
"""Data set name of made questions."""


def write_question(
    text: str, answers: Sequence[str], hops: tuple[Hop, ...], kind: str, labels: tuple[str, ...]
) -> Question:
    """A question about the pages of its hops, with an id that is a function of text, answers and pages."""
    pages = tuple(dict.fromkeys(hop.document_id for hop in hops))
    digest = hashlib.sha256(repr((text, answers, pages)).encode("utf-8", "replace")).hexdigest()[:10]
    return Question(f"{kind[:2]}-{digest}", text, tuple(answers), pages, kind, SOURCE, hops, labels)


def spellings(answer: str, language: Language) -> tuple[str, ...]:
    """An answer, and the same without its article."""
    return tuple(dict.fromkeys(filter(None, (answer, without_article(answer, language)))))


def draw(*names: str) -> float:
    """A number in [0, 1) that is a function of names alone."""
    digest = hashlib.sha256(repr(names).encode("utf-8", "replace")).digest()
    return float(int.from_bytes(digest[:8], "big") / 2**64)
