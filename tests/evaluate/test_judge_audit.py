"""A judge held against exact match and labels, by figures worked out by hand."""

import json

import pytest
from typer.testing import CliRunner

from seekling.cli.main import app
from seekling.config import EndpointConfig
from seekling.errors import DataError
from seekling.evaluate.judge_audit import agreement_of, audit_judge, read_labels
from seekling.evaluate.judging import Judge, VerdictCache
from seekling.rollout.chat import ChatClient
from tests.chat_server import chat_server, completion
from tests.evaluate.episodes import failed, question, record, search

ANSWERS = ["Paris", "Paris", "the city of Paris", "Lyon", "Lyon", "Nice", None, "gone"]
RECORDS = [record(question(number), answer, search()) for number, answer in enumerate(ANSWERS)]
RECORDS.append(failed(question(99)))
# The judge: right about 0, 1 and 2, wrong about 4 (says Lyon is correct when asked for question 4).
RATINGS = {0: 90, 1: 100, 2: 70, 3: 30, 4: 90, 5: 10, 6: 0}
LABELS = {0: True, 1: True, 2: True, 3: False, 4: False, 5: False}


def respond(body):
    case = json.loads(body["messages"][1]["content"])
    number = int(case["question"].split()[1].rstrip("?"))
    if number not in RATINGS:
        return 503, {}
    verdict = "CORRECT" if number in (0, 1, 2, 4, 6) else "INCORRECT"
    return 200, completion(f"VERDICT: {verdict}, APPROACH: {RATINGS[number]}")


def judge_of(server, cache=None):
    endpoint = EndpointConfig(url=server.url, model="judge", request_tries=1)
    return Judge(ChatClient(endpoint, first_pause_s=0.001), VerdictCache(cache))


def labels_of(numbers):
    return {("", f"q{number}"): LABELS[number] for number in numbers}


def test_agreements_and_calibration_are_those_worked_out_by_hand():
    advanced = []
    with chat_server(respond) as server:
        report = audit_judge(judge_of(server), RECORDS, labels_of(LABELS), on_verdict=lambda: advanced.append(1))
    # Eight judged of nine (one is an infrastructure failure), of which the judge gave no reply to one.
    assert (report.num_cases, len(advanced), report.errors) == (8, 8, {"no_reply": 1})
    assert (report.model, report.num_labelled, report.truth) == ("judge", 6, "label")
    judge_em, judge_label, em_label = report.agreements
    # The judge said correct to no answer at all (number 6), which never counts.
    cells = [(each.both, each.only_first, each.only_second, each.neither) for each in report.agreements]
    assert cells == [(2, 2, 0, 3), (3, 1, 0, 2), (2, 0, 1, 3)]
    assert (judge_em.agreement.k, judge_em.agreement.n) == (5, 7)
    # Observed 5/6; by chance 4/6 * 3/6 + 2/6 * 3/6 = 1/2.
    assert judge_label.kappa == pytest.approx((5 / 6 - 1 / 2) / (1 / 2))
    assert judge_label.kappa_low < judge_label.kappa < judge_label.kappa_high <= 1
    assert (em_label.first, em_label.second, em_label.agreement.k) == ("em", "label", 5)
    assert [(each.correct.k, each.correct.n) for each in report.calibration] == [(0, 1), (0, 1), (0, 0), (1, 1), (2, 3)]
    assert [each.mean_rating for each in report.calibration] == [0.1, 0.3, None, 0.7, pytest.approx(2.8 / 3)]
    errors = [0.1, 0.3, 0.3, 3 * (2.8 / 3 - 2 / 3)]
    assert report.calibration_error == pytest.approx(sum(errors) / 6)


def test_without_labels_ratings_are_held_against_exact_match():
    with chat_server(respond) as server:
        report = audit_judge(judge_of(server), RECORDS[:7], {})
    assert (report.truth, len(report.agreements), report.num_labelled) == ("em", 1, 0)
    assert sum(each.correct.n for each in report.calibration) == 7
    assert sum(each.correct.k for each in report.calibration) == 2


def test_kappa_is_1_for_perfect_0_for_chance_and_none_where_nothing_varies():
    mixed = [(True, True), (False, False)] * 5
    assert agreement_of("a", "b", mixed).kappa == pytest.approx(1.0)
    chance = [(True, True), (True, False), (False, True), (False, False)] * 5
    found = agreement_of("a", "b", chance)
    assert found.kappa == pytest.approx(0.0)
    assert found.kappa_low < -0.2 < 0.2 < found.kappa_high
    same = agreement_of("a", "b", [(True, True)] * 5)
    assert (same.kappa, same.kappa_low, same.kappa_high, same.agreement.k) == (None, -1.0, 1.0, 5)
    assert agreement_of("a", "b", []).agreement.value is None


def test_nothing_to_judge_and_labels_of_others_are_errors():
    with chat_server(respond) as server:
        with pytest.raises(DataError, match="none of 1 episodes can be judged"):
            audit_judge(judge_of(server), RECORDS[-1:], {})
        with pytest.raises(DataError, match="none of the 1 labels"):
            audit_judge(judge_of(server), RECORDS, {("other", "q1"): True})


@pytest.mark.parametrize("line", ["{", "[]", '{"id": "a"}', '{"id": "a", "correct": 1}', '{"correct": true}'])
def test_a_damaged_label_is_named_with_its_line(tmp_path, line):
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id": "b", "correct": true}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"labels\.jsonl:3: not .*source"):
        read_labels(path)
    path.write_text('{"id": "b", "correct": true}\n{"source": "", "id": "b", "correct": true}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"labels\.jsonl:2: .* has a label already"):
        read_labels(path)


def test_the_command_prints_a_report_and_keeps_the_verdicts(tmp_path):
    episodes, labels = tmp_path / "eval-rl.jsonl", tmp_path / "labels.jsonl"
    episodes.write_text("".join(json.dumps(each.to_json()) + "\n" for each in RECORDS[:7]), encoding="utf-8")
    rows = [{"source": "", "id": f"q{number}", "correct": correct} for number, correct in LABELS.items()]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with chat_server(respond) as server:
        words = ["eval", "--judge-audit", str(episodes), "--labels", str(labels), "--judge-url", server.url]
        words += ["--judge-model", "judge"]
        runner = CliRunner()
        printed = runner.invoke(app, words)
        again = runner.invoke(app, [*words, "--json"])
        assert len(server.requests) == 7
    assert printed.exit_code == again.exit_code == 0, printed.output
    for word in ("judge, label", "3, 1, 0, 2", "correct by label", "25.0 points", "6 labelled; errors: none"):
        assert word in printed.stdout
    assert json.loads(again.stdout)["agreements"][1]["both"] == 3
    assert (tmp_path / "judge-cache.jsonl").exists()
