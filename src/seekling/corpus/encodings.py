"""The text of a page, in whatever encoding it says it is written.

Nothing is guessed from the frequencies of letters: of French in Windows-1252 such guesses make Polish without a word. A
byte order mark counts, then UTF-8 where the bytes are that, then what an HTML page itself declares.
"""

from __future__ import annotations

import codecs
import re

from seekling.errors import DataError

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What browsers read under a name: pages that say ISO-8859-1 have the quotes and dashes of Windows-1252.
_READ_AS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs",
}  # fmt: skip
_KNOWN = re.compile(
    r"cp(866|874|932|949|125[0-8])|iso8859-([2-8]|1[03-6])|utf-8|koi8-[ru]|mac-(roman|cyrillic)|gb18030|big5hkscs"
    r"|euc_jp|iso2022_jp"
)
"""Encodings of the web, by Python's names."""
_HEAD_BYTES = 4096
_COMMENT = re.compile(rb"<!--.*?(-->|\Z)", re.DOTALL)
_DECLARED = re.compile(
    rb"""<\?xml\b[^>]*?\bencoding\s*=\s*["']([\w.:-]+)|<meta\b[^>]*?\bcharset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
_CONVERT = "convert the file, for instance with: iconv -f WINDOWS-1252 -t UTF-8"
_LEAVE_OUT = "or leave it out by a name that starts with a dot"


def page_text(data: bytes, where: str, *, is_html: bool) -> str:
    """Decode a whole page; of HTML, <meta charset> or an XML declaration at the beginning counts.

    Raises:
        DataError: it is neither UTF-8 nor what it says it is; names `where` it stands and the first wrong byte.
    """
    encoding, reason = mark_of(data), "it begins as {} does"
    declared = _declared(data) if is_html and not encoding else ""
    # Text of another encoding is hardly ever valid UTF-8, unless it is all ASCII with escapes.
    if not encoding and not (declared and b"\x1b" in data):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            if not declared:
                name_it = "name its encoding in <meta charset=...>, or " if is_html else ""
                return decode_utf8(data, where, f"{name_it}{_CONVERT}, {_LEAVE_OUT}")
    if not encoding:
        encoding, reason = _known(declared), f"it says that its encoding is {declared!r}"
    if not encoding:
        raise DataError(f"{where}: {reason}, which is not known here, and it is not UTF-8; {_CONVERT}, {_LEAVE_OUT}")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        wrong = data[error.start : error.start + 1].hex() or "nothing"
        raise DataError(
            f"{where}: {reason.format(encoding.upper())}, but byte 0x{wrong} at byte {error.start + 1} is not; "
            f"{_CONVERT}, {_LEAVE_OUT}"
        ) from None


def mark_of(data: bytes) -> str:
    """The encoding that a byte order mark at the beginning names; empty where there is none."""
    return next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")


def decode_utf8(data: bytes, where: str, advice: str = _CONVERT) -> str:
    """Decode UTF-8, or raise a DataError that names the place, the first wrong byte, and what to do."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8: byte 0x{data[error.start]:02x} at byte {error.start + 1}; {advice}"
        ) from None


def _declared(data: bytes) -> str:
    found = _DECLARED.search(_COMMENT.sub(b"", data[:_HEAD_BYTES]))
    return (found[1] or found[2]).decode("ascii", "replace") if found else ""


def _known(declared: str) -> str:
    """Python's name of a declared encoding; empty where it is none of the web's."""
    try:
        name = codecs.lookup(declared.lower().removeprefix("x-")).name
    except LookupError:
        return ""
    name = _READ_AS.get(name, name)
    return name if _KNOWN.fullmatch(name) else ""
