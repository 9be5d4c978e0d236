"""The page in a real browser: it loads in silence, can be used by keyboard, and executes nothing that a model wrote."""

import dataclasses
import json

import pytest

from seekling.report import write_report
from seekling.report.read import read_run
from tests.report.browser import Browser, find_browser
from tests.report.run_folder import write_records, write_run
from tests.report.test_page import ATTACKS, write_hostile_run

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine (on Debian: apt-get install chromium)"
)


def chosen(browser):
    return browser.run("document.querySelector('.row.is-selected').innerText")


def test_the_overview_shows_table_gains_and_curves(browser, report):
    browser.open(report)
    rows = browser.run(
        "[...document.querySelectorAll('.table-results tbody tr')].map(row => row.cells[0].innerText.trim())"
    )
    assert rows == ["base", "SFT", "SFT+RL"]
    summary = read_run(report.parent / "demo").evaluations["rl"].em
    assert f"{summary.k}/{summary.n}" in browser.text(".table-results tbody tr:last-child")
    gains = browser.run("[...document.querySelectorAll('.gain-name')].map(name => name.innerText)")
    assert gains == ["SFT → SFT+RL", "base → SFT", "base → SFT+RL"]
    titles = browser.run("[...document.querySelectorAll('.chart-grid h3')].map(title => title.innerText)")
    assert {"SFT loss", "Reward", "Searches", "Entropy", "Groups that teach nothing"} <= set(titles)
    assert browser.run("document.title") == "demo · Overview · seekling"


def test_the_values_of_a_curve_can_be_read_with_the_arrow_keys(browser, report):
    browser.open(report)
    browser.run("document.querySelector('.chart').focus()")
    browser.press("ArrowRight", "ArrowRight")
    loss = read_run(report.parent / "demo").metrics["sft"][1]["loss"]
    assert browser.text(".chart-panel .readout") == f"step 2\nloss {float(f'{loss:.3g}'):g}"


def test_episodes_are_paged_through_by_keyboard(browser, report):
    browser.open(report, "#/0/episodes")
    first = chosen(browser)
    browser.press("j")
    second = chosen(browser)
    browser.press("k")
    assert chosen(browser) == first != second
    browser.press("/")
    assert browser.run("document.activeElement.id") == "words"
    browser.press("Escape", "Enter")
    assert browser.run("document.activeElement.id") == "detail"
    browser.press("Escape")
    assert browser.run("document.activeElement.id") == "list"
    browser.press("?")
    assert browser.run("document.getElementById('keys').open")


def test_filters_and_search_narrow_the_list(browser, report):
    browser.open(report, "#/0/episodes")
    records = read_run(report.parent / "demo").episodes
    in_rl = [record for record in records if record.stage == "eval-rl"]
    assert browser.text("#tally") == f"{len(in_rl)} of {len(records)} episodes"
    browser.run(
        "(s => { s.value = 'wrong'; s.dispatchEvent(new Event('change')); })(document.querySelectorAll('select')[1])"
    )
    wrong = [r for r in in_rl if r.scores.get("em") == 0.0 and r.episode.answer is not None]
    assert browser.text("#tally") == f"{len(wrong)} of {len(records)} episodes"
    browser.press("/")
    word = wrong[0].question.question.split()[-1].rstrip("?")
    browser.press(*word)
    found = [
        r for r in wrong
        if any(word.lower() in text.lower() for t in r.episode.turns for text in (t.action, t.observation))
        or word.lower() in f"{r.question.question} {r.question.answers} {r.episode.answer}".lower()
    ]  # fmt: skip
    browser.wait(f"document.querySelector('#tally').innerText === '{len(found)} of {len(records)} episodes'")
    browser.press("Escape")
    browser.wait(f"document.querySelector('#tally').innerText === '{len(wrong)} of {len(records)} episodes'")


def test_an_episode_shows_its_turns_with_the_evidence_marked(browser, report):
    records = read_run(report.parent / "demo").episodes
    number, record = next(
        (i, r) for i, r in enumerate(records)
        if r.stage == "eval-rl" and r.question.kind == "single" and r.scores["em"] and len(r.episode.turns) > 1
    )  # fmt: skip
    browser.open(report, f"#/0/episodes/{number}")
    assert browser.text(".question h2") == record.question.question
    assert browser.run("document.querySelectorAll('.turn').length") == len(record.episode.turns)
    marks = browser.run("[...document.querySelectorAll('.observed mark')].map(mark => mark.innerText)")
    assert set(marks) == set(record.question.answers)
    observed = browser.run("[...document.querySelectorAll('.observation')].map(each => each.innerText).join('\\n')")
    assert "holds the answer" in observed
    assert "gold page" in observed


@pytest.mark.parametrize("address", ["#/9/overview", "#/0/nowhere", "#/0/episodes/99999999", "#/0/episodes/-1", "#%%%"])
def test_a_wrong_address_shows_something_sensible(browser, report, address):
    browser.open(report, address)
    assert browser.run("document.querySelector('#main').innerText.length") > 100


def test_the_page_fits_a_phone(report):
    with Browser(width=390, height=844, is_phone=True) as phone:
        for address in ("#/0/overview", "#/0/analysis", "#/0/episodes", "#/0/recipe", "#/0/episodes/5"):
            phone.open(report, address)
            assert phone.run("document.documentElement.scrollWidth") <= 390
        assert phone.run("getComputedStyle(document.querySelector('.side')).display") == "none"
        phone.click(".back")
        assert phone.run("getComputedStyle(document.querySelector('.detail')).display") == "none"
        assert phone.complaints == []


def test_nothing_that_a_model_wrote_is_executed(browser, tmp_path):
    run = write_hostile_run(tmp_path / "<img src=x onerror=window.pwned=1>")
    other = write_hostile_run(tmp_path / "other")
    write_report([run, other], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    for address in ("#/0/overview", "#/0/analysis", "#/0/recipe", "#/1/overview", "#/0/episodes/0"):
        browser.go(address)
        assert browser.run("document.querySelector('#main').innerText.length") > 100
    for _ in range(4 * len(ATTACKS)):
        browser.press("j")
        browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for key in "tttcc":  # by probability, by what is trained, plain; side by side and back
        browser.press(key)
    browser.press("c")
    for attack in ("<script>", "onerror", "{{script}}"):
        browser.press("/")
        browser.run(f"words.value = {json.dumps(attack)}; words.dispatchEvent(new Event('input'))")
        browser.wait("document.querySelector('#tally').innerText.match(/^[1-9]/) !== null")
        browser.press("Escape")
    assert browser.run("typeof window.pwned") == "undefined"
    foreign = "main :is(img, script, iframe, style, link, meta, base, object, math, mglyph)"
    assert browser.run(f"document.querySelectorAll('{foreign}').length") == 0
    shown = browser.run("document.querySelector('.question h2').textContent")
    assert shown in ATTACKS


def test_several_runs_share_a_page_and_a_picker(browser, report, tmp_path):
    other = write_run(tmp_path / "other", questions=5, steps=2, seed=3)
    write_report([other, report.parent / "demo"], tmp_path / "both.html")
    browser.open(tmp_path / "both.html")
    assert "rows of different sets cannot be compared" in browser.text(".note")
    browser.run("document.querySelector('a[href=\"#/1/overview\"]').click()")
    browser.wait("document.querySelector('#run-slot select').value === '1'")
    browser.go("#/1/episodes")
    assert browser.text("#tally").startswith("40 of ")
    browser.go("#/0/episodes")
    browser.wait("document.querySelector('#tally').innerText.startsWith('5 of ')")


@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json", "recipe.toml", "progress.json", "eval/rl.json"])
def test_a_run_folder_with_one_file_still_makes_a_page(browser, tmp_path, name):
    whole = write_run(tmp_path / "whole", questions=3, steps=2)
    alone = tmp_path / "alone"
    (alone / name).parent.mkdir(parents=True)
    (alone / name).write_bytes((whole / name).read_bytes())
    write_report([alone], tmp_path / "report.html")
    for address in ("#/0/overview", "#/0/analysis", "#/0/episodes", "#/0/recipe"):
        browser.open(tmp_path / "report.html", address)


def test_of_ten_thousand_episodes_only_those_in_sight_are_drawn(browser, tmp_path):
    # How long it takes is measured by benchmarks/report.py.
    records = read_run(write_run(tmp_path / "demo", questions=40, steps=2)).episodes
    many = [
        dataclasses.replace(
            record,
            stage="rl",
            step=copy,
            question=dataclasses.replace(record.question, id=f"{record.question.id}-{copy}"),
        )
        for copy in range(10_000 // len(records) + 1)
        for record in records
    ]
    write_records(tmp_path / "big", "rl", many)
    write_report([tmp_path / "big"], tmp_path / "report.html")
    browser.open(tmp_path / "report.html", "#/0/episodes")
    assert browser.text("#tally") == f"{len(many):,} of {len(many):,} episodes"
    assert browser.run("document.querySelectorAll('.row').length") < 60
    browser.run("document.querySelector('#list').focus()")
    browser.press("End")
    assert browser.run("document.querySelectorAll('.row').length") < 60
    assert many[-1].question.question in browser.text(".row.is-selected")
    browser.run("words.value = 'nothing says this'; words.dispatchEvent(new Event('input'))")
    browser.wait("document.querySelector('#tally').innerText.startsWith('0 of') && !tally.innerText.includes('…')")
