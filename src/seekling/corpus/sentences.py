"""The sentences of a page, and the section that each stands in.

Headings, list items and table rows end a sentence as blank lines do. Abbreviations, initials and ordinal numbers
do not: where in doubt two sentences stay one, since half of one supports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from seekling.corpus.passages import without_links
from seekling.corpus.sections import find_headings
from seekling.types import Document

_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"')\]*_\u00bb\u201d\u2019]))\s+(?=[\"'(\[*_\u00ab\u201c\u201e\u2018]*[^\Wa-z_])"
    r"|(?<=[\u3002\uff01\uff1f])|(?<=\u0964)\s*"
)
_NO_END = re.compile(
    r"(?:\b[^\W\d_]|\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|No|Nr|vs|cf|ca|bzw|etc|e\.g|i\.e|z\.B|d\.h|[Ff]ig|[Vv]ol|pp"
    r"|Jr|Sr|Inc|Ltd|Co|approx|Gen|Col|Sgt))\.$"
)
_ORDINAL = re.compile(r"\b\d{1,2}\.$")
_MONTH = re.compile(r"\s+(?:Jan|Feb|März|Apr|Mai|Juni|Juli|Aug|Sept|Okt|Nov|Dez|Jahrhundert)")
_OWN_LINE = re.compile(r"\s*(?:[-*+>|]\s|\||\d+[.)]\s|```|~~~)")
_MIN_WRAPPED_CHARS = 50
"""A shorter line was not broken to fit a width: it ends what it says."""


class Sentence(NamedTuple):
    """A sentence of a page."""

    text: str
    """As a reader sees it: of a link its text, on one line."""
    section: str
    """The nearest heading above it, unless that is the page's title; empty when there is none."""
    start: int
    """Offset in the content."""
    end: int


def sentences(document: Document) -> Iterator[Sentence]:
    """The sentences of a page in reading order; headings are none."""
    content, title = document.content, document.title.strip().casefold()
    headings = find_headings(content)
    regions = [("", 0), *((heading.name, heading.end) for heading in headings)]
    ends = [*(heading.start for heading in headings), len(content)]
    for (name, region_start), region_end in zip(regions, ends, strict=True):
        section = "" if name.strip().casefold() == title else name
        for first, last in _blocks(content, region_start, region_end):
            for start, end in _cut(content, first, last):
                text = " ".join(without_links(content[start:end]).split())
                if text:
                    yield Sentence(text, section, start, end)


def _blocks(content: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Paragraphs, and in them lines that stand for themselves."""
    first = line_start = start
    while line_start < end:
        line_end = content.find("\n", line_start, end)
        line_end = end if line_end < 0 else line_end
        line, following = content[line_start:line_end], content[line_end + 1 : line_end + 40]
        is_wrapped = len(line) >= _MIN_WRAPPED_CHARS and following.strip() and not following.startswith("\n")
        if not is_wrapped or _OWN_LINE.match(following):
            yield first, line_end
            first = line_end + 1
        line_start = line_end + 1
    if first < end:
        yield first, end


def _cut(content: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    first = start
    for match in _SENTENCE_END.finditer(content, start, end):
        tail = content[max(first, match.start() - 12) : match.start()]
        is_date = _ORDINAL.search(tail) and _MONTH.match(content, match.start())
        if not is_date and not _NO_END.search(tail):
            yield first, match.start()
            first = match.end()
    if first < end:
        yield first, end
