"""Cut pages into the passages that are indexed and shown.

A passage is a stretch of one page, at most so many words long, that says in which section it stands ("History >
Antiquity: ..."). The title of the page is not repeated: a passage carries it in a field of its own. Cuts fall between
sections and definitions, else between paragraphs, else between sentences, else between lines, else between words, and
between the characters of Chinese and Japanese, of which each counts as a word. No word of the page is lost: each is in
the text of a passage or in the section path of one. Of a markdown link only the text is kept: a passage is for reading,
and an address costs a reader that is paid by the token more than the name it stands for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from seekling.corpus.sections import Heading, find_headings
from seekling.errors import ConfigError
from seekling.types import Document, Passage

_WIDE = "\u2e80-\u2fff\u3001-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which put no spaces between words."""
_WORD = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]+")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
# A term and what it means: "term", and on the next line ": meaning", with two colons inside of another meaning.
_TERM = re.compile(r"^(?P<term>(?![:|#>`~-]).*\S)\n(?=(?P<marks>:+) )", re.MULTILINE)
_MARKS = re.compile(r"^:+ (?=\S)", re.MULTILINE)
_UNDEFINED = re.compile(r"\n[^\S\n]*\n\s*(?=[^:\s|`~>-])")
_SENTENCE_ENDS = (".", "!", "?")
_WIDE_SENTENCE_ENDS = ("\u3002", "\uff01", "\uff1f", "\u0964")
"""Of scripts that put no space after a sentence."""
# A markdown link or image with text. Not after a word, a bracket or a backtick: `calls[0](x)` is a program's.
_LINK = re.compile(
    r"(?<![\w\])`])!?\[([^\[\]\n]+)\]"
    r"\((?:[^()\s<]+(?:\([^()\s]*\)[^()\s]*)*|<[^<>\n]*>)(?:[^\S\n]+\"[^\"\n]*\")?\)"
)
_CLOSING_MARKS = "\"')]}*_\u00bb\u201d\u2019"
_TAIL_CHARS = 12

_MAX_HEADING_WORDS = 12
"""A longer heading is a sentence that happens to start with '#': the path has its beginning, the passage all of it."""
_FULL_ENOUGH = 0.5
"""A passage at least this full is not filled up with the beginning of the next section."""

Spans = list[tuple[int, int]]
"""(start, end) of every word of a text, in order."""


class _Region(NamedTuple):
    """A heading's own text, without its children's."""

    path: str
    start: int
    end: int
    is_leaf: bool = False
    """No child repeats the path, so that it must be shown even without text."""


class _Piece(NamedTuple):
    """A stretch of a region that is never cut further."""

    region: _Region
    start: int
    end: int
    num_words: int


def without_links(text: str) -> str:
    """A text with only the words of its markdown links and images."""
    return _LINK.sub(r"\1", text)


def cut_passages(document: Document, *, words: int, overlap_words: int = 0) -> list[Passage]:
    """Cut a page into passages.

    Args:
        document: the page; headings are found as in `sections`.
        words: most words of a passage, its section path not counted.
        overlap_words: a passage begins with the last so many words of the one before, within a section.

    Returns:
        At least one passage, in reading order, with ids `{document_id}#0`, `#1`, ... A page without any text has one
        passage, its title.

    Raises:
        ConfigError: the numbers leave no room for a new word.
    """
    if words < 1:
        raise ConfigError(
            f"passages of {words} words cannot be cut; expected at least 1; set retrieval.index.passage_words"
        )
    if not 0 <= overlap_words < words:
        raise ConfigError(
            f"an overlap of {overlap_words} words does not fit passages of {words}; "
            f"expected 0-{words - 1}; set retrieval.index.overlap_words"
        )
    content = document.content
    cutter = _Cutter(content, words, overlap_words)
    pieces = (piece for region in _regions(document) for piece in cutter.pieces(region))
    texts = [_render(content, pieces) for pieces in cutter.packed(pieces)]
    return [
        Passage(f"{document.id}#{number}", document.id, document.title, text)
        for number, text in enumerate(texts or [document.title])
    ]


def _regions(document: Document) -> Iterator[_Region]:
    """The page cut at its headings; a heading that only repeats the page's title is left out of the paths."""
    content, title = document.content, document.title.strip().casefold()
    headings = find_headings(content)
    starts = [*(heading.start for heading in headings), len(content)]
    yield from _defined(content, _Region("", 0, starts[0]))
    above: list[Heading] = []
    for number, heading in enumerate(headings):
        while above and above[-1].level >= heading.level:
            above.pop()
        above.append(heading)
        is_long = len(heading.name.split()) > _MAX_HEADING_WORDS
        start = heading.start + heading.level if is_long else heading.end
        shown = above[1:] if above[0].name.casefold() == title else above
        is_leaf = number + 1 == len(headings) or headings[number + 1].level <= heading.level
        yield from _defined(
            content, _Region(" > ".join(_shorten(each.name) for each in shown), start, starts[number + 1], is_leaf)
        )


def _defined(content: str, region: _Region) -> Iterator[_Region]:
    """A region cut at the terms that it defines; what is said of a term after its first paragraph names it."""
    matches = list(_TERM.finditer(content, region.start, region.end))
    if not matches:
        yield region
        return
    yield _Region(region.path, region.start, matches[0].start())
    names: list[str] = []
    for match, limit in zip(matches, [*(each.start() for each in matches[1:]), region.end], strict=True):
        undefined = _UNDEFINED.search(content, match.end(), limit)
        end = undefined.start() if undefined else limit
        blank = _BLANK_LINES.search(content, match.end(), end)
        first_end = blank.start() if blank else end
        del names[len(match["marks"]) - 1 :]
        yield _Region(" > ".join(filter(None, [region.path, *names])), match.start(), first_end)
        names.append(_shorten(match["term"].partition("(")[0].strip()))
        yield _Region(" > ".join(filter(None, [region.path, *names])), first_end, end)
        yield _Region(region.path, end, limit)


def _shorten(name: str) -> str:
    parts = name.split()
    return name if len(parts) <= _MAX_HEADING_WORDS else " ".join(parts[:_MAX_HEADING_WORDS]) + "..."


@dataclass(frozen=True, slots=True)
class _Cutter:
    """The rules of cutting for one page."""

    content: str
    limit: int
    """Most words of a passage."""
    overlap: int

    def pieces(self, region: _Region) -> Iterator[_Piece]:
        """Paragraphs of a region; those over the limit cut further. A leaf without text is one piece of no words."""
        start, is_empty = region.start, True
        while start < region.end:
            blank = _BLANK_LINES.search(self.content, start, region.end)
            end = blank.start() if blank else region.end
            spans = self._spans(start, end)
            if len(spans) > self.limit - self.overlap:
                yield from self._cut_paragraph(region, spans)
            elif spans:
                yield _Piece(region, start, end, len(spans))
            is_empty = is_empty and not spans
            start = blank.end() if blank else region.end
        if is_empty and region.is_leaf and region.path:
            yield _Piece(region, region.start, region.start, 0)

    def packed(self, pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
        """Group pieces into passages. A passage goes on into the next section only while it is a mere stub."""
        current: list[_Piece] = []
        num_words = 0
        for piece in pieces:
            crosses = bool(current) and current[-1].region is not piece.region
            cost = piece.num_words + (len(_WORD.findall(piece.region.path)) if crosses else 0)
            is_full = crosses and num_words >= _FULL_ENOUGH * self.limit
            if current and (num_words + cost > self.limit or is_full):
                yield current
                tail = None if crosses else self._tail(current[-1])
                current = [tail] if tail else []
                num_words, cost = tail.num_words if tail else 0, piece.num_words
            current.append(piece)
            num_words += cost
        if current:
            yield current

    def _spans(self, start: int, end: int) -> Spans:
        return [match.span() for match in _WORD.finditer(self.content, start, end)]

    def _cut_paragraph(self, region: _Region, spans: Spans) -> Iterator[_Piece]:
        """Pieces of about equal length: a short rest at the end would be a passage that says nothing."""
        first, limit = 0, self.limit - self.overlap
        while first < len(spans):
            num_left = len(spans) - first
            num_pieces = -(-num_left // limit)
            length = num_left if num_pieces == 1 else self._best_cut(spans, first, -(-num_left // num_pieces))
            yield _Piece(region, spans[first][0], spans[first + length - 1][1], length)
            first += length

    def _best_cut(self, spans: Spans, first: int, target: int) -> int:
        """Number of words after which to cut: the end of a sentence, else of a line, else of a word nearest the target.

        The target itself where there is none, between characters of a script without spaces.
        """
        at_line = at_word = 0
        limit = self.limit - self.overlap
        for distance in range(limit):
            for length in (target + distance, target - distance):
                if not max(1, target // 2) <= length <= limit:
                    continue
                last_end = spans[first + length - 1][1]
                between = self.content[last_end : spans[first + length][0]]
                # In a script without spaces the marks that close a sentence are words of their own.
                tail = self.content[max(spans[first][0], last_end - _TAIL_CHARS) : last_end].rstrip(_CLOSING_MARKS)
                if tail.endswith(_SENTENCE_ENDS if between else _WIDE_SENTENCE_ENDS):
                    return length
                if not at_line and "\n" in between:
                    at_line = length
                if not at_word and between:
                    at_word = length
        return at_line or at_word or target

    def _tail(self, piece: _Piece) -> _Piece | None:
        """The last words of a piece, to begin the next passage with."""
        if not self.overlap:
            return None
        spans = self._spans(piece.start, piece.end)[-self.overlap :]
        return _Piece(piece.region, spans[0][0], piece.end, len(spans)) if spans else None


def _render(content: str, pieces: list[_Piece]) -> str:
    """Write pieces out: those of one section as they stand in the page, each section after its path."""
    parts = []
    for region, group in itertools.groupby(pieces, key=lambda piece: piece.region):
        own = list(group)
        text = _MARKS.sub("", without_links(content[own[0].start : own[-1].end].strip()))
        parts.append(f"{region.path}: {text}".strip() if region.path else text)
    return "\n".join(parts)
