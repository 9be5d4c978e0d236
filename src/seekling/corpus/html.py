"""HTML to plain markdown: headings, paragraphs, lists, tables and code survive; layout does not.

A term that is defined (<dt>) stands on a line of its own, and each paragraph of its definition (<dd>) begins with a
colon, two in a definition inside another. Below a table's row of headings stands a row of dashes.

It is meant for documentation and saved articles. Scripts, styles and navigation are left out; so are images and the
addresses of links. Only the standard library is used. For pages from the open web, whose text stands between menus,
advertisements and comments, `article_to_markdown` has trafilatura find the article; on documentation it can lose short
lists and tables, which is why it is not the rule.
"""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import NamedTuple

from seekling.errors import MissingExtraError

_SKIPPED = frozenset({"script", "style", "nav", "template", "svg", "noscript", "iframe"})
_SKIPPED_CLASSES = frozenset({"headerlink", "permalink", "anchorjs-link"})
"""Of the marks that generators put beside headings to link to them."""
_VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta source track wbr"))
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        """address article aside blockquote body dd details div dl dt fieldset figcaption figure footer form header hr
        li main ol p pre section summary table tbody tfoot thead tr ul h1 h2 h3 h4 h5 h6""",
    )
)
_WHITE_SPACE = re.compile(r"\s+")
_MARKS = re.compile(r"^(?=#|```|~~~)", re.MULTILINE)
"""What would make a heading or a fence of a line of text: it gets a backslash."""
_BACKTICKS = re.compile(r"`+")


class HtmlPage(NamedTuple):
    """What a page of HTML says."""

    title: str
    """Text of its <title>; empty when it has none."""
    heading: str
    """Text of its first <h1>; empty when it has none."""
    markdown: str


def html_to_markdown(html: str) -> HtmlPage:
    """Convert a page or a part of one; unclosed and misnested tags are taken as browsers take them, roughly.

    Never fails: whatever is not markup is text.
    """
    parser = _Converter()
    parser.feed(html)
    parser.close()
    return parser.page()


def article_to_markdown(html: str) -> HtmlPage:
    """Convert the main text of a page; all of the page where none is found.

    Raises:
        MissingExtraError: trafilatura is not installed.
    """
    try:
        import trafilatura
    except ImportError:
        raise MissingExtraError(
            "retrieval.index.html=article needs trafilatura: pip install 'seekling[ingest]'"
        ) from None
    page = html_to_markdown(html)
    article = trafilatura.extract(html, output_format="markdown", include_comments=False, favor_recall=True)
    return HtmlPage(page.title, page.heading, article) if article else page


class _Converter(HTMLParser):
    """Collects one line of text at a time; a block tag ends the line and leaves a blank one."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._title: list[str] = []
        self._heading = ""
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._has_text = False
        self._prefix = ""
        self._level = 0
        self._open: list[tuple[str, bool]] = []
        """Tags, and whether each is left out with all that it holds."""
        self._num_open: Counter[str] = Counter()
        self._num_hidden = 0
        self._terms: set[int] = set()
        """Numbers of the blocks that are terms."""
        self._num_cells = 0
        """Of headings in the row of a table."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self._line.append("\n")
        if not self._num_hidden:
            # Before the tag counts as open: what precedes it is not its text.
            if tag in {"td", "th"} and self._has_text:
                self._line.append(" | ")
            elif tag in _BLOCKS:
                self._break(tag)
            if tag in _HEADINGS:
                self._level = _HEADINGS[tag]
            elif tag == "li":
                self._prefix = "- "
            self._num_cells = 0 if tag in {"tr", "td"} else self._num_cells + (tag == "th")
        if tag not in _VOID:
            is_hidden = _is_hidden(tag, dict(attrs))
            self._open.append((tag, is_hidden))
            self._num_open[tag] += 1
            self._num_hidden += is_hidden

    def handle_endtag(self, tag: str) -> None:
        if not self._num_open[tag]:
            return
        if tag in _BLOCKS and not self._num_hidden:
            self._break(tag)
            if tag in _HEADINGS or tag == "li":
                self._level, self._prefix = 0, ""
        # Tags that were left open inside end with it.
        while self._open:
            closed, is_hidden = self._open.pop()
            self._num_open[closed] -= 1
            self._num_hidden -= is_hidden
            if closed == tag:
                return

    def _break(self, tag: str) -> None:
        """End the block, but keep the paragraphs of a table's cell in its row."""
        if self._num_open["tr"] and tag in {"p", "div", "ul", "ol", "li"}:
            self._line.append(" ")
        else:
            self._end_block()

    def handle_data(self, data: str) -> None:
        if self._num_open["title"] and not self._num_open["svg"]:
            self._title.append(data)
        elif not self._num_hidden:
            self._line.append(data if self._num_open["pre"] else _WHITE_SPACE.sub(" ", data))
            self._has_text = self._has_text or not data.isspace()

    def page(self) -> HtmlPage:
        self._end_block()
        blocks: list[str] = []
        for number, block in enumerate(self._blocks):
            # Items of a list, rows of a table, and a term and what it means stay together.
            is_row = bool(blocks) and block[:2] in {"- ", "| "} and blocks[-1][:2] == block[:2]
            is_defined = number - 1 in self._terms and (number in self._terms or block[:1] == ":")
            blocks += ["\n" if is_row or is_defined else "\n\n", block] if blocks else [block]
        return HtmlPage(_WHITE_SPACE.sub(" ", "".join(self._title)).strip(), self._heading, "".join(blocks))

    def _end_block(self) -> None:
        text = "".join(self._line)
        self._line.clear()
        if not self._has_text:
            return  # an open heading or list item keeps its mark: its text may come in a block of its own
        prefix, level = self._prefix, self._level
        self._has_text, self._prefix, self._level = False, "", 0
        if self._num_open["pre"]:
            # The fence must be longer than any inside, or '#' lines of the code would become headings.
            fence = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
            text = text.strip("\n")
            self._blocks.append(f"{fence}\n{text}\n{fence}")
        elif level:
            text = _WHITE_SPACE.sub(" ", text).strip()
            self._heading = self._heading or (text if level == 1 else "")
            self._blocks.append(f"{'#' * level} {text}")
        else:
            prefix = "| " if self._num_open["tr"] and " | " in text else prefix
            inner = next((tag for tag, _ in reversed(self._open) if tag in {"dt", "dd"}), "")
            prefix = prefix or (":" * self._num_open["dd"] + " " if inner == "dd" else "")
            if inner == "dt":
                self._terms.add(len(self._blocks))
            lines = filter(None, (" ".join(line.split()) for line in text.split("\n")))
            self._blocks.append(_MARKS.sub(r"\\", prefix + "\n".join(lines)))
            if prefix == "| " and self._num_cells > 1 and self._num_cells == text.count(" | ") + 1:
                self._blocks.append("|" + " --- |" * self._num_cells)


def _is_hidden(tag: str, attrs: dict[str, str | None]) -> bool:
    classes = (attrs.get("class") or "").split()
    return tag in _SKIPPED or attrs.get("role") == "navigation" or not _SKIPPED_CLASSES.isdisjoint(classes)
