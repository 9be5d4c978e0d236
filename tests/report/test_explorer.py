"""The explorer and the analysis in a browser: filters by behaviour and cause, tokens in colour, groups, links."""

import dataclasses
import json

import pytest

from seekling.evaluate.episode_facts import facts_of
from seekling.evaluate.judging import JudgeAudit, JudgeDetails
from seekling.report import write_report
from seekling.report.read import read_run
from seekling.types import Episode, EpisodeRecord, Message, Question, StopReason, Turn
from tests.report.browser import find_browser
from tests.report.run_folder import write_records, write_run

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine (on Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def records(report):
    return read_run(report.parent / "demo").episodes


def choose(browser, name, value):
    menu = f"document.querySelector('[data-filter={name}]')"
    browser.run(f"{menu}.value = {json.dumps(value)}; {menu}.dispatchEvent(new Event('change'))")


def show(browser, folder, *episodes, stage="eval-rl", gold="x"):
    """Open the first of some episodes in a report of them alone."""
    scores = {"em": 0.0} if stage == "eval-rl" else {}
    question = Question("q", "?", (gold,))
    write_records(folder, stage, [EpisodeRecord(stage, question, each, scores=scores) for each in episodes])
    write_report([folder], folder / "report.html")
    browser.open(folder / "report.html", "#/0/episodes/0")


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")


def test_episodes_are_filtered_by_behaviour_and_by_cause(browser, report, records):
    browser.open(report, "#/0/episodes")
    choose(browser, "stage", "")
    facts = [facts_of(record) for record in records]
    for name in ("parroted_query", "answer_from_memory"):
        choose(browser, "behaviour", name)
        found = sum(name in one.behaviours for one in facts)
        assert found > 0
        assert browser.text("#tally") == f"{found:,} of {len(records):,} episodes"
        assert name.replace("_", " ") in texts(browser, ".behaviours .chip")
    choose(browser, "behaviour", "")
    choose(browser, "outcome", "cause:not_retrieved")
    found = sum(one.cause == "not_retrieved" for one in facts)
    assert browser.text("#tally") == f"{found:,} of {len(records):,} episodes"
    assert texts(browser, ".behaviours .chip-bad") == ["not retrieved"]


def test_tokens_are_coloured_by_their_probability(browser, tmp_path):
    logprobs = (0.0, -0.51, -3.0, -1.0, -0.92)
    turn = Turn("aé😀 b", "invalid", action_lengths=(1, 2, 1, 1, 0), action_logprobs=logprobs)
    older = dataclasses.replace(turn, action_lengths=(), action_logprobs=())
    prompt = (Message("user", "?"),)
    episodes = [Episode("q", "", "tags", prompt, (one,), None, StopReason.MAX_TURNS) for one in (turn, older)]
    show(browser, tmp_path, *episodes)
    assert texts(browser, ".action .token") == []
    browser.press("t")
    tokens = (
        "[...document.querySelectorAll('.action .token')].map(one => [one.textContent, one.classList[1], one.title])"
    )
    assert browser.run(tokens) == [
        ["a", "p0", '"a": 100\u00a0%'],
        ["é😀", "p2", '"é😀": 60\u00a0%'],
        [" ", "p5", '" ": 5.0\u00a0%'],
        ["b", "p3", '"b": 37\u00a0%'],
        ["·", "p3", "unseen token: 40\u00a0%"],
    ]
    browser.press("j")
    assert texts(browser, ".action .token") == []
    assert "recorded without the probabilities" in browser.text(".legend")
    browser.press("t", "t")  # as it was, for the tests after this one


def test_the_wrong_answer_is_marked_where_it_was_taken_from(browser, tmp_path):
    turn = Turn("<search>x</search>", "search", "x", observation="Fowey has a harbour; Alnwick has a castle.")
    episode = Episode("q", "", "tags", (), (turn,), "Fowey", StopReason.ANSWERED)
    show(browser, tmp_path, episode, gold="Alnwick")
    marks = "[...document.querySelectorAll('.observed mark')].map(one => [one.textContent, one.className])"
    assert browser.run(marks) == [["Fowey", "given"], ["Alnwick", "gold"]]
    assert "holds the wrong answer" in browser.text(".observation")


def test_the_analysis_counts_what_the_explorer_then_shows(browser, report, records):
    browser.open(report, "#/0/analysis")
    assert texts(browser, ".page h2") == [
        "What became of every episode", "What episodes do", "Behaviours over the steps of RL",
        "How far confidence can be trusted", "What searching finds", "Where the time went: 14 min",
    ]  # fmt: skip
    assert "80 %" in browser.text(".table-confidence")
    assert "Risk by coverage" in texts(browser, ".chart-grid h3")
    links = browser.run("[...document.querySelectorAll('.cause-row a')].map(one => [one.hash, one.textContent])")
    facts = [facts_of(record) for record in records]
    assert len(links) > 8
    for address, number in links:
        stage, _, what = address.rpartition("/")[2].partition(":")
        of_stage = [one for one, record in zip(facts, records, strict=True) if record.stage == stage]
        assert int(number) == sum(what in (one.outcome, one.cause) for one in of_stage)
    browser.click(".cause-row a[href$=':misread']")
    browser.wait("document.querySelector('#tally') !== null")
    assert browser.text("#tally").startswith(next(n for a, n in links if a.endswith(":misread")) + " of ")
    browser.open(report, "#/0/analysis")
    browser.click(".behaviour-table a[href$='eval-rl:grounded_answer']")
    browser.wait("document.querySelector('#tally') !== null")
    grounded = sum(
        "grounded_answer" in one.behaviours for one, r in zip(facts, records, strict=True) if r.stage == "eval-rl"
    )
    assert browser.text("#tally").startswith(f"{grounded} of ")


def test_rows_of_different_games_and_a_judge_say_so(browser, tmp_path):
    run = write_run(tmp_path / "demo", questions=4, steps=1)
    path = run / "eval" / "rl.json"
    summary = json.loads(path.read_text())
    summary["judge"] = {"k": 2, "n": 3, "value": 2 / 3, "low": 0.2, "high": 0.9}
    audit = JudgeAudit(both=1, only_judge=1, only_em=0, neither=1)
    details = JudgeDetails("big <i>", "", "", {"no_reply": 1}, num_unanswered=0, num_cached=0, audit=audit)
    summary["judge_details"] = dataclasses.asdict(details)
    summary["settings"] |= {"protocol": "code"}
    path.write_text(json.dumps(summary))
    write_report([run], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    note = browser.text(".panel .note")
    assert "SFT+RL (default): code, greedy, up to" in note
    assert "base (default), SFT (default): tags, greedy, up to" in note
    assert "SFT+RL: judged by big <i>; without a verdict and left out: 1 no reply" in note
    (row,) = [row for row in texts(browser, ".table-results tbody tr") if "SFT+RL" in row]
    assert "66.7" in row


def test_a_run_that_is_not_finished_says_how_far_it_is(browser, tmp_path):
    run = write_run(tmp_path / "demo", questions=4, steps=3)
    (run / "eval" / "rl.json").unlink()
    progress = {"done": ["expert", "eval-base", "sft", "eval-sft"], "seconds": {"sft": 90.0, "expert": 30.0}}
    (run / "progress.json").write_text(json.dumps(progress))
    (run / "record.json").unlink()
    write_report([run], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.text(".page h2") == "This run is not finished: sampled during rl, step 3 of 3"
    assert texts(browser, ".course .is-now") == ["RL training now"]
    assert "Not there yet, or damaged." in browser.text(".notice")
    browser.go("#/0/analysis")
    browser.wait("document.querySelector('.time-bar') !== null")
    assert "Where the time went: 2\u00a0min" in [
        text.replace(" min", "\u00a0min") for text in texts(browser, ".page h2")
    ]
