"""`seekling report --compare` and `seekling report` as a user meets them."""

import json

import pytest

from tests.commands import seekling
from tests.evaluate.episodes import write_evaluations


def test_compare_sets_two_stages_of_one_run_against_each_other(tmp_path):
    run = write_evaluations(tmp_path / "one", sft="rwwwwwwf", rl="rrrrwwwr")
    result = seekling("report", "--compare", run, "--stage", "eval-sft", "--stage", "eval-rl")
    assert result.exit_code == 0, result.output
    assert "EM second - first: +42.9 points" in result.stdout
    assert "only second 3" in result.stdout
    assert "7 questions, 1 excluded" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one"], "expected two or more runs with --stage once"),
        (["one", "two", "three", "--stage", "a", "--stage", "b"], "got 3 run(s) and 2 stage(s)"),
        (["one", "two"], "each of its lines should be an episode record"),
    ],
)
def test_compare_says_what_it_expects(words, message):
    result = seekling("report", "--compare", *words)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_report_writes_the_page_and_the_comparisons_a_run_lacks(tmp_path):
    run = write_evaluations(tmp_path / "one", has_summaries=False, sft="rwww", rl="rrrw")
    result = seekling("report", run)
    assert result.exit_code == 0, result.output
    assert json.loads((run / "eval" / "compare-sft-rl.json").read_text())["num_wins"] == 2
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '"num_wins":2' in page
    assert "note: one: recipe.toml is missing." in result.stderr
    assert "wrote" in result.stdout


def test_report_of_a_damaged_run_still_writes_the_page(tmp_path):
    run = write_evaluations(tmp_path / "one", has_summaries=False, sft="rwww", rl="rrrw")
    (run / "episodes" / "eval-rl.jsonl").write_text("{cut")
    result = seekling("report", run, "--out", tmp_path / "deep" / "page.html")
    assert result.exit_code == 0, result.output
    assert "no paired comparison" in result.stderr
    assert (tmp_path / "deep" / "page.html").is_file()
    none = seekling("report", tmp_path / "none")
    assert (none.exit_code, "there is no run folder at" in none.output) == (1, True)


def test_compare_takes_many_runs_and_corrects_for_it(tmp_path):
    runs = [
        write_evaluations(tmp_path / name, rl=each)
        for name, each in (("a", "wwwwww"), ("b", "rrwwww"), ("c", "rrrrrr"))
    ]
    found = json.loads(seekling("report", "--compare", *runs, "--json").stdout)["comparisons"]
    assert [(each["first"], each["second"]) for each in found] == [
        ("a eval-rl", "b eval-rl"),
        ("a eval-rl", "c eval-rl"),
        ("b eval-rl", "c eval-rl"),
    ]
    assert found[1]["p_value_holm"] == pytest.approx(3 * found[1]["em_difference"]["p_value"])
    assert seekling("report", "--compare", *runs).stdout.count("with Holm's correction") == 3
