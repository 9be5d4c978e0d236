"""CSV, PDF, articles of HTML, columns: what comes in, and what is refused."""

from __future__ import annotations

import gzip
import json
import logging
import os

import pyarrow
import pyarrow.parquet
import pytest

from seekling.corpus import readers
from seekling.corpus.html import article_to_markdown
from seekling.corpus.readers import read_documents
from seekling.errors import DataError
from seekling.types import Document


def pdf_of(*pages: str, title: str = "") -> bytes:
    """A small PDF file, written by hand: one line of Helvetica a page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET"
        resources = "<< /Font << /F1 3 0 R >> >>"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources {resources} /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    objects.append(f"<< /Title ({title}) >>")
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>"
    xref = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n{trailer}\nstartxref\n{len(data)}\n%%EOF\n"
    )
    return data + xref.encode()


def columns_of(path):
    return {document.id: dict(document.metadata) for document in read_documents(path)}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_rows_are_documents_whatever_separates_them(tmp_path, separator):
    path = tmp_path / "c.csv"
    rows = [
        ["id", "title", "content", "year"],
        ["1", "Ferry", '"A boat,\nand; more"', "1990"],
        ["2", "Dam", "Wall", ""],
    ]
    path.write_text("\n".join(separator.join(row) for row in rows) + "\n", encoding="utf-8-sig")
    assert list(read_documents(path)) == [Document("1", "Ferry", "A boat,\nand; more"), Document("2", "Dam", "Wall")]
    assert columns_of(path) == {"1": {"year": "1990"}, "2": {}}
    zipped = tmp_path / "c.csv.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_documents(zipped)) == list(read_documents(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,title,content\n1,T\n", "c.csv:2: a row with id, title, content; expected"),
        ("id,title,content\n1,T,x,y\n", "c.csv:2: a row of more than 3 cells"),
        ('id,title,content\n1,T,"x\n', "c.csv:2: not CSV: unexpected end of data"),
        ("id,id,content\n1,T,x\n", "c.csv:1: the columns are 'id, id, content'; expected distinct names"),
        ("id,title,content\n1,,x\n", "c.csv:2: 'title' is empty"),
    ],
)
def test_a_bad_csv_row_is_named_by_its_line(tmp_path, text, message):
    (tmp_path / "c.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(read_documents(tmp_path / "c.csv"))
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(message)


def test_short_columns_of_rows_are_kept_and_vectors_texts_and_nested_ones_are_not(tmp_path):
    row = {"id": "1", "title": "T", "content": "c", "year": 1990, "is_stub": True, "tags": ["a", "b"], "score": 0.5}
    left_out = {"vector": [0.1, 0.2], "nested": {"a": "b"}, "raw": "x" * 2000, "empty": "", "none": None}
    (tmp_path / "c.jsonl").write_text(json.dumps({**row, **left_out}), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**row, **left_out}]), tmp_path / "c.parquet")
    expected = {"1": {"year": "1990", "is_stub": "true", "tags": "a; b", "score": "0.5"}}
    assert columns_of(tmp_path / "c.jsonl") == columns_of(tmp_path / "c.parquet") == expected


def test_the_text_of_a_pdf_stands_under_its_pages(tmp_path):
    pytest.importorskip("pypdf", reason="needs the extra ingest")
    (tmp_path / "report.pdf").write_bytes(pdf_of("The castle", "# and the duke", title="Castles"))
    assert list(read_documents(tmp_path)) == [
        Document("report", "Castles", "## Page 1\n\nThe castle\n\n## Page 2\n\n\\# and the duke")
    ]
    assert columns_of(tmp_path) == {"report": {"file": "report.pdf", "kind": "pdf"}}


def test_a_pdf_with_a_filter_or_a_cipher_that_pypdf_lacks_is_named(tmp_path):
    pytest.importorskip("pypdf", reason="needs the extra ingest")
    (tmp_path / "odd.pdf").write_bytes(pdf_of("The castle").replace(b"<< /Length", b"<< /Filter /Own /Length"))
    with pytest.raises(DataError, match=r"odd\.pdf is a PDF that cannot be read: Unsupported filter /Own"):
        list(read_documents(tmp_path))
    aes = b"<< /Filter /Standard /V 5 /R 6 /Length 256 /P -4 /O (%b) /U (%b) /OE (%b) /UE (%b) /Perms (%b) >>"
    aes %= (b"o" * 48, b"u" * 48, b"e" * 32, b"e" * 32, b"p" * 16)
    trailer = b"trailer\n<< /Encrypt " + aes + b" /ID [(a) (a)]"
    (tmp_path / "odd.pdf").write_bytes(pdf_of("The castle").replace(b"trailer\n<<", trailer))
    with pytest.raises(DataError, match=r"odd\.pdf is a PDF that cannot be read: .*(cryptography|decrypted)"):
        list(read_documents(tmp_path))


def test_links_to_folders_and_pipes_are_named_and_a_name_that_is_no_text_is_refused(tmp_path, caplog):
    folder, other = tmp_path / "notes", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "a.md").write_text("# A\nx", encoding="utf-8")
    (folder / "linked").symlink_to(other)
    os.mkfifo(folder / "pipe.md")
    with caplog.at_level(logging.WARNING, "seekling"):
        assert list(columns_of(folder)) == ["a"]
    assert "left out what holds no pages: 1 linked folder (index it by itself), 1 pipe or socket" in caplog.text
    (folder / os.fsdecode(b"caf\xe9.bin")).write_bytes(b"\0")
    assert list(columns_of(folder)) == ["a"]
    (folder / os.fsdecode(b"caf\xe9.md")).write_text("latin", encoding="utf-8")
    with pytest.raises(DataError, match=r"caf\\xe9\.md' is not UTF-8; rename the file"):
        list(read_documents(folder))


def test_data_files_of_a_folder_are_read_beside_its_pages_and_other_tables_left_out(tmp_path, caplog):
    (tmp_path / "a.md").write_text("# A\nx", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"id": "r", "title": "R", "content": "y", "kind": "own"}', encoding="utf-8")
    (tmp_path / "more.csv").write_text("id,title,content\nm,M,z\n", encoding="utf-8")
    (tmp_path / "prices.csv").write_text("item,price\nx,1\n", encoding="utf-8")
    (tmp_path / "qa.jsonl").write_text('{"id": "1", "question": "?", "answers": ["x"]}', encoding="utf-8")
    with caplog.at_level(logging.WARNING, "seekling"):
        found = columns_of(tmp_path)
    assert found == {
        "a": {"file": "a.md", "kind": "markdown"},
        "m": {"file": "more.csv", "kind": "csv"},
        "r": {"file": "rows.jsonl", "kind": "own"},
    }
    assert "left out what holds no pages: 1 .csv, 1 .jsonl" in caplog.text


def test_the_article_of_a_page_is_found_between_its_menus(tmp_path):
    pytest.importorskip("trafilatura", reason="needs the extra ingest")
    text = "The castle of Alnwick was finished in 1309 by a duke who wished to see the river from its tower. " * 3
    html = (
        "<html><head><title>Castle</title></head><body><div class='menu'><ul><li><a href='/'>Home</a></li>"
        f"<li><a href='/x'>Subscribe now</a></li></ul></div><article><h1>Alnwick</h1><p>{text}</p><p>{text}</p>"
        "</article><footer>Cookie settings</footer></body></html>"
    )
    (tmp_path / "p.html").write_text(html, encoding="utf-8")
    (article,) = read_documents(tmp_path / "p.html", html="article")
    (page,) = read_documents(tmp_path / "p.html")
    assert "Subscribe now" in page.content
    assert "Subscribe now" not in article.content
    assert "Cookie" not in article.content
    assert "finished in 1309" in article.content
    assert article.title == page.title == "Alnwick"
    assert article_to_markdown("<p>x").markdown == "x"


def test_many_ids_take_little_memory_and_a_repeated_one_is_still_found(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_RECENT_IDS", 10)
    rows = [{"id": str(n), "title": "T", "content": "c"} for n in [*range(100), 3]]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match=r"c\.jsonl:101: the id '3' was already used at .*c\.jsonl:4"):
        list(read_documents(tmp_path / "c.jsonl"))
