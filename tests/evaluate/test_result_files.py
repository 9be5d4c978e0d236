"""Evaluations on disk."""

import pytest

from seekling.errors import DataError
from seekling.evaluate.result_files import read_records, read_summary, write_summary
from seekling.evaluate.summary import summarize
from tests.evaluate.episodes import evaluation, write_episodes


def test_records_and_summary_come_back_as_they_were_written(tmp_path):
    records = evaluation("rwf", stage="eval-rl")
    assert list(read_records(write_episodes(tmp_path, "eval-rl", records))) == records
    summary = summarize(records)
    path = write_summary(tmp_path, summary)
    assert path == tmp_path / "eval" / "rl.json"
    assert read_summary(path) == summary
    assert [entry.name for entry in path.parent.iterdir()] == ["rl.json"]


def test_a_cut_line_is_named_with_file_and_line(tmp_path):
    path = write_episodes(tmp_path, "eval-rl", evaluation("rw", stage="eval-rl"))
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DataError, match=r"eval-rl\.jsonl:2: not an episode record .* evaluate again"):
        list(read_records(path))


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"stage": "x", "question": 3, "episode": {}}', b"nonsense", b"\xff\xfe\x00"]
)
def test_a_line_that_is_no_record_is_refused(tmp_path, line):
    path = tmp_path / "e.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(DataError, match=r"e\.jsonl:1: not an episode record"):
        list(read_records(path))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.jsonl .*each of its lines should be an episode record"):
        list(read_records(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="is not an evaluation summary"):
        read_summary(tmp_path / "none.json")
