"""Documents come out as they went in, whatever the format, and a bad row is named by file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from seekling.corpus.html import html_to_markdown
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
