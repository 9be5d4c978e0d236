"""A file of JSON lines that grows, is cut back, replaced or damaged while it is read."""

import pytest

from seekling.errors import DataError
from seekling.report.json_lines import JsonLinesFile


def parse(row):
    if "x" not in row:
        raise DataError("not a row\n  x: missing")
    return row["x"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def open_file(path, **settings):
    return JsonLinesFile(path, "rows.jsonl", parse, is_growing=settings.pop("is_growing", False))


def test_only_what_was_added_is_read(path):
    path.write_text('{"x": 1}\n')
    file = open_file(path)
    assert file.refresh()
    items = file.items
    with path.open("a") as more:
        more.write('{"x": 2}\n')
    assert file.refresh()
    assert file.items == [1, 2]
    assert file.items is items
    assert not file.refresh()


def test_a_line_that_grows_is_read_when_it_is_whole(path):
    path.write_text('{"x": 1}\n{"x": ')
    file = open_file(path, is_growing=True)
    file.refresh()
    assert (file.all_items, file.problems) == ([1], [])
    path.write_text('{"x": 1}\n{"x": 2}')
    file.refresh()
    assert (file.items, file.all_items) == ([1], [1, 2])
    path.write_text('{"x": 1}\n{"x": 2}\n')
    file.refresh()
    assert (file.items, file.all_items) == ([1, 2], [1, 2])


@pytest.mark.parametrize("content", ['{"x": 7}\n', '{"x": 7}\n{"x": 8}\n{"x": 9}\n', "", '{"x": 1}\n{"x": 5}\n'])
def test_a_file_with_another_beginning_is_read_anew(path, content):
    path.write_text('{"x": 1}\n{"x": 2}\n')
    file = open_file(path)
    file.refresh()
    before = file.items
    other = path.with_suffix(".tmp")
    other.write_text(content)
    other.replace(path)
    file.refresh()
    assert file.items == [int(line[6]) for line in content.splitlines()]
    assert file.items is not before


def test_a_file_that_vanished_and_came_back(path):
    path.write_text('{"x": 1}\n')
    file = open_file(path)
    file.refresh()
    path.unlink()
    assert file.refresh()
    assert (file.all_items, file.problems) == ([], ["rows.jsonl is missing."])
    assert not file.refresh()
    path.write_text('{"x": 1}\n')
    assert file.refresh()
    assert (file.all_items, file.problems) == ([1], [])


def test_what_a_row_lacks_is_named(path):
    path.write_text('{"y": 1}\n')
    file = open_file(path)
    file.refresh()
    assert file.problems == ["rows.jsonl: x: missing; left out."]
