"""`seekling eval --score`, `seekling report --compare` and `seekling report` as a user meets them."""

import json

import pytest
from typer.testing import CliRunner

from seekling.cli.main import app
from tests.chat_server import chat_server, completion
from tests.evaluate.episodes import evaluation


def seekling(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


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
    result = seekling("eval", "--score", predictions, questions, "--json")
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
    result = seekling("eval", "--score", predictions, questions)
    assert result.exit_code == 0, result.output
    assert "1/2" in result.stdout
    assert "answered 1/2" in result.stdout


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "1", "prediction": "x"}], "1 question(s) have no prediction, such as '2'"),
        ([{"id": n, "prediction": "x"} for n in "123"], "1 prediction(s) have no question, such as '3'"),
        ([{"id": "1", "prediction": "x"}] * 2, "p.jsonl:2: id '1' was on an earlier line already"),
    ],
)
def test_score_names_missing_extra_and_repeated_ids(tmp_path, rows, message):
    questions, predictions = write_rows(tmp_path / "q.jsonl", QUESTIONS), write_rows(tmp_path / "p.jsonl", rows)
    result = seekling("eval", "--score", predictions, questions, "--json")
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
    result = seekling("report", "--compare", first, second, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["first"], found["second"]) == ("one eval-rl", "two eval-rl")
    assert (found["num_wins"], found["num_losses"], found["num_both"], found["num_neither"]) == (2, 1, 1, 0)
    assert found["em_difference"]["value"] == 0.25


def test_compare_sets_two_stages_of_one_run_against_each_other(tmp_path):
    run = write_run(tmp_path / "one", sft="rwwwwwwf", rl="rrrrwwwr")
    result = seekling("report", "--compare", run, "--stage", "eval-sft", "--stage", "eval-rl")
    assert result.exit_code == 0, result.output
    assert "EM second - first: +42.9 points" in result.stdout
    assert "only second 3" in result.stdout
    assert "7 questions, 1 excluded" in result.stdout


def test_compare_refuses_different_question_sets_with_their_number(tmp_path):
    first, second = write_run(tmp_path / "one", rl="rrww"), write_run(tmp_path / "two", rl="rwr")
    result = seekling("report", "--compare", first, second)
    assert result.exit_code == 1
    assert "1 differ" in result.output


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


def test_score_prints_every_measure_as_the_interface_says(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    predictions = write_rows(
        tmp_path / "p.jsonl", [{"id": "1", "prediction": "in Paris"}, {"id": "2", "prediction": None}]
    )
    result = seekling("eval", "--score", predictions, questions, "--json")
    assert result.exit_code == 0, result.output
    scores = json.loads(result.stdout)
    for name in ("em", "substring", "answered"):
        assert set(scores[name]) == {"k", "n", "value", "low", "high"}
    assert [scores[name]["value"] for name in ("em", "f1", "substring", "rouge_l")] == pytest.approx(
        [0.0, 1 / 3, 0.5, 1 / 3]
    )
    assert (scores["judge"], scores["compat"], scores["num_vacuous_golds"]) == (None, "", 0)


def test_score_warns_of_golds_that_normalise_to_nothing(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", [{"id": "1", "question": "Which?", "answers": ["A", "The The"]}])
    predictions = write_rows(tmp_path / "p.jsonl", [{"id": "1", "prediction": "the"}])
    result = seekling("eval", "--score", predictions, questions)
    assert "warning: 2 gold answer(s) normalise to nothing" in " ".join(result.stdout.split())
    assert "1: A; 1: The The" in " ".join(result.stdout.split())
    scores = json.loads(seekling("eval", "--score", predictions, questions, "--json").stdout)
    assert (scores["em"]["k"], scores["vacuous_golds"]) == (0, ["1: A", "1: The The"])


def test_score_reproduces_search_r1s_quirks_when_asked(tmp_path):
    rows = [{"id": "1", "question": "Capital of China?", "answers": ["Beijing"]}, QUESTIONS[1]]
    questions = write_rows(tmp_path / "q.jsonl", rows)
    said = [{"id": "1", "prediction": "<search>x</search>"}, {"id": "2", "prediction": "<answer>Mars</answer>"}]
    predictions = write_rows(tmp_path / "p.jsonl", said)
    found = json.loads(seekling("eval", "--score", predictions, questions, "--compat", "search-r1", "--json").stdout)
    assert (found["em"]["k"], found["compat"]) == (1, "search-r1")
    assert json.loads(seekling("eval", "--score", predictions, questions, "--json").stdout)["em"]["k"] == 0


def test_score_with_another_systems_rules_wants_whole_responses(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    predictions = write_rows(tmp_path / "p.jsonl", [{"id": n, "prediction": "Paris"} for n in "12"])
    result = seekling("eval", "--score", predictions, questions, "--compat", "search-r1")
    assert result.exit_code == 1
    assert "none of the 2 predictions holds '</answer>'" in " ".join(result.output.split())
    result = seekling("eval", "--score", predictions, questions, "--compat", "verl")
    assert "choose one of search-r1, slime, tinker" in " ".join(result.output.split())


def test_score_takes_the_questions_of_one_benchmark(tmp_path):
    rows = [{**row, "source": source} for row, source in zip(QUESTIONS, ("nq", "popqa"), strict=True)]
    questions = write_rows(tmp_path / "q.jsonl", rows)
    predictions = write_rows(tmp_path / "p.jsonl", [{"id": "1", "prediction": "Paris"}])
    found = json.loads(seekling("eval", "--score", predictions, questions, "--benchmark", "nq", "--json").stdout)
    assert (found["em"]["k"], found["em"]["n"], list(found["by_source"])) == (1, 1, ["nq"])


def test_score_asks_a_judge_once_per_content_and_leaves_its_errors_out(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    predictions = write_rows(
        tmp_path / "p.jsonl", [{"id": "1", "prediction": "It is Paris"}, {"id": "2", "prediction": "Mars"}]
    )

    def respond(body):
        is_right = "It is Paris" in body["messages"][1]["content"]
        return 200, completion("VERDICT: CORRECT" if is_right else "hm")

    with chat_server(respond) as server:
        words = ["eval", "--score", predictions, questions, "--judge-url", server.url, "--judge-model", "j"]
        words += ["--judge-key-env", "JUDGE_KEY", "--judge-cache", tmp_path / "verdicts.jsonl"]
        first = json.loads(seekling(*words, "--json").stdout)
        table = seekling(*words).stdout
    assert (first["judge"]["k"], first["judge"]["n"], first["em"]["n"]) == (1, 1, 2)
    assert first["judge_details"]["errors"] == {"unreadable_verdict": 1}
    assert first["judge_details"]["audit"] == {"both": 0, "only_judge": 1, "only_em": 0, "neither": 0}
    assert "1 unreadable_verdict" in table
    assert set(server.keys) == {"Bearer k"}
    assert sum("It is Paris" in body["messages"][1]["content"] for body in server.requests) == 1


def test_scores_judge_is_told_what_its_options_say(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    predictions = write_rows(tmp_path / "p.jsonl", [{"id": n, "prediction": "Paris"} for n in "12"])
    with chat_server(lambda body: (200, completion("VERDICT: INCORRECT"))) as server:
        words = ["eval", "--score", predictions, questions, "--judge-url", server.url, "--judge-model", "j", "--json"]
        result = seekling(*words, "--judge-tokens", 77, "--judge-extra", '{"top_k": 1, "seed": 5}')
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["judge"]["k"], json.loads(result.stdout)["judge"]["n"]) == (0, 2)
    assert len(server.requests) == 2
    assert all((body["max_tokens"], body["top_k"], body["seed"]) == (77, 1, 5) for body in server.requests)


def test_half_a_judge_is_refused(tmp_path):
    questions = write_rows(tmp_path / "q.jsonl", QUESTIONS)
    result = seekling("eval", "--score", questions, questions, "--judge-url", "http://localhost/v1")
    assert "got one of --judge-url and --judge-model" in result.output


def test_compare_takes_many_runs_and_corrects_for_it(tmp_path):
    runs = [write_run(tmp_path / name, rl=each) for name, each in (("a", "wwwwww"), ("b", "rrwwww"), ("c", "rrrrrr"))]
    found = json.loads(seekling("report", "--compare", *runs, "--json").stdout)["comparisons"]
    assert [(each["first"], each["second"]) for each in found] == [
        ("a eval-rl", "b eval-rl"),
        ("a eval-rl", "c eval-rl"),
        ("b eval-rl", "c eval-rl"),
    ]
    assert found[1]["p_value_holm"] == pytest.approx(3 * found[1]["em_difference"]["p_value"])
    assert seekling("report", "--compare", *runs).stdout.count("with Holm's correction") == 3


def test_compare_by_intersection_says_so_loudly(tmp_path):
    first, second = write_run(tmp_path / "one", rl="rrww"), write_run(tmp_path / "two", rl="rwr")
    result = seekling("report", "--compare", first, second, "--intersect")
    assert result.exit_code == 0, result.output
    assert "INTERSECTION of different question sets: 1 questions of the first and 0 of the second" in result.stdout
    assert "3 questions, 0 excluded" in result.stdout


def test_compare_pools_seeds_of_one_system(tmp_path):
    runs = [write_run(tmp_path / name, rl=each) for name, each in (("a", "rrww"), ("b", "rwww"))]
    found = json.loads(seekling("report", "--compare", *runs, "--pool", "--json").stdout)
    assert (found["num_samples"], found["em_mean"]["value"]) == (2, 0.375)
    assert found["pass_at_k"]["2"]["value"] == 0.5
    assert found["em_deviation"] == pytest.approx(0.25 / 2**0.5)
    table = seekling("report", "--compare", *runs, "--pool").stdout
    assert "pass@2" in table
    assert "2/4, 1/4" in table
