"""`seekling score`, `seekling compare` and `seekling report` as a user meets them."""

import json

import pytest
from typer.testing import CliRunner

from seekling.cli.main import build_app
from tests.evaluate.episodes import evaluation


def seekling(*words):
    return CliRunner().invoke(build_app(wanted=words[0]), [str(word) for word in words])


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


QUESTIONS = [
    {"id": "1", "question": "Capital of France?", "answers": ["Paris"]},
    {"id": "2", "question": "Largest planet?", "answers": ["Jupiter"]},
]


def test_score_prints_one_json_document_with_the_figures(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    predictions = write_rows(
        tmp_path / "p.jsonl", [{"id": "2", "prediction": "Mars"}, {"id": "1", "prediction": "Paris."}]
    )
    result = seekling("score", predictions, questions, "--json")
    assert result.exit_code == 0, result.output
    scores = json.loads(result.stdout)
    assert scores["em"] == pytest.approx({"k": 1, "n": 2, "value": 0.5, "low": 0.0945312, "high": 0.9054688}, abs=1e-6)
    assert scores["f1"]["value"] == 0.5
    assert len(scores["question_set_hash"]) == 64


def test_score_prints_a_table_for_people(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    predictions = write_rows(
        tmp_path / "p.jsonl", [{"id": "1", "prediction": "Paris"}, {"id": "2", "prediction": None}]
    )
    result = seekling("score", predictions, questions)
    assert result.exit_code == 0, result.output
    assert "1/2" in result.stdout
    assert "answered 1/2" in result.stdout


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "1", "prediction": "x"}], "1 question(s) have no prediction, such as '2'"),
        ([{"id": n, "prediction": "x"} for n in "123"], "1 prediction(s) have no question, such as '3'"),
        ([{"id": "1", "prediction": "x"}] * 2, "p.jsonl:2: id '1' was already on line 1"),
    ],
)
def test_score_names_missing_extra_and_repeated_ids(tmp_path, rows, message):
    questions, predictions = write_rows(tmp_path / "q.jsonl", QUESTIONS), write_rows(tmp_path / "p.jsonl", rows)
    result = seekling("score", predictions, questions, "--json")
    assert result.exit_code == 1
    assert message in result.output
    assert result.stdout == ""


def write_run(run, **stages):
    (run / "episodes").mkdir(parents=True)
    for name, outcomes in stages.items():
        stage = f"eval-{name}"
        write_rows(run / "episodes" / f"{stage}.jsonl", [r.to_json() for r in evaluation(outcomes, stage=stage)])
    return run


def test_compare_sets_two_runs_against_each_other(tmp_path):
    first, second = write_run(tmp_path / "one", rl="rrww"), write_run(tmp_path / "two", rl="rwrr")
    result = seekling("compare", first, second, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["first"], found["second"]) == ("one eval-rl", "two eval-rl")
    assert (found["num_wins"], found["num_losses"], found["num_both"], found["num_neither"]) == (2, 1, 1, 0)
    assert found["em_difference"]["value"] == 0.25


def test_compare_sets_two_stages_of_one_run_against_each_other(tmp_path):
    run = write_run(tmp_path / "one", sft="rwwwwwwf", rl="rrrrwwwr")
    result = seekling("compare", run, "--stage", "eval-sft", "--stage", "eval-rl")
    assert result.exit_code == 0, result.output
    assert "EM second - first: +42.9 points" in result.stdout
    assert "only second 3" in result.stdout
    assert "7 questions, 1 excluded" in result.stdout


def test_compare_refuses_different_question_sets_with_their_number(tmp_path):
    first, second = write_run(tmp_path / "one", rl="rrww"), write_run(tmp_path / "two", rl="rwr")
    result = seekling("compare", first, second)
    assert result.exit_code == 1
    assert "1 differ" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one"], "expected two or more runs with --stage once"),
        (["one", "two", "three", "--stage", "a", "--stage", "b"], "got 3 run(s) and 2 stage(s)"),
        (["one", "two"], "no episodes at"),
    ],
)
def test_compare_says_what_it_expects(words, message):
    result = seekling("compare", *words)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_report_writes_the_page_and_the_comparisons_a_run_lacks(tmp_path):
    run = write_run(tmp_path / "one", sft="rwww", rl="rrrw")
    result = seekling("report", run)
    assert result.exit_code == 0, result.output
    assert json.loads((run / "eval" / "compare-sft-rl.json").read_text())["num_wins"] == 2
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '"num_wins":2' in page
    assert "note: one: recipe.toml is missing." in result.stderr
    assert "wrote" in result.stdout


def test_report_of_a_damaged_run_still_writes_the_page(tmp_path):
    run = write_run(tmp_path / "one", sft="rwww", rl="rrrw")
    (run / "episodes" / "eval-rl.jsonl").write_text("{cut")
    result = seekling("report", run, "--out", tmp_path / "deep" / "page.html")
    assert result.exit_code == 0, result.output
    assert "no paired comparison" in result.stderr
    assert (tmp_path / "deep" / "page.html").is_file()


def test_report_of_no_run_folder_is_one_clear_error(tmp_path):
    result = seekling("report", tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no run folder at" in result.output
