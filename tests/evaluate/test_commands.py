"""`seekling eval --score`, `seekling report --compare` and `seekling report` as a user meets them."""

import json

import pytest
from typer.testing import CliRunner

from seekling.cli.main import app
from tests.chat_server import chat_server, completion
from tests.evaluate.episodes import write_evaluations


def seekling(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


QUESTIONS = [
    {"id": "1", "question": "Capital of France?", "answers": ["Paris"]},
    {"id": "2", "question": "Largest planet?", "answers": ["Jupiter"]},
]


@pytest.fixture
def score(tmp_path):
    """Score predictions, given by id or as rows."""

    def run(predictions, *words, questions=QUESTIONS):
        if isinstance(predictions, dict):
            predictions = [{"id": number, "prediction": text} for number, text in predictions.items()]
        files = write_rows(tmp_path / "p.jsonl", predictions), write_rows(tmp_path / "q.jsonl", questions)
        result = seekling("eval", "--score", *files, *words)
        return json.loads(result.stdout) if "--json" in words and result.exit_code == 0 else result

    return run


def said(result):
    return " ".join(result.output.split())


def test_score_prints_one_json_document_with_every_figure(score):
    scores = score({"2": None, "1": "in Paris"}, "--json")
    for name in ("em", "substring", "answered"):
        assert set(scores[name]) == {"k", "n", "value", "low", "high"}
    figures = [scores[name]["value"] for name in ("em", "f1", "substring", "rouge_l")]
    assert figures == pytest.approx([0.0, 1 / 3, 0.5, 1 / 3])
    assert (scores["judge"], scores["compat"], scores["num_vacuous_golds"]) == (None, "", 0)
    assert len(scores["question_set_hash"]) == 64
    half = score({"2": "Mars", "1": "Paris."}, "--json")["em"]
    assert half == pytest.approx({"k": 1, "n": 2, "value": 0.5, "low": 0.0945312, "high": 0.9054688}, abs=1e-6)


def test_score_prints_a_table_for_people(score):
    result = score({"1": "Paris", "2": None})
    assert result.exit_code == 0, result.output
    assert "1/2" in result.stdout
    assert "answered 1/2" in result.stdout


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"1": "x"}, "1 question(s) have no prediction, such as '2'"),
        (dict.fromkeys("123", "x"), "1 prediction(s) have no question, such as '3'"),
        ([{"id": "1", "prediction": "x"}] * 2, "p.jsonl:2: id '1' was on an earlier line already"),
    ],
)
def test_score_names_missing_extra_and_repeated_ids(score, rows, message):
    result = score(rows, "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.output


def test_score_warns_of_golds_that_normalise_to_nothing(score):
    odd = [{"id": "1", "question": "Which?", "answers": ["A", "The The"]}]
    result = score({"1": "the"}, questions=odd)
    assert "warning: 2 gold answer(s) normalise to nothing" in said(result)
    assert "1: A; 1: The The" in said(result)
    scores = score({"1": "the"}, "--json", questions=odd)
    assert (scores["em"]["k"], scores["vacuous_golds"]) == (0, ["1: A", "1: The The"])


def test_score_reproduces_search_r1s_quirks_when_asked(score):
    questions = [{"id": "1", "question": "Capital of China?", "answers": ["Beijing"]}, QUESTIONS[1]]
    responses = {"1": "<search>x</search>", "2": "<answer>Mars</answer>"}
    found = score(responses, "--compat", "search-r1", "--json", questions=questions)
    assert (found["em"]["k"], found["compat"]) == (1, "search-r1")
    assert score(responses, "--json", questions=questions)["em"]["k"] == 0
    bare = score(dict.fromkeys("12", "Paris"), "--compat", "search-r1")
    assert (bare.exit_code, "none of the 2 predictions holds '</answer>'" in said(bare)) == (1, True)
    assert "choose one of search-r1, slime, tinker" in said(score(responses, "--compat", "verl"))


def test_score_takes_the_questions_of_one_benchmark(score):
    rows = [{**row, "source": source} for row, source in zip(QUESTIONS, ("nq", "popqa"), strict=True)]
    found = score({"1": "Paris"}, "--benchmark", "nq", "--json", questions=rows)
    assert (found["em"]["k"], found["em"]["n"], list(found["by_source"])) == (1, 1, ["nq"])


def test_score_asks_a_judge_once_per_content_and_leaves_its_errors_out(score, tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")

    def respond(body):
        is_right = "It is Paris" in body["messages"][1]["content"]
        return 200, completion("VERDICT: CORRECT" if is_right else "hm")

    with chat_server(respond) as server:
        words = ["--judge-url", server.url, "--judge-model", "j", "--judge-key-env", "JUDGE_KEY"]
        words += ["--judge-tokens", 77, "--judge-extra", '{"top_k": 1}', "--judge-cache", tmp_path / "verdicts.jsonl"]
        first = score({"1": "It is Paris", "2": "Mars"}, *words, "--json")
        table = score({"1": "It is Paris", "2": "Mars"}, *words).stdout
    assert (first["judge"]["k"], first["judge"]["n"], first["em"]["n"]) == (1, 1, 2)
    assert first["judge_details"]["errors"] == {"unreadable_verdict": 1}
    assert first["judge_details"]["audit"] == {"both": 0, "only_judge": 1, "only_em": 0, "neither": 0}
    assert "1 unreadable_verdict" in table
    assert set(server.keys) == {"Bearer k"}
    assert sum("It is Paris" in body["messages"][1]["content"] for body in server.requests) == 1
    assert all((body["max_tokens"], body["top_k"]) == (77, 1) for body in server.requests)
    assert "got one of --judge-url and --judge-model" in said(score({"1": "x"}, "--judge-url", "http://localhost/v1"))


def test_compare_sets_two_runs_against_each_other(tmp_path):
    first, second = write_evaluations(tmp_path / "one", rl="rrww"), write_evaluations(tmp_path / "two", rl="rwrr")
    result = seekling("report", "--compare", first, second, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["first"], found["second"]) == ("one eval-rl", "two eval-rl")
    assert (found["num_wins"], found["num_losses"], found["num_both"], found["num_neither"]) == (2, 1, 1, 0)
    assert found["em_difference"]["value"] == 0.25


def test_compare_sets_two_stages_of_one_run_against_each_other(tmp_path):
    run = write_evaluations(tmp_path / "one", sft="rwwwwwwf", rl="rrrrwwwr")
    result = seekling("report", "--compare", run, "--stage", "eval-sft", "--stage", "eval-rl")
    assert result.exit_code == 0, result.output
    assert "EM second - first: +42.9 points" in result.stdout
    assert "only second 3" in result.stdout
    assert "7 questions, 1 excluded" in result.stdout


def test_compare_refuses_different_question_sets_with_their_number(tmp_path):
    first, second = write_evaluations(tmp_path / "one", rl="rrww"), write_evaluations(tmp_path / "two", rl="rwr")
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


def test_compare_by_intersection_says_so_loudly(tmp_path):
    first, second = write_evaluations(tmp_path / "one", rl="rrww"), write_evaluations(tmp_path / "two", rl="rwr")
    result = seekling("report", "--compare", first, second, "--intersect")
    assert result.exit_code == 0, result.output
    assert "INTERSECTION of different question sets: 1 questions of the first and 0 of the second" in result.stdout
    assert "3 questions, 0 excluded" in result.stdout


def test_compare_pools_seeds_of_one_system(tmp_path):
    runs = [write_evaluations(tmp_path / name, rl=each) for name, each in (("a", "rrww"), ("b", "rwww"))]
    found = json.loads(seekling("report", "--compare", *runs, "--pool", "--json").stdout)
    assert (found["num_samples"], found["em_mean"]["value"]) == (2, 0.375)
    assert found["pass_at_k"]["2"]["value"] == 0.5
    assert found["em_deviation"] == pytest.approx(0.25 / 2**0.5)
    table = seekling("report", "--compare", *runs, "--pool").stdout
    assert "pass@2" in table
    assert "2/4, 1/4" in table
