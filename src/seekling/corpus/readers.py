"""Read a corpus, whatever form it has, as a stream of documents.

Understood are JSONL and CSV rows `{id, title, content}` and Search-R1's `{id, contents}` (plain, gzipped or bzip2ed),
Parquet with the same columns, a single page, and a folder of pages in Markdown, HTML, PDF or plain text and of such
data files. Short columns of a row are kept beside it, for citations.
A row that is not understood ends the reading with an error that names its place, unless it is asked to go on and keep a
list: nothing is dropped silently, and what a folder holds besides pages is said in a warning.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from seekling.corpus import data_files
from seekling.corpus.data_files import Row
from seekling.corpus.encodings import page_text
from seekling.corpus.hashing import text_digest
from seekling.corpus.html import article_to_markdown, html_to_markdown
from seekling.corpus.pdf import pdf_to_markdown
from seekling.corpus.sections import find_headings
from seekling.errors import DataError
from seekling.types import Document, Json

_LOG = logging.getLogger(__name__)

HtmlMode = Literal["page", "article"]
KINDS = {".md": "markdown", ".markdown": "markdown", ".txt": "text", ".html": "html", ".htm": "html", ".pdf": "pdf"}
"""Of pages, by their suffixes."""

_READERS_VERSION = 3
"""Goes up when the same bytes become another document: what was read before is then read again."""
_PACKAGES = ("trafilatura", "pypdf")
_COLUMNS = frozenset({"id", "title", "content", "contents"})
_DATA_NAME = re.compile(r"\.(jsonl|ndjson|parquet)(\.gz|\.bz2)?$", re.IGNORECASE)
_TABLE_NAME = re.compile(r"\.(jsonl|ndjson|parquet|json|csv|tsv)(\.gz|\.bz2)?$", re.IGNORECASE)
_SPHINX_INVENTORY = "objects.inv"
_SPHINX_LISTS = re.compile(r"(genindex.*|py-modindex|modindex|search|searchindex|contents)\.\w+")
_MAX_METADATA_CHARS = 1000
_RECENT_IDS = 65_536
_ACCEPTED = (
    "expected JSONL rows {id, title, content} or {id, contents}, CSV or Parquet with these columns, a .md, "
    ".html, .pdf or .txt page, or a folder of such files"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A page as it lies on disk, before the work of reading it is done."""

    id: str
    where: str
    """File, or file and row, for messages."""
    digest: str
    """Of the raw bytes: equal digests of one id parse to equal documents. Empty for rows, which are parsed already."""
    parse: Callable[[], Document]


@dataclass(slots=True)
class LeftOut:
    """What a folder holds besides the pages that were read."""

    unreadable: dict[str, str] = field(default_factory=dict)
    """Files, links and rows that cannot be read or must not be followed, each with the reason."""
    others: str = ""
    """How many files of which kinds hold no pages, in words."""

    def add(self, where: str, reason: object) -> None:
        """Remember what cannot be read."""
        self.unreadable.setdefault(where, str(reason))

    def lines(self) -> list[str]:
        """What cannot be read, a line each: "notes/a.pdf: why"."""
        return [why if why.startswith(where) else f"{where}: {why}" for where, why in self.unreadable.items()]


def read_documents(path: Path | str, *, html: HtmlMode = "page") -> Iterator[Document]:
    """Stream the documents of a corpus; `read_sources`, parsed."""
    return (source.parse() for source in read_sources(path, html=html))


def read_sources(path: Path | str, *, html: HtmlMode = "page", left_out: LeftOut | None = None) -> Iterator[Source]:
    """Stream the pages of a corpus, each parsed only when it is asked to.

    Rows come in file order, files of a folder in the order of their paths. In a folder the id of a page is its path
    below the folder without suffix; its title is its first heading (of HTML: the first <h1>, else <title>; of PDF: the
    title that the file names), else its file name. Names that start with a dot are passed over. A page without text is
    a document with empty content.

    Args:
        path: a file or a folder. The format of a data file is told from its content.
        html: read all of an HTML page, or its main text as trafilatura finds it.
        left_out: given, a folder's files that cannot be read are put down here, with links that lead out of it, and
            the others are read; whoever parses a source puts down what fails then. Of a file, nothing is left out.

    Raises:
        DataError: there is nothing to read, a row or page is wrong, or an id comes twice; names file and line.
    """
    path = Path(path)
    seen = _SeenIds()
    left_out = left_out if path.is_dir() else None
    for source in _all_sources(path, html, left_out):
        if seen.add(source.id):
            if left_out is not None:
                why = f"another page has the id {source.id!r} already (of a file, its path without suffix); rename one"
                left_out.add(source.where, why)
                continue
            # Where the first one stands is not remembered, for a corpus may have 21 million: look again.
            first = next(each for each in _all_sources(path, html, None) if each.id == source.id)
            if first.where != source.where:
                raise DataError(
                    f"{source.where}: the id {source.id!r} was already used at {first.where}; "
                    "expected each id once, and one page per name, whatever its suffix; rename or remove one of them"
                )
        yield source
    if not seen and not (left_out and left_out.unreadable):
        raise DataError(f"{path} holds no documents; {_ACCEPTED}")


class _SeenIds:
    """The ids of a corpus in 8 bytes each: a set of 21 million would take 2 GB."""

    def __init__(self) -> None:
        self._sorted_N = np.empty(0, dtype=np.uint64)
        self._recent: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted_N) + len(self._recent)

    def add(self, page_id: str) -> bool:
        """Remember an id; says whether its 64-bit hash was known already."""
        key = int.from_bytes(hashlib.blake2b(page_id.encode("utf-8"), digest_size=8).digest(), "little")
        place = int(np.searchsorted(self._sorted_N, np.uint64(key)))
        if key in self._recent or (place < len(self._sorted_N) and self._sorted_N[place] == key):
            return True
        self._recent.add(key)
        if len(self._recent) > max(_RECENT_IDS, len(self._sorted_N) // 8):
            recent = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
            self._sorted_N = np.sort(np.concatenate([self._sorted_N, recent]))
            self._recent.clear()
        return False


def describe_readers(html: HtmlMode) -> dict[str, str]:
    """What decides how raw bytes become a document; documents read by other readers are not used again."""
    found = {"readers": str(_READERS_VERSION), "html": html}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# --- folders


def _all_sources(path: Path, html: HtmlMode, left_out: LeftOut | None) -> Iterator[Source]:
    if path.is_dir():
        yield from _read_folder(path, html, left_out)
    elif path.suffix.lower() in KINDS:
        yield _page_source(path, path.stem, html, {})
    else:
        yield from _read_data_file(path, {})


def _read_folder(folder: Path, html: HtmlMode, left_out: LeftOut | None) -> Iterator[Source]:
    others: Counter[str] = Counter()
    for path in _walk(folder, left_out):
        try:
            if left_out is not None and path.is_symlink() and _may_be_read(path):
                _check_link(path, folder)
            yield from _read_of_folder(path, folder, html, others)
        except DataError as error:
            if left_out is None:
                raise
            is_row = re.match(rf"{re.escape(str(path))}(:| row )\d+", str(error))
            left_out.add(_printable(str(path)), f"{error}; the rows after it are not read" if is_row else error)
    if others:
        counts = _printable(", ".join(f"{count} {name}" for name, count in sorted(others.items())))
        if left_out is None:
            _LOG.warning("%s: left out what holds no pages: %s", folder, counts)
        else:
            left_out.others = counts


def _read_of_folder(path: Path, folder: Path, html: HtmlMode, others: Counter[str]) -> Iterator[Source]:
    """The pages of one file; one that holds none is counted in `others` by its suffix."""
    name, suffix = path.relative_to(folder), path.suffix.lower()
    if path.is_dir():
        others["linked folder (index it by itself)"] += 1
    elif path.exists() and not path.is_file():
        others["pipe or socket"] += 1
    elif suffix in KINDS:
        metadata = {"file": _text_of_name(name), "kind": KINDS[suffix]}
        yield _page_source(path, name.with_suffix("").as_posix(), html, metadata)
    elif (not path.is_symlink() or _may_be_read(path)) and _has_documents(path):
        yield from _read_data_file(path, {"file": _text_of_name(name), "kind": data_files.sniff(path)})
    else:
        others[suffix or path.name] += 1


def _may_be_read(path: Path) -> bool:
    """Whether a link's name does not say that it is something else than pages, such as an image."""
    return path.suffix.lower() in {"", *KINDS} or path.is_dir() or _TABLE_NAME.search(path.name) is not None


def _check_link(path: Path, folder: Path) -> None:
    """A DataError where a link leads nowhere, in circles, or out of the folder: its owner did not offer that."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise DataError("a link that leads nowhere") from None
    if not target.is_relative_to(folder.resolve()):
        raise DataError(f"a link that leads out of the folder, to {_printable(str(target))}; it is not followed")


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _text_of_name(name: Path) -> str:
    text = name.as_posix()
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"the name of the file {os.fsencode(name)!r} is not UTF-8; rename the file") from None
    return text


def _has_documents(path: Path) -> bool:
    """Whether a data file among pages is meant as pages: its columns decide, or the fields of its first row.

    Where the name says what the file is, one that cannot be read is meant, and is an error when it is read.
    """
    try:
        kind = data_files.sniff(path)
        if kind in ("csv", "parquet"):
            return _are_of_documents(data_files.columns_of(path, kind))
        first = next(data_files.read_jsonl(path), None) if kind == "jsonl" else None
    except DataError:
        return _DATA_NAME.search(path.name) is not None
    return first is not None and _are_of_documents(list(first.fields))


def _walk(folder: Path, left_out: LeftOut | None) -> Iterator[Path]:
    """Files in the order of their paths, and links to folders, which are not followed: they may lead in circles.

    Of documentation that Sphinx made, its sources (which say all of it twice) and its lists of names are left out.
    """

    def fail(error: OSError) -> None:
        if left_out is not None:
            left_out.add(_printable(str(error.filename)), f"a folder that cannot be read: {error.strerror}")
            return
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}; make it readable") from None

    for parent, folders, files in os.walk(folder, onerror=fail):
        is_sphinx = _SPHINX_INVENTORY in files
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_") if is_sphinx else "."))
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*files, *links]):
            if not name.startswith(".") and not (is_sphinx and _SPHINX_LISTS.fullmatch(name)):
                yield Path(parent, name)


# --- rows and articles


def _read_data_file(path: Path, metadata: Mapping[str, str]) -> Iterator[Source]:
    kind = data_files.sniff(path)
    if kind == "json":
        raise DataError(f"{path} is one JSON array; {_ACCEPTED}; write one object per line, as `jq -c '.[]'` does")
    elif kind == "text":
        raise DataError(f"{path} is neither JSONL nor CSV nor Parquet; {_ACCEPTED}")
    elif kind == "parquet":
        found = data_files.columns_of(path, kind)
        if not _are_of_documents(found):
            raise DataError(f"{path} has the columns {', '.join(found)}; {_ACCEPTED}; rename the columns")
        rows = data_files.read_parquet(path, data_files.columns_of(path, kind, only_plain=True))
        yield from (_row_source(row, metadata) for row in rows)
    else:
        rows = data_files.read_csv(path) if kind == "csv" else data_files.read_jsonl(path)
        yield from (_row_source(row, metadata) for row in rows)


def _are_of_documents(columns: Sequence[str]) -> bool:
    return {"id", "title", "content"} <= set(columns) or {"id", "contents"} <= set(columns)


def _row_source(row: Row, metadata: Mapping[str, str]) -> Source:
    fields, where = row.fields, row.where
    # A Parquet file has both columns in every row when it has them in one.
    if fields.get("content") is not None:
        title = data_files.text_of(fields.get("title"), "title", where)
        content = data_files.text_of(fields["content"], "content", where, may_be_empty=True)
    elif fields.get("contents") is not None:
        title, content = _split_contents(data_files.text_of(fields["contents"], "contents", where))
    else:
        names = ", ".join(fields) or "nothing"
        raise DataError(
            f"{where}: a row with {names}; expected {{id, title, content}} or {{id, contents}}; rename the fields"
        )
    page_id = data_files.id_of(fields.get("id"), "id", where)
    texts = ((name, _short_text(value)) for name, value in fields.items() if name not in _COLUMNS)
    columns = {name: text for name, text in texts if 0 < len(text) <= _MAX_METADATA_CHARS}
    document = Document(page_id, title, content, {**metadata, **columns})
    return Source(document.id, where, "", lambda: document)


def _short_text(value: Json) -> str:
    """A column's value as text, of a list of texts one text; empty for what is nested."""
    if isinstance(value, list):
        texts = [each for each in value if isinstance(each, str)]
        return "; ".join(texts) if len(texts) == len(value) else ""
    if value is None or isinstance(value, dict):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split_contents(contents: str) -> tuple[str, str]:
    """Search-R1's layout: the title in double quotes on the first line. Without quotes, all of it is body."""
    first, _, rest = contents.partition("\n")
    first = first.strip()
    if len(first) > 2 and first.startswith('"') and first.endswith('"'):
        return first[1:-1].strip(), rest.strip()
    return "", contents.strip()


# --- pages


def _page_source(path: Path, page_id: str, html: HtmlMode, metadata: Mapping[str, str]) -> Source:
    data = data_files.read_bytes(path)
    # Its name counts too: the suffix decides the parser, the stem may become the title.
    digest = text_digest(hashlib.blake2b(data, digest_size=16).hexdigest(), path.name, *metadata.values())
    return Source(page_id, str(path), digest, lambda: _parse_page(path, data, page_id, html, metadata))


def _parse_page(path: Path, data: bytes, page_id: str, html: HtmlMode, metadata: Mapping[str, str]) -> Document:
    kind, title = KINDS[path.suffix.lower()], ""
    if kind == "pdf":
        title, text = pdf_to_markdown(data, str(path))
        if not text:
            _LOG.warning("%s: no text in it; if it is a scan, recognise its text first", path)
    else:
        text = page_text(data, str(path), is_html=kind == "html")
        data_files.check_characters(text, "the page", str(path))
    if kind == "html":
        page = article_to_markdown(text) if html == "article" else html_to_markdown(text)
        text, title = page.markdown, page.heading or page.title
    if not title:
        headings = find_headings(text) if kind != "pdf" else []
        title = headings[0].name if headings else path.stem
    return Document(page_id, title, text, metadata)
