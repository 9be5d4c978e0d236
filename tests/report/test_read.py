"""Run folders that are whole, damaged, half-written or not run folders at all."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from seekling.config import build_recipe, recipe_to_toml
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


def test_a_metrics_file_whose_last_line_is_cut_loses_that_line_only(run):
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    folder = read_run(run)
    assert len(folder.metrics["rl"]) == 2
    assert folder.problems == ["metrics.jsonl: line 41 is cut; left out."]


def test_a_missing_evaluation_is_named_and_the_others_stay(run):
    (run / "eval" / "rl.json").unlink()
    folder = read_run(run)
    assert list(folder.evaluations) == ["base", "sft"]
    assert folder.problems == ["eval/rl.json is missing: no row in the table."]


@pytest.mark.parametrize(
    ("name", "changes"),
    [("rl", {"steps": 0}), ("sft", {"num_questions": 0, "file": ""})],
)
def test_the_evaluation_of_a_stage_that_the_recipe_does_not_have_is_not_missed(run, name, changes):
    recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    recipe["rl" if name == "rl" else "experts"].update(changes)
    (run / "recipe.toml").write_text(recipe_to_toml(build_recipe(recipe)), encoding="utf-8")
    (run / "eval" / f"{name}.json").unlink()
    assert read_run(run).problems == []


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


def test_a_missing_episodes_file_of_an_evaluation_is_named(run):
    (run / "episodes" / "eval-sft.jsonl").unlink()
    assert read_run(run).problems == ["episodes/eval-sft.jsonl is missing: figures without episodes."]


def test_a_folder_in_the_place_of_a_file_is_a_problem_not_a_crash(run):
    (run / "record.json").unlink()
    (run / "record.json").mkdir()
    assert read_run(run).problems == [f"record.json cannot be read: {os.strerror(21)}."]


def test_what_is_not_a_run_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no run folder at"):
        read_run(tmp_path / "none")
    with pytest.raises(DataError, match="is not a run folder: it holds none of"):
        read_run(tmp_path)


def test_numbers_that_browsers_refuse_become_nothing(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "rl", "step": 4, "reward_mean": NaN, "loss": Infinity, "entropy": 0.5}\n')
    (run / "record.json").write_text(json.dumps({"seconds": {"rl": float("nan")}}))
    folder = read_run(run)
    last = folder.metrics["rl"][-1]
    assert (last["reward_mean"], last["loss"], last["entropy"]) == (None, None, 0.5)
    assert folder.record == {"seconds": {"rl": None}}


def test_the_folder_of_an_evaluation_misses_no_training(run):
    for name in ("metrics.jsonl", "eval/base.json", "eval/sft.json"):
        (run / name).unlink()
    for stage in ("expert", "rl", "eval-base", "eval-sft"):
        (run / "episodes" / f"{stage}.jsonl").unlink()
    (run / "requests").mkdir()
    (run / "requests" / "rl.json").write_text('{"is_sampled_repeatedly": false}', encoding="utf-8")
    assert read_run(run).problems == []
    assert "done" not in read_run(run).progress
    (run / "requests" / "other.json").write_text('{"is_sampled_repeatedly": true}', encoding="utf-8")
    assert read_run(run).problems == ["eval/other-s1.json is missing: no row in the table."]
