"""One headless browser for a module of tests, and a report to look at."""

import pytest

from seekling.report.page import write_report
from tests.report.browser import Browser
from tests.report.run_folder import write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report([write_run(folder / "demo", questions=40, steps=4)], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def shared_browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(shared_browser):
    shared_browser.call("Page.navigate", url="about:blank")  # or a watched page of the test before goes on asking
    shared_browser.complaints.clear()
    yield shared_browser
    assert shared_browser.complaints == []
