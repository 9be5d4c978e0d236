"""Run folders that are whole, damaged, half-written or not run folders at all."""

import shutil
from pathlib import Path

import pytest

from seekling.errors import DataError
from seekling.report.read import read_run
from tests.report.run_folder import write_run


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "demo", questions=10, steps=3)


@pytest.fixture
def run(whole_run, tmp_path):
    return Path(shutil.copytree(whole_run, tmp_path / "demo"))


def test_a_whole_run_folder_is_read_without_complaint(run):
    folder = read_run(run)
    assert folder.problems == []
    assert folder.recipe["name"] == "demo"
    assert folder.record["seed"] == 0
    assert list(folder.evaluations) == ["base", "sft", "rl"]
    assert len(folder.comparisons) == 3
    assert [len(folder.metrics[stage]) for stage in ("sft", "rl")] == [38, 3]
    stages = [record.stage for record in folder.episodes]
    assert list(dict.fromkeys(stages)) == ["expert", "rl", "eval-base", "eval-sft", "eval-rl"]
    assert stages.count("eval-rl") == 10


def test_damaged_lines_are_counted_not_listed_without_end(run):
    path = run / "episodes" / "eval-rl.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"turns"', '"twists"')
    lines[3:9] = ["{oops", "[]", '"x"', "17", "nonsense", "\x00"]
    path.write_text("\n".join(lines))
    folder = read_run(run)
    assert [record.stage for record in folder.episodes].count("eval-rl") == 3
    name = "episodes/eval-rl.jsonl"
    assert folder.problems[1:] == [
        f"{name}: line 4 is not JSON; left out.",
        f"{name}: line 5 is not an object; left out.",
        f"{name}: 4 more lines left out.",
    ]
    assert folder.problems[0].startswith(f"{name}: ")
    assert "turns" in folder.problems[0]


def test_every_file_may_be_missing_but_one(run):
    for name in ("recipe.toml", "record.json", "progress.json"):
        (run / name).unlink()
    for folder in ("episodes", "eval"):
        for file in (run / folder).iterdir():
            file.unlink()
    folder = read_run(run)
    assert "recipe.toml is missing." in folder.problems
    assert "record.json is missing." in folder.problems
    assert "eval/base.json is missing: no row in the table." in folder.problems
    assert "episodes/ holds no file: there is nothing to page through." in folder.problems
    assert len(folder.metrics["rl"]) == 3


@pytest.mark.parametrize(
    "name", ["recipe.toml", "record.json", "progress.json", "metrics.jsonl", "eval/sft.json", "episodes/rl.jsonl"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01", b"{", b"[[[", b"null", b"[" * 20_000, b"a = [1"])
def test_no_content_of_any_file_stops_the_reading(run, name, content):
    (run / name).write_bytes(content)
    read_run(run)


def test_what_is_not_a_run_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no run folder at"):
        read_run(tmp_path / "none")
    with pytest.raises(DataError, match="is not a run folder: it holds none of"):
        read_run(tmp_path)
