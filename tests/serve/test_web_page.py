"""The web page in a real browser: ask, watch, check the citation, say what is right. And pages that mean harm."""

import json

import pytest

from seekling.serve.episodes import SERVED, Episodes
from seekling.serve.keys import Keys, add_key
from tests.patience import wait_until
from tests.report.browser import Browser, find_browser
from tests.report.test_accessibility import find_axe, violations
from tests.serve.serving import HOSTILE, SCRIPT, serve_village

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine (on Debian: apt-get install chromium)"
)


def ask(browser, question, number=1):
    """Ask by keyboard alone, and wait for the n-th answer."""
    browser.run("document.querySelector('#question').focus()")
    browser.call("Input.insertText", text=question)
    browser.press("Enter")
    browser.wait(f"document.querySelectorAll('article .answer').length === {number}")


def test_a_question_by_keyboard_its_searches_its_sentence_and_a_correction(village):
    with Browser() as browser:
        browser.open(village.url)
        ask(browser, "When was Alder Mill built?")
        assert "Alder Mill" in browser.text(".steps")
        assert browser.text(".answer") == "1612"
        browser.run("document.querySelector('blockquote button').focus()")
        browser.press("Enter")
        browser.wait("document.querySelector('#page').open")
        assert browser.text("mark") == "It was built in 1612 by Tobias Wren."
        assert "turns on oak bearings" in browser.text("#page-text")
        browser.press("Escape")
        browser.wait("!document.querySelector('#page').open")
        browser.run("document.querySelectorAll('article form button')[1].focus()")
        browser.press("Enter")
        browser.wait("document.activeElement.id.startsWith('right-')")
        browser.call("Input.insertText", text="1613")
        browser.press("Enter")
        browser.wait("document.querySelector('article .note[role=status]').textContent.startsWith('Correction saved')")
        episodes = Episodes(village.folder / SERVED)
        assert [(each.thumbs, each.correction, each.answer) for each in episodes.judged()] == [("down", "1613", "1612")]
        episodes.close()
        ask(browser, "Who owns the cider?", 2)
        assert "I did not find this" in browser.run("document.querySelectorAll('.answer')[1].textContent")
        assert browser.complaints == []


def test_the_searches_are_seen_before_the_answer_and_a_question_can_be_stopped(village):
    with Browser() as browser:
        browser.open(village.url)
        browser.run("document.querySelector('#question').value = 'When was Alder Mill slowly built?'")
        browser.click("#ask")
        browser.wait("!document.querySelector('#stop').hidden")
        browser.click("#stop")
        browser.wait("document.querySelector('#status').textContent === 'Stopped.'")
        wait_until(lambda: village.sampler.num_running == 0)
        assert browser.complaints == []


@pytest.mark.parametrize(
    ("mill", "page", "year"),
    [
        ("Marked", "marked", "1706"),
        ("Markup", "markup", "1701"),
        ("Dotted", "../../etc/passwd", "1703"),
        ("Slashed", "a/../b?x=1#y", "1704"),
    ],
)
def test_what_documents_say_is_text_and_never_markup(village, mill, page, year):
    with Browser() as browser:
        browser.open(village.url)
        ask(browser, f"When was {mill} Mill built?")
        assert browser.text(".answer") == year
        browser.click("blockquote button")
        browser.wait("document.querySelector('#page').open")
        assert browser.run("document.querySelector('#page-text').textContent") == HOSTILE[page][1]
        assert year in browser.text("mark")
        assert browser.text("mark") in HOSTILE[page][1]
        assert browser.text("#page-note") == ""
        assert (
            browser.run("document.querySelectorAll('article img, article script, #page img, #page script').length") == 0
        )
        assert browser.run("document.title") == "Ask your documents"
        browser.click("#page-close")
        ask(browser, f"Is this shown as it is? {SCRIPT}", 2)
        assert SCRIPT in browser.run("document.querySelectorAll('article h2')[1].textContent")
        assert browser.run("document.title") == "Ask your documents"
        assert browser.complaints == []


def test_the_page_asks_for_a_key_where_there_is_one(village, tiny_model_dir, tmp_path):
    key = add_key(tmp_path / "keys.json", "alice")
    with (
        serve_village(village.folder, tiny_model_dir, keys=Keys(tmp_path / "keys.json")) as locked,
        Browser() as browser,
    ):
        browser.open(locked.url)
        browser.wait("!document.querySelector('#key-form').hidden")
        browser.run(f"document.querySelector('#key').value = {json.dumps(key)}")
        browser.click("#key-form button")
        browser.wait("document.querySelector('#key-form').hidden")
        ask(browser, "When was Alder Mill built?")
        assert browser.text(".answer") == "1612"


@pytest.mark.skipif(find_axe() is None, reason="no axe-core here (pip install --no-deps axe-playwright-python)")
@pytest.mark.parametrize(("dark", "is_phone"), [(False, False), (True, False), (False, True)])
def test_the_page_has_no_serious_accessibility_problem(village, dark, is_phone):
    size = {"width": 390, "height": 844} if is_phone else {}
    with Browser(dark=dark, is_phone=is_phone, **size) as browser:
        browser.open(village.url)
        # axe is put into the page from outside, which the page's own policy would not let it do.
        browser.call("Page.setBypassCSP", enabled=True)
        browser.open(village.url)
        assert violations(browser) == [], "empty"
        ask(browser, "When was Alder Mill built?")
        browser.click("article form button:nth-of-type(2)")
        browser.wait("!document.querySelector('article form .row:nth-of-type(2)').hidden")
        assert violations(browser) == [], "answered"
        browser.click("blockquote button")
        browser.wait("document.querySelector('#page').open")
        assert violations(browser) == [], "a page"
