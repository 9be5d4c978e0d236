"""Read a corpus, whatever form it has, as a stream of documents.

Understood are JSONL rows `{id, title, content}` and Search-R1's `{id, contents}` (plain or gzipped), Parquet with the
same columns, a single page, and a folder of pages in Markdown, HTML or plain text. Other fields of a row are ignored.
A row that is not understood ends the reading with an error that names its place: nothing is dropped silently, and what
a folder holds besides pages is said in a warning.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from seekling.corpus import rows
from seekling.corpus.html import html_to_markdown
from seekling.corpus.rows import Row
from seekling.corpus.sections import find_headings
from seekling.errors import DataError
from seekling.types import Document

_LOG = logging.getLogger(__name__)

MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".txt"})
HTML_SUFFIXES = frozenset({".html", ".htm"})
_COLUMNS = ("id", "title", "content", "contents")
_ACCEPTED = (
    "expected JSONL rows {id, title, content} or {id, contents} (also .gz), Parquet with these columns, "
    "a .md, .html or .txt page, or a folder of such pages"
)


def read_documents(path: Path | str) -> Iterator[Document]:
    """Stream the documents of a corpus.

    Rows come in file order, pages of a folder in the order of their paths. In a folder the id of a page is its path
    below the folder without suffix; its title is its first heading (of HTML: the first <h1>, else <title>), else its
    file name. Names that start with a dot are passed over. A page without text is a document with empty content.

    Args:
        path: a file or a folder. The format of a data file is told from its content.

    Yields:
        Documents with distinct ids; to know that they are, a 16-byte digest of each id is remembered.

    Raises:
        DataError: there is nothing to read, a row or page is wrong, or an id comes twice; names file and line.
    """
    path = Path(path)
    num_documents = 0
    for document in _read_folder(path) if path.is_dir() else _read_file(path):
        num_documents += 1
        yield document
    if not num_documents:
        raise DataError(f"{path} holds no documents; {_ACCEPTED}")


def _read_file(path: Path) -> Iterator[Document]:
    suffix = path.suffix.lower()
    if suffix in MARKDOWN_SUFFIXES | HTML_SUFFIXES:
        yield _read_page(path, path.stem)
        return
    kind = rows.sniff(path)
    if kind in {"jsonl", "parquet"}:
        yield from _without_duplicates(path, kind == "parquet")
    elif kind == "json":
        raise DataError(f"{path} is one JSON array; {_ACCEPTED}; write one object per line, as `jq -c '.[]'` does")
    elif kind == "text":
        raise DataError(f"{path} is neither JSONL nor Parquet; {_ACCEPTED}")


def _rows(path: Path, is_parquet: bool) -> Iterator[Row]:
    if not is_parquet:
        return rows.read_jsonl(path)
    found = rows.parquet_columns(path)
    if "id" not in found or not {"content", "contents"} & set(found):
        raise DataError(f"{path} has the columns {', '.join(found)}; {_ACCEPTED}; rename the columns")
    return rows.read_parquet(path, [name for name in _COLUMNS if name in found])


def _without_duplicates(path: Path, is_parquet: bool) -> Iterator[Document]:
    seen: set[bytes] = set()
    for row in _rows(path, is_parquet):
        document = _document(row)
        digest = hashlib.blake2b(document.id.encode("utf-8"), digest_size=16).digest()
        if digest in seen:
            # Where the first one stands is not remembered, for a corpus may have 21 million: look again.
            first = next(each for each in _rows(path, is_parquet) if _id(each) == document.id)
            raise DataError(
                f"{row.where}: the id {document.id!r} was already used at {first.where}; "
                "expected each id once; rename or remove one of them"
            )
        seen.add(digest)
        yield document


def _id(row: Row) -> str:
    return rows.id_of(row.fields.get("id"), "id", row.where)


def _document(row: Row) -> Document:
    fields, where = row.fields, row.where
    # A Parquet file has both columns in every row when it has them in one.
    if fields.get("content") is not None:
        title = rows.text_of(fields.get("title"), "title", where)
        return Document(_id(row), title, rows.text_of(fields["content"], "content", where, may_be_empty=True))
    if fields.get("contents") is not None:
        title, body = _split_contents(rows.text_of(fields["contents"], "contents", where))
        return Document(_id(row), title, body)
    names = ", ".join(fields) or "nothing"
    raise DataError(
        f"{where}: a row with {names}; expected {{id, title, content}} or {{id, contents}}; rename the fields"
    )


def _split_contents(contents: str) -> tuple[str, str]:
    """Search-R1's layout: the title in double quotes on the first line. Without quotes, all of it is body."""
    first, _, rest = contents.partition("\n")
    first = first.strip()
    if len(first) > 2 and first.startswith('"') and first.endswith('"'):
        return first[1:-1].strip(), rest.strip()
    return "", contents.strip()


def _read_folder(folder: Path) -> Iterator[Document]:
    places: dict[str, Path] = {}
    others: Counter[str] = Counter()
    for path in _walk(folder):
        if path.suffix.lower() not in MARKDOWN_SUFFIXES | HTML_SUFFIXES:
            others[path.suffix.lower() or path.name] += 1
            continue
        page_id = path.relative_to(folder).with_suffix("").as_posix()
        if page_id in places:
            raise DataError(
                f"{path}: the id {page_id!r} was already used by {places[page_id]}; "
                "expected one page per name, whatever its suffix; rename or remove one of them"
            )
        places[page_id] = path
        yield _read_page(path, page_id)
    if others:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
        _LOG.warning("%s: left out what is not .md, .html or .txt: %s", folder, counts)


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}; make it readable") from None

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _read_page(path: Path, page_id: str) -> Document:
    text = rows.decode(rows.read_bytes(path), str(path))
    rows.check_characters(text, "the page", str(path))
    title = ""
    if path.suffix.lower() in HTML_SUFFIXES:
        page = html_to_markdown(text)
        text, title = page.markdown, page.heading or page.title
    if not title:
        headings = find_headings(text)
        title = headings[0].name if headings else path.stem
    return Document(page_id, title, text)
