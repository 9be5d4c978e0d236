"""Documents come out as they went in, whatever the format, and a bad row is named by file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from seekling.corpus import readers
from seekling.corpus.html import article_to_markdown, html_to_markdown
from seekling.corpus.passages import cut_passages
from seekling.corpus.readers import read_documents
from seekling.corpus.sections import list_sections
from seekling.errors import DataError
from seekling.types import Document

SHARED = Path(__file__).parents[3] / "shared" / "data"
PAGES = [Document("1", "Ferry", "# Ferry\n\nA boat."), Document("b:2", "Ödland", "Text\u2028more")]
ROWS = [{"id": page.id, "title": page.title, "content": page.content} for page in PAGES]


def _write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def _lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _error(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_documents(path))
    return str(caught.value).replace(f"{path.parent}/", "")


def test_jsonl_plain_gzipped_and_parquet_give_the_same_documents(tmp_path):
    plain = _write(tmp_path / "corpus.jsonl", _lines(ROWS))
    zipped = _write(tmp_path / "corpus.data", gzip.compress(_lines(ROWS).encode()))
    packed = _write(tmp_path / "corpus.packed", bz2.compress(_lines(ROWS).encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "corpus.bin")
    for path in (plain, str(plain), zipped, packed, tmp_path / "corpus.bin"):
        assert list(read_documents(path)) == PAGES


def test_search_r1_rows_have_their_title_in_quotes_on_the_first_line(tmp_path):
    rows = [
        {"id": "0", "contents": '"Ferry"\nA boat.\nIt floats.'},
        {"id": 1, "contents": '""Weird Al" Yankovic"\nA singer.'},
        {"id": "2", "contents": "No title here.\nJust text."},
        {"id": "3", "contents": '"Only a title"'},
    ]
    expected = [
        Document("0", "Ferry", "A boat.\nIt floats."),
        Document("1", '"Weird Al" Yankovic', "A singer."),
        Document("2", "", "No title here.\nJust text."),
        Document("3", "Only a title", ""),
    ]
    assert list(read_documents(_write(tmp_path / "c.jsonl", _lines(rows)))) == expected
    table = pyarrow.Table.from_pylist([{**row, "id": str(row["id"])} for row in rows])
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    assert list(read_documents(tmp_path / "c.parquet")) == expected


def test_reading_streams(tmp_path):
    path = _write(tmp_path / "c.jsonl", _lines(ROWS) + "broken")
    documents = read_documents(path)
    assert [next(documents), next(documents)] == PAGES


def test_a_folder_of_pages_is_read_in_order_with_ids_from_paths(tmp_path, caplog):
    _write(tmp_path / "b.md", "text\n```\n# code\n```\n## First *heading*\n")
    _write(tmp_path / "guide" / "v1.2.html", "<title>Site - Install</title><h1>Install</h1><p>Do it.")
    _write(tmp_path / "guide" / "plain.htm", "<title> Just  this </title><h2>Sub</h2>x")
    _write(tmp_path / "notes.txt", "\ufeffno heading")
    _write(tmp_path / "empty.md", "")
    _write(tmp_path / ".git" / "x.md", "hidden")
    _write(tmp_path / "logo.png", b"\x89PNG\x00")
    with caplog.at_level(logging.WARNING):
        documents = list(read_documents(tmp_path))
    assert documents == [
        Document("b", "First *heading*", "text\n```\n# code\n```\n## First *heading*\n"),
        Document("empty", "empty", ""),
        Document("notes", "notes", "no heading"),
        Document("guide/plain", "Just this", "## Sub\n\nx"),
        Document("guide/v1.2", "Install", "# Install\n\nDo it."),
    ]
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}: left out what holds no pages: 1 .png"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"id": "x", "title": 3, "content": "c"}', "'title' is 3 (int); expected a text; correct the row or"),
        ('{"id": "x", "title": " ", "content": "c"}', "'title' is empty; expected a text; fill it in or remove the"),
        ('{"id": "x", "content": "c"}', "'title' is missing; expected a text"),
        ('{"title": "T", "content": "c"}', "'id' is missing; expected a text"),
        ('{"id": 1.5, "title": "T", "content": "c"}', "'id' is 1.5 (float); expected a text"),
        ('{"id": true, "title": "T", "content": "c"}', "'id' is true (bool); expected a text"),
        ('{"id": "x", "title": "T", "content": ["c"]}', "'content' is [\"c\"] (list); expected a text"),
        ('{"id": "x", "contents": ""}', "'contents' is empty"),
        ('{"id": "x", "title": "T", "text": "c"}', "a row with id, title, text; expected {id, title, content} or {id,"),
        ("{}", "a row with nothing; expected {id, title, content} or {id, contents}; rename the fields"),
        ("[1]", "got [1] (list); expected a JSON object with named fields"),
        ('{"id": "x"', "not JSON: Expecting ',' delimiter at character 11, near"),
        ('{"id": "x", "title": "T", "content": "a\\u0000b"}', "'content' holds a NUL at character 2; expected"),
        ('{"id": "x", "title": "\\ud83d", "content": "c"}', "'title' holds \\ud83d, half of a surrogate"),
        ("[" * 100_000, "JSON that cannot be read: "),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row, message):
    path = _write(tmp_path / "c.jsonl", _lines(ROWS) + "\n" + row + "\n")
    assert _error(path).startswith(f"c.jsonl:4: {message}")


def test_an_id_used_twice_names_both_lines(tmp_path):
    path = _write(tmp_path / "c.jsonl", _lines([ROWS[0], ROWS[1], {**ROWS[0], "title": "Again"}]))
    assert _error(path) == (
        "c.jsonl:3: the id '1' was already used at c.jsonl:1; expected each id once, and one page per name, whatever "
        "its suffix; rename or remove one of them"
    )
    _write(tmp_path / "folder" / "a.md", "x")
    _write(tmp_path / "folder" / "a.txt", "x")
    assert _error(tmp_path / "folder") == (
        "folder/a.txt: the id 'a' was already used at folder/a.md; expected each id once, and one page per name, "
        "whatever its suffix; rename or remove one of them"
    )


ACCEPTED = (
    "expected JSONL rows {id, title, content} or {id, contents}, CSV or Parquet with these columns, a .md, "
    ".html, .pdf or .txt page, or a folder of such files"
)


def test_what_is_no_corpus_is_refused_with_what_would_be_one(tmp_path):
    assert _error(_write(tmp_path / "c.dat", "id,title\n")) == f"c.dat is neither JSONL nor CSV nor Parquet; {ACCEPTED}"
    assert _error(_write(tmp_path / "c.json", " \n[{}]")) == (
        f"c.json is one JSON array; {ACCEPTED}; write one object per line, as `jq -c '.[]'` does"
    )
    assert _error(_write(tmp_path / "e.jsonl", " \n" * 5000)) == f"e.jsonl holds no documents; {ACCEPTED}"
    (tmp_path / "void").mkdir()
    assert _error(tmp_path / "void") == f"void holds no documents; {ACCEPTED}"
    assert _error(tmp_path / "gone.jsonl").startswith("there is no file gone.jsonl; check the spelling")
    pyarrow.parquet.write_table(pyarrow.table({"docid": ["1"], "body": ["x"]}), tmp_path / "c.parquet")
    assert _error(tmp_path / "c.parquet") == f"c.parquet has the columns docid, body; {ACCEPTED}; rename the columns"


def test_damaged_files_are_called_damaged(tmp_path):
    noise = "".join(str(number * 7919) for number in range(20_000))
    whole = gzip.compress(_lines([{"id": "1", "title": "T", "content": noise}]).encode())
    assert _error(_write(tmp_path / "c.gz", whole[: len(whole) // 2])).startswith("c.gz is a damaged compressed file: ")
    assert _error(_write(tmp_path / "c.parquet", b"PAR1" + bytes(50))).startswith("c.parquet is a damaged Parquet file")


def test_html_keeps_headings_lists_tables_and_code_and_leaves_scripts_and_navigation_out():
    page = html_to_markdown(
        "<!doctype html><html><head><title>The  Doc &amp; more</title><style>h1 {}</style>"
        "<script>if (a < b) {}</script></head><body><nav><h1>Menu</h1><ul><li>x</ul></nav>"
        "<h1><a href='#'>Install</a></h1><p>One <b>two</b>\nthree<br># no heading<p>Less &lt; more"
        "<h2><div>Sub</div></h2><ul><li><p>item one</p></li><li>two<ul><li>nested</li></ul></li><li></li></ul>after"
        "<table><tr><th>a</th><th>b</th></tr><tr><td><p>1</p></td><td>2</td></tr></table>"
        "tail<pre><code># comment\n```x\n</code></pre>"
    )
    assert page.title == "The Doc & more"
    assert page.heading == "Install"
    assert page.markdown == (
        "# Install\n\nOne two three\n\\# no heading\n\nLess < more\n\n## Sub\n\n"
        "- item one\n- two\n- nested\n\nafter\n\n| a | b\n| --- | --- |\n| 1 | 2\n\ntail\n\n````\n# comment\n```x\n````"
    )
    names = [section.name for section in list_sections(Document("p", "Install", page.markdown))]
    assert names == ["Lead", "Install", "Sub"]


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
    assert _error(tmp_path / "c.csv").startswith(message)


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


@pytest.mark.parametrize(
    ("name", "num_documents"), [("trivia", 2500), ("nq_open", 13568), ("hotpotqa", 13648), ("squad_pages", 490)]
)
def test_real_pages_are_read_and_cut_without_losing_a_word(name, num_documents):
    path = SHARED / name / "corpus.jsonl"
    if not path.exists():
        pytest.skip(f"real data is not here ({path})")
    count = 0
    for document in read_documents(path):
        count += 1
        if count % 50 == 1:
            remaining = iter(" ".join(each.text for each in cut_passages(document, words=60)).split())
            lines = [line for line in document.content.split("\n") if not line.startswith("#")]
            assert all(word in remaining for word in " ".join(lines).split())
    assert count == num_documents
