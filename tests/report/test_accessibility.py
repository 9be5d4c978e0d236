"""axe-core's rules on every view, light and dark, wide and on a phone: nothing serious or critical."""

import importlib.util
import json
from pathlib import Path

import pytest

from seekling.report import write_report
from seekling.report.read import read_run
from tests.report.browser import Browser, find_browser
from tests.report.run_folder import write_run


def find_axe() -> Path | None:
    """The rules, in a package that carries them; it is not imported, because it wants a browser driver."""
    spec = importlib.util.find_spec("axe_playwright_python")
    file = Path(spec.origin).with_name("axe.min.js") if spec and spec.origin else None
    return file if file is not None and file.is_file() else None


pytestmark = [
    pytest.mark.skipif(
        find_browser() is None, reason="no Chromium on this machine (on Debian: apt-get install chromium)"
    ),
    pytest.mark.skipif(find_axe() is None, reason="no axe-core here (pip install --no-deps axe-playwright-python)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    run = write_run(folder / "demo", questions=12, steps=3)
    (run / "eval" / "sft.json").write_text("{")  # so that there is a notice to look at
    other = write_run(folder / "other", questions=4, steps=2, seed=1)
    write_report([run, other], folder / "report.html")
    return folder / "report.html"


def violations(browser):
    """What axe-core finds that is serious or critical: rule and the element's markup."""
    if not browser.run("typeof axe === 'object'"):
        browser.run(find_axe().read_text(encoding="utf-8") + ";0")
    found = browser.run("axe.run(document, {resultTypes: ['violations']}).then(result => JSON.stringify(result))")
    return [
        (violation["id"], node["html"][:200], node["failureSummary"])
        for violation in json.loads(found)["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize(("dark", "is_phone"), [(False, False), (True, False), (False, True)])
def test_no_view_has_a_serious_accessibility_problem(report, dark, is_phone):
    records = read_run(report.parent / "demo").episodes
    trained = next(i for i, r in enumerate(records) if r.advantage and r.advantage < 0 and len(r.episode.turns) > 1)
    size = {"width": 390, "height": 844} if is_phone else {}
    with Browser(dark=dark, is_phone=is_phone, **size) as browser:
        for address in ("#/0/overview", "#/0/analysis", "#/0/recipe", "#/0/episodes", f"#/0/episodes/{trained}"):
            browser.open(report, address)
            browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert violations(browser) == [], address
        for key in ("t", "t", "t", "c"):  # by probability, by what is trained, plain again, side by side
            browser.press(key)
            assert violations(browser) == [], key
        browser.press("?")
        assert violations(browser) == [], "the dialog"


def test_the_rules_do_find_what_is_wrong(report):
    with Browser() as browser:
        browser.open(report)
        browser.run("document.querySelector('#theme').removeAttribute('aria-label')")
        browser.run("document.querySelector('#theme').removeAttribute('title')")
        browser.run("document.querySelector('#theme').replaceChildren()")
        browser.run("document.querySelector('.note').style.color = '#ccc'")
        assert {rule for rule, _, _ in violations(browser)} == {"button-name", "color-contrast"}
