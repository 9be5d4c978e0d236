"""Wikipedia's XML dumps, page by page, and wikitext as markdown.

Of a dump only articles are read (namespace 0) and no redirects. Of an article the text is kept: headings, paragraphs,
lists and the words of links; references, tables, files, categories and most templates are left out, as are sections
that have no text without them. The grammar is mwparserfromhell's.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seekling.corpus import data_files
from seekling.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Node, Wikilink
    from mwparserfromhell.wikicode import Wikicode

_DROPPED_TAGS = "ref references table gallery imagemap timeline style script templatestyles score"
_TAG_TEXTS = {"li": "- ", "br": "\n", **dict.fromkeys(_DROPPED_TAGS.split(), "")}
_FILE = re.compile(r"\.(jpe?g|png|svg|gif|tiff?|webp|ogg|ogv|webm|pdf|djvu)$", re.IGNORECASE)
# Templates whose words belong to the sentence around them: the positions of the parameters that are shown.
_SHOWN_PARAMETERS = {
    **dict.fromkeys(("lang", "transl", "transliteration"), (2,)),
    **dict.fromkeys(("nowrap", "nobr", "small", "as of"), (1,)),
    **dict.fromkeys(("convert", "cvt"), (1, 2)),
}
_EMPTY_BRACKETS = re.compile(r"\s*\(\s*(?:[;,:/]\s*)*\)")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")
_ITEM = re.compile(r"^- +")
_HEADING = re.compile(r"#+ ")
_ARTICLES = "0"


class WikiPage(NamedTuple):
    """An article as it stands in a dump."""

    number: str
    """Wikipedia's own number of the page."""
    title: str
    wikitext: str


def read_dump(path: Path) -> Iterator[WikiPage]:
    """Stream the articles of a dump, plain or compressed, one page in memory at a time.

    Raises:
        DataError: the file is cut short or is not the XML of a dump.
    """
    with data_files.open_bytes(path) as file:
        events = ElementTree.iterparse(file, events=("start", "end"))
        try:
            _, root = next(events)
            name = root.tag.removesuffix("mediawiki")
            for event, element in events:
                if event == "end" and element.tag == f"{name}page":
                    page = _page(element, name)
                    if page is not None:
                        yield page
                    # What was parsed stays in the tree otherwise: a whole dump.
                    root.clear()
        except (ElementTree.ParseError, StopIteration, EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path} is a damaged or unfinished dump: {error}; fetch it again") from None


def _page(element: ElementTree.Element, name: str) -> WikiPage | None:
    if element.findtext(f"{name}ns", _ARTICLES) != _ARTICLES or element.find(f"{name}redirect") is not None:
        return None
    text = element.findtext(f"{name}revision/{name}text") or ""
    title = element.findtext(f"{name}title") or ""
    if not title or text.lstrip()[:9].upper() == "#REDIRECT":
        return None
    return WikiPage(element.findtext(f"{name}id") or "", title, text)


def wikitext_to_markdown(wikitext: str) -> str:
    """Convert an article.

    Raises:
        MissingExtraError: mwparserfromhell is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError:
        raise MissingExtraError(
            "reading Wikipedia dumps needs mwparserfromhell: pip install 'seekling[ingest]'"
        ) from None
    text = _MAGIC_WORD.sub("", _text(mwparserfromhell.parse(wikitext)))
    lines = [_ITEM.sub("- ", line.rstrip()) for line in _EMPTY_BRACKETS.sub("", text).split("\n")]
    blocks = _BLANK_LINES.split("\n".join(lines).strip())
    return "\n\n".join(_without_empty_sections(blocks))


def _text(code: Wikicode | None) -> str:
    return "".join(_text_of(node) for node in code.nodes) if code is not None else ""


def _text_of(node: Node) -> str:
    from mwparserfromhell import nodes

    match node:
        case nodes.Text():
            return str(node.value)
        case nodes.Heading():
            return f"\n\n{'#' * node.level} {' '.join(_text(node.title).split())}\n\n"
        case nodes.Wikilink():
            return _link(node)
        case nodes.ExternalLink():
            return _text(node.title)
        case nodes.HTMLEntity():
            return str(node.normalize())
        case nodes.Template():
            shown = _SHOWN_PARAMETERS.get(str(node.name).strip().lower(), ())
            return " ".join(_text(node.get(str(place)).value).strip() for place in shown if node.has(str(place)))
        case nodes.Tag():
            tag = str(node.tag).strip().lower()
            return _TAG_TEXTS[tag] if tag in _TAG_TEXTS else _text(node.contents)
        case _:
            return ""


def _link(node: Wikilink) -> str:
    title = str(node.title)
    # "File:", "Category:", "fr:" and their translations; a leading colon makes such a link visible.
    if re.match(r"\w[\w ]*:\S", title) and (node.text is None or _FILE.search(title.strip())):
        return ""
    return _text(node.text) if node.text is not None else title.removeprefix(":")


def _without_empty_sections(blocks: Sequence[str]) -> list[str]:
    """Leave out headings that nothing follows but a heading of the same or a higher level, or the end."""
    kept: list[str] = []
    next_level = 1  # the end of the page is like a heading of the highest level
    for block in filter(None, reversed(blocks)):
        level = len(block) - len(block.lstrip("#")) if _HEADING.match(block) else 0
        if not (level and next_level and level >= next_level):
            next_level = level
            kept.append(block)
    return kept[::-1]
