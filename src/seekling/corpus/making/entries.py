"""What the title, the headings and the defined terms of a page name, and the text that stands under each name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from seekling.corpus.sections import find_headings
from seekling.types import Document

Rank = Literal["title", "term", "heading"]
_RANKS: tuple[Rank, ...] = ("title", "term", "heading")
"""Whose name it is, where several places have one name."""
_NUMBERING = re.compile(
    r"^(?:(?:Chapter|Appendix|Kapitel|Anhang|Abschnitt)\s+)?(?:(?:\d+\.)+\d*|[A-Z]\.(?:\d+\.)*\d*|\d+)\s+(?=\S)"
)
_MODIFIERS = re.compile(
    r"^(?:(?:class|exception|async|await|classmethod|staticmethod|static|abstractmethod|abstract|property|final|"
    r"coroutine|decorator|type|struct|enum|const|unsigned|int|long|void|char|double|float|\w+_t|\w+func|[A-Z]\w+)\s+\**)+"
    r"(?=[\w.]+$)"
)
_NOTE_MARK = re.compile(r"(?:\s*\[\d+\]|\s*…)+$")
_TAGLINE = re.compile(r"\s+[—\u2013|]\s+|\s+-\s+|:\s+")
_CALL = re.compile(r"^(?P<before>[^()]*?)(?P<name>[\w.]*\w)\s*\((?P<arguments>.*)\)(?:\s*(?:→|->)\s*(?P<returns>.+))?$")
_FIELD = re.compile(r"^:*(?:[-*] )?\*\*(?P<name>[^*:?!]+?)\s*(?::\s*\*\*|\*\*\s*:)\s+(?P<value>\S.*)$")
"""A line of a record: "**Capital**: Berlin"; not an item below another item."""
_PLAIN_FIELD = re.compile(r"(?P<name>[A-Z][\w /-]{0,40}): +(?P<value>\S.*)")
"""A line of a paragraph in which all lines are so: "Package: vim"."""
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_MAX_NAME_WORDS = 7


@dataclass(slots=True)
class Entry:
    """A name and what its page says of it."""

    page: str
    rank: Rank
    head: str
    """Title, heading or term as the page has it."""
    name: str
    """What people call it: without numbers, arguments and tagline."""
    owner: str = ""
    """The name of the heading or title above; of a title, what follows its dash."""
    paragraphs: list[str] = field(default_factory=list)
    """Plain text, in order, each item of a list by itself; code is left out."""
    tables: list[list[list[str]]] = field(default_factory=list)
    """Rows of cells; the first row of each names the columns."""
    fields: list[tuple[str, str]] = field(default_factory=list)
    """Names and values of lines such as "**Capital**: Berlin"."""

    @property
    def is_signature(self) -> bool:
        """Whether it is a function, method or class with its arguments."""
        return self.rank == "term" and _CALL.match(self.head) is not None

    @property
    def is_definition(self) -> bool:
        """Whether it is a class or something else that has members."""
        return self.rank == "term" and (self.is_signature or self.head.startswith("class "))

    @property
    def is_plain_call(self) -> bool:
        """Whether it is a function whose signature says neither that it is a class nor what it returns."""
        match = _CALL.match(self.head)
        return self.rank == "term" and match is not None and not match["before"].strip() and not match["returns"]

    @property
    def arguments(self) -> str:
        """What stands between the brackets of a signature."""
        match = _CALL.match(self.head)
        return match["arguments"] if match else ""

    @property
    def text(self) -> str:
        """All paragraphs."""
        return "\n".join(self.paragraphs)


def entries_of(document: Document) -> list[Entry]:
    """The entries of a page, whose definitions are "term" and below it ": meaning"; first its title's."""
    name, tagline = _plain_title(document.title)
    found = [Entry(document.id, "title", document.title, name, tagline)]
    heading = found[0]
    starts = {each.start: each for each in find_headings(document.content)}
    current, terms = heading, list[Entry]()
    for start, block in _blocks(document.content):
        if start in starts:
            if starts[start].name != document.title:
                heading = Entry(document.id, "heading", starts[start].name, _plain_title(starts[start].name)[0], name)
                found.append(heading)
            current, terms = heading, []
            continue
        lines = block.split("\n")
        if block.startswith("|"):
            table = _table(lines)
            current.tables.extend([table] if table else [])
            continue
        depth = next((len(line) - len(line.lstrip(":")) for line in lines if line.startswith(":")), 0)
        heads = [line.strip() for line in lines if not line.startswith(":")] if depth else []
        if heads:
            del terms[depth - 1 :]
            above = terms[-1].name if terms else heading.name
            is_member = bool(terms) and terms[-1].is_definition and "." not in plain_name(heads[0])
            name_of_term = f"{above}.{plain_name(heads[0])}" if is_member else plain_name(heads[0])
            terms += [Entry(document.id, "term", heads[0], name_of_term, above)]
            found.append(terms[-1])
        current = terms[min(depth, len(terms)) - 1] if depth and terms else heading
        texts = [line.lstrip(":").strip() for line in lines if line.startswith(":") or not depth]
        is_list = bool(texts) and texts[0].startswith("- ")
        items = [each.removeprefix("- ") for each in texts] if is_list else [" ".join(texts)]
        current.paragraphs.extend(filter(None, items))
        current.fields.extend(_fields(lines))
    return found


def plain_name(head: str) -> str:
    """A name without numbers, arguments, and marks: "statistics.mean" for "class statistics.mean(data)"."""
    text = _NUMBERING.sub("", head.strip().strip("`*"))
    call = _CALL.match(text)
    if call:
        return call["name"]
    text = _NOTE_MARK.sub("", text.replace("`", "").rstrip(":").strip())
    return _MODIFIERS.sub("", text) if "_" in text or "." in text or text[:1].islower() else text


def unique_names(entries: Iterable[Entry]) -> dict[int, str]:
    """The entries of all pages that can be asked about by name: no other place of the corpus is called so.

    A title goes before a term, and a term before a heading.

    Returns:
        id(entry) -> its name.
    """
    places: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        places[entry.name.casefold()].append(entry)
    found = {}
    for alike in places.values():
        rank = min((entry.rank for entry in alike), key=_RANKS.index)
        first, *others = [entry for entry in alike if entry.rank == rank]
        if not others and _is_name(first.name):
            found[id(first)] = first.name
    return found


def common_words(entries: Iterable[Entry]) -> Counter[str]:
    """In how many entries each word stands."""
    return Counter(word for entry in entries for word in set(re.findall(r"\w+", entry.text.casefold())))


def _is_name(text: str) -> bool:
    words = text.split()
    return 0 < len(words) <= _MAX_NAME_WORDS and len(text) > 2 and re.search(r"[^\W\d_]{2}", text) is not None


def _plain_title(title: str) -> tuple[str, str]:
    """Name and tagline: ("base64", "Data Encodings") for "base64 — Data Encodings"."""
    text = _NUMBERING.sub("", title.strip())
    name, *rest = _TAGLINE.split(text, maxsplit=1)
    return (plain_name(name), rest[0] if rest else "") if len(name) > 2 else (plain_name(text), "")


def _blocks(content: str) -> Iterator[tuple[int, str]]:
    """Paragraphs outside fenced code, each with the place where it begins."""
    fence, start, position, lines = "", 0, 0, list[str]()
    for line in [*content.split("\n"), ""]:
        mark = _FENCE.match(line)
        if line.strip() and mark is None and not fence and not line.startswith("#"):
            start = start if lines else position
            lines.append(line)
        else:
            if lines:
                yield start, "\n".join(lines)
            lines = []
            if line.startswith("#") and not fence:
                yield position, line
            if mark is not None:
                fence = "" if fence and line.startswith(fence) else fence or mark[0]
        position += len(line) + 1


def _fields(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values of the lines of a record; several plain lines are one where all of them are "Name: value"."""
    plain = [_PLAIN_FIELD.fullmatch(line) for line in lines]
    is_plain = len(lines) > 1 and all(plain)
    found = plain if is_plain else [_FIELD.match(line) for line in lines]
    return [(match["name"].strip(), match["value"].strip()) for match in found if match]


def _table(lines: list[str]) -> list[list[str]]:
    """Rows below a line of headings; none where the table has none."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines if line.startswith("|")]
    if len(rows) < 3 or not re.fullmatch(r"[\s|:-]+", lines[1]):
        return []
    is_even = all(len(row) == len(rows[0]) for row in rows[2:])  # a cell over several rows shifts the others
    return [rows[0], *rows[2:]] if is_even else []
