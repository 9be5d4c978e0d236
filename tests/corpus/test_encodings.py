"""Pages in other encodings than UTF-8: read where they say what they are, refused by name where not, never guessed."""

import pytest

from seekling.corpus.encodings import page_text
from seekling.corpus.readers import read_documents
from seekling.errors import DataError

FRENCH = "Le château mesure 156 mètres, où l\u2019on dénombre 440 pièces"
RUSSIAN = "Москва основана в 1147 году"
JAPANESE = "東京は日本の首都である"


def html_of(text, head):
    return f"<html><head>{head}<title>t</title></head><body><p>{text}</p></body></html>"


def meta(name):
    return f'<meta http-equiv="Content-Type" content="text/html; charset={name}">'


@pytest.mark.parametrize(
    ("text", "declared", "encoding"),
    [
        (FRENCH, '<meta charset="windows-1252">', "cp1252"),
        (FRENCH, "<META CHARSET=ISO-8859-1>", "cp1252"),  # as browsers read it
        (FRENCH, meta("us-ascii"), "cp1252"),
        (RUSSIAN, meta("windows-1251"), "cp1251"),
        (RUSSIAN, "<meta charset='koi8-r'>", "koi8-r"),
        (RUSSIAN, "<!-- <meta charset=cp1252> -->" + meta("x-cp1251"), "cp1251"),
        (JAPANESE, meta("x-sjis"), "cp932"),
        (JAPANESE, meta("EUC-JP"), "euc_jp"),
        (JAPANESE, meta("iso-2022-jp"), "iso2022_jp"),  # all ASCII with escapes: valid UTF-8, too
        ("北京是首都", meta("gb2312"), "gb18030"),
        (FRENCH, meta("windows-1251"), "utf-8"),  # what the bytes are counts more
        (FRENCH, meta("no-such-thing"), "utf-8"),
        (FRENCH, "", "utf-8-sig"),
        (FRENCH, meta("windows-1252"), "utf-16"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_names(tmp_path, text, declared, encoding):
    (tmp_path / "p.html").write_bytes(html_of(text, declared).encode(encoding))
    (document,) = read_documents(tmp_path)
    assert document.content == text


@pytest.mark.parametrize("name", ["p.md", "p.txt"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_count_in_plain_text(tmp_path, name, encoding):
    (tmp_path / name).write_bytes(f"# T\n{FRENCH}".encode(encoding))
    (document,) = read_documents(tmp_path)
    assert document.content == f"# T\n{FRENCH}"


@pytest.mark.parametrize(
    ("raw", "is_html", "message"),
    [
        (b"caf\xe9", False, "p: not UTF-8: byte 0xe9 at byte 4; convert the file, for instance with: iconv"),
        (b"<p>caf\xe9", True, "p: not UTF-8: byte 0xe9 at byte 7; name its encoding in <meta charset=...>, or convert"),
        (b'<meta charset="windows-1252">caf\xe9', False, "p: not UTF-8: byte 0xe9 at byte 33; convert"),
        (b"<meta charset=koi99>\xe9", True, "p: it says that its encoding is 'koi99', which is not known here"),
        (b"<meta charset=unicode_escape>\xe9", True, "p: it says that its encoding is 'unicode_escape', which is not"),
        (b"<meta charset=utf-8>\xe9", True, "p: it says that its encoding is 'utf-8', but byte 0xe9 at byte 21 is not"),
        (b"<meta charset=cp1252>\x81", True, "p: it says that its encoding is 'cp1252', but byte 0x81 at byte 22 is"),
        (b"\xff\xfea", True, "p: it begins as UTF-16 does, but byte 0x61 at byte 3 is not; convert the file"),
    ],
)
def test_a_page_that_does_not_decode_is_refused_with_what_to_do(raw, is_html, message):
    with pytest.raises(DataError) as caught:
        page_text(raw, "p", is_html=is_html)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("or leave it out by a name that starts with a dot")


def test_a_csv_file_of_a_spreadsheet_is_read_as_utf16_and_a_wrong_byte_named_by_its_line(tmp_path):
    table = f"id;contents\n1;{FRENCH}\n2;x\n"
    (tmp_path / "c.csv").write_bytes(table.encode("utf-16"))
    assert [document.content for document in read_documents(tmp_path / "c.csv")] == [FRENCH, "x"]
    assert [document.content for document in read_documents(tmp_path)] == [FRENCH, "x"]
    (tmp_path / "c.csv").write_bytes(table.encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"c\.csv is damaged UTF-16.*: truncated data; write"):
        list(read_documents(tmp_path / "c.csv"))
    (tmp_path / "c.csv").write_bytes(table.encode("cp1252"))
    (tmp_path / "prices.csv").write_bytes("item,price\ncaf\xe9,1\n".encode("cp1252"))
    (tmp_path / "a.md").write_text("x", encoding="utf-8")
    # In a folder, too: a table of pages is not left out because a character of it is wrong; another table is.
    for path in (tmp_path / "c.csv", tmp_path):
        with pytest.raises(DataError, match=r"c\.csv:2: not UTF-8: byte 0xe2 at byte 8; convert"):
            list(read_documents(path))
