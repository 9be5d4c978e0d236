"""Rows of JSON, JSONL, CSV (plain or compressed) and Parquet files, one at a time, each knowing where it stands.

What is in a row is the business of `readers` and `questions`; here a file becomes rows, and a file that is not what it
should be becomes an error that names the place. The kind of file is read off its first bytes, never off its name; only
CSV, whose bytes say nothing, goes by its name.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, cast

from seekling.corpus.encodings import decode_utf8, mark_of
from seekling.errors import DataError
from seekling.types import Json

if TYPE_CHECKING:
    import pyarrow.parquet  # type: ignore[import-untyped]

FileKind = Literal["jsonl", "json", "parquet", "csv", "text", "empty"]

_UTF8_BOM = b"\xef\xbb\xbf"
_SHOWN_CHARS = 60
_PARQUET_BATCH_ROWS = 256
_CSV_CELL_CHARS = 100_000_000
_CSV_NAME = re.compile(r"\.(csv|tsv)(\.gz|\.bz2)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file."""

    where: str
    """File and place, as a message shows it: `corpus.jsonl:12`, `corpus.parquet row 12`."""
    number: int
    """1-based line or row number."""
    fields: dict[str, Json]


# --- files


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, through gzip or bzip2 when its first bytes say so; a DataError if it cannot be read."""
    try:
        with path.open("rb") as plain:
            magic = plain.read(3)
            plain.seek(0)
            if magic[:2] == b"\x1f\x8b":
                yield cast(IO[bytes], gzip.GzipFile(fileobj=plain))
            else:
                yield cast(IO[bytes], bz2.BZ2File(plain)) if magic == b"BZh" else plain
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check the spelling, relative paths start at {Path.cwd()}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged compressed file: {error}; fetch or compress it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; expected a readable file") from None


def read_bytes(path: Path) -> bytes:
    """Read a whole file, without a UTF-8 byte order mark. Raises DataError."""
    with open_bytes(path) as file:
        return file.read().removeprefix(_UTF8_BOM)


def sniff(path: Path) -> FileKind:
    """Tell what a file holds from its first bytes.

    Returns:
        "jsonl" for an object at the start (possibly one JSON object over many lines), "json" for an array, "parquet",
        "empty" for nothing but white space, "csv" for a name that says so (.csv, .tsv, also with .gz or .bz2),
        otherwise "text".

    Raises:
        DataError: there is no such file, it cannot be read, or it is UTF-16 and no CSV.
    """
    is_csv = _CSV_NAME.search(path.name) is not None
    with open_bytes(path) as file:
        head = file.read(4096)
        if head.startswith(b"PAR1"):
            return "parquet"
        if is_csv and mark_of(head).startswith(("utf-16", "utf-32")):
            return "csv"
        _refuse_utf16(head, str(path))
        head = head.removeprefix(_UTF8_BOM).lstrip()
        while not head and (more := file.read(1 << 16)):
            head = more.lstrip()
    if not head:
        return "empty"
    if is_csv:
        return "csv"
    return "jsonl" if head.startswith(b"{") else "json" if head.startswith(b"[") else "text"


# --- JSON


def is_one_object(path: Path) -> bool:
    """Whether a file that starts with '{' is one JSON object, as SQuAD's are, instead of one per line."""
    with open_bytes(path) as file:
        filled = (line for line in map(bytes.strip, file) if line)
        first, second = next(filled, b"").removeprefix(_UTF8_BOM), next(filled, b"")
    if second:
        # The first line of an object over several lines is unfinished, the second one of its fields.
        return not first.endswith(b"}") and not second.startswith(b"{")
    return b'"data"' in first


def read_jsonl(path: Path) -> Iterator[Row]:
    """Stream the objects of a JSONL file, but for blank lines; a DataError names a line that is none."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(_UTF8_BOM) if number == 1 else line
            if text.strip():
                where = f"{path}:{number}"
                yield Row(where, number, _object(_parse_json(text, where), where))


def read_json(path: Path) -> Json:
    """Parse a whole file as one JSON value. Raises DataError."""
    return _parse_json(read_bytes(path), str(path))


def items_as_rows(path: Path, items: Iterable[Json]) -> Iterator[Row]:
    """The objects of a JSON array as rows. Raises DataError for an item that is no object."""
    for number, item in enumerate(items, start=1):
        where = f"{path} item {number}"
        yield Row(where, number, _object(item, where))


def _parse_json(data: bytes, where: str) -> Json:
    _refuse_utf16(data, where)
    text = decode_utf8(data, where).rstrip()
    try:
        return cast(Json, json.loads(text))
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20].strip()
        raise DataError(
            f"{where}: not JSON: {error.msg} at character {error.pos + 1}, near {near!r}; "
            "expected one JSON object per line; correct the line or remove it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read: {error}; correct the line or remove it") from None


def _refuse_utf16(data: bytes, where: str) -> None:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{where} is UTF-16; expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8")


def _object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: got {shown(value)}; expected a JSON object with named fields; correct the row")
    return value


# --- CSV


def read_csv(path: Path) -> Iterator[Row]:
    """Stream the rows of a CSV file with a line of column names; comma, semicolon or tab, whichever that line has most.

    It is UTF-8, or what a byte order mark says: spreadsheets also write UTF-16. Raises a DataError for another
    encoding, what is not CSV, columns without names of their own, and rows with more cells than columns.
    """
    csv.field_size_limit(_CSV_CELL_CHARS)  # the module's own limit is shorter than many a page
    try:
        yield from _csv_rows(path)
    except UnicodeDecodeError as error:
        if error.encoding == "utf-8":
            with open_bytes(path) as file:
                for number, line in enumerate(file, start=1):
                    decode_utf8(line, f"{path}:{number}")
        name = error.encoding.upper()
        raise DataError(f"{path} is damaged {name}: {error.reason}; write or fetch it again") from None


def _csv_rows(path: Path) -> Iterator[Row]:
    with _open_csv(path) as (file, names, delimiter):
        if "" in names or len(set(names)) < len(names):
            raise DataError(
                f"{path}:1: the columns are {', '.join(names)!r}; expected distinct names; correct the line"
            )
        reader = csv.DictReader(file, names, delimiter=delimiter, strict=True)
        for number in itertools.count(2):
            where = f"{path}:{1 + reader.line_num + 1}"
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise DataError(f"{where}: not CSV: {error}; correct the row or remove it") from None
            if cells is None:
                return
            if None in cells:
                raise DataError(f"{where}: a row of more than {len(names)} cells; quote those that hold a separator")
            yield Row(where, number, dict(cells))


@contextlib.contextmanager
def _open_csv(path: Path, errors: str = "strict") -> Iterator[tuple[IO[str], list[str], str]]:
    """The file below its first line, the names of its columns, and what separates them."""
    with open_bytes(path) as raw:
        encoding = mark_of(raw.read(4)) or "utf-8"
    with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="") as file:
        line = file.readline(_CSV_CELL_CHARS)
        delimiter = max(",;\t", key=line.count)
        yield file, next(csv.reader([line], delimiter=delimiter), []), delimiter


# --- Parquet


def read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Stream these columns of a Parquet file, as far as it has them; `a.b` is the member b of the struct a.

    Raises a DataError for a damaged file.
    """
    with _open_parquet(path) as file:
        batches = file.iter_batches(batch_size=_PARQUET_BATCH_ROWS, columns=list(columns))
        for number, fields in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield Row(f"{path} row {number}", number, fields)


def columns_of(path: Path, kind: FileKind, *, only_plain: bool = False) -> list[str]:
    """Names of the columns of a CSV or Parquet file. Raises a DataError if it cannot be read.

    `only_plain`: of Parquet, those with texts, numbers, dates or lists of texts: no vectors, no nested rows.
    """
    if kind == "csv":
        with _open_csv(path, errors="replace") as (_, names, _):
            return names
    with _open_parquet(path) as file:
        return [str(field.name) for field in file.schema_arrow if not only_plain or _is_plain(field.type)]


def _is_plain(column: pyarrow.DataType) -> bool:
    from pyarrow import types

    each = column.value_type if types.is_list(column) else column
    is_text = types.is_string(each) or types.is_large_string(each)
    return bool(is_text or (types.is_primitive(column) and not types.is_duration(column)))


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is a damaged Parquet file: {error}; write or fetch it again") from None


# --- values of fields


def text_of(value: Json, name: str, where: str, *, may_be_empty: bool = False) -> str:
    """A field that must be a text that can be stored and shown, and not empty; else a DataError."""
    if not isinstance(value, str):
        raise DataError(f"{where}: {name!r} is {shown(value)}; expected a text; correct the row or remove it")
    check_characters(value, name, where)
    if not may_be_empty and not value.strip():
        raise DataError(f"{where}: {name!r} is empty; expected a text; fill it in or remove the row")
    return value


def check_characters(text: str, name: str, where: str) -> None:
    """Refuse what no tokenizer and no file can take: a NUL, or half of a surrogate pair. Raises DataError."""
    position = text.find("\0")
    if position >= 0:
        raise DataError(
            f"{where}: {name!r} holds a NUL at character {position + 1}; expected text; "
            "it looks like binary data, so remove the row or strip the character"
        )
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {name!r} holds \\u{ord(text[error.start]):04x}, half of a surrogate pair, at character "
            f"{error.start + 1}; expected whole characters; write the file again as UTF-8 text"
        ) from None


def id_of(value: Json, name: str, where: str) -> str:
    """An id: a text that is not empty, or a whole number, which becomes a text. Raises DataError."""
    return str(value) if is_whole(value) else text_of(value, name, where)


def is_whole(value: Json) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: Json) -> str:
    """A value as an error message shows it: short, with its type unless it is missing."""
    if value is None:
        return "missing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
    return f"{text} ({type(value).__name__})"
