"""A run served while it goes on: what the server gives to whom, and that the page follows without moving its reader."""

import contextlib
import http.client
import json
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import seekling.report.watch
from seekling.errors import DataError, InfrastructureError
from seekling.report.read import read_run
from seekling.report.watch import Watched, WatchServer
from tests.patience import FAILS_AFTER_S
from tests.report.browser import find_browser
from tests.report.run_folder import write_records, write_run
from tests.report.test_page import ATTACKS, Blocks, write_hostile_run

needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine (on Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "demo", questions=12, steps=4)


@pytest.fixture
def run(whole_run, tmp_path):
    return shutil.copytree(whole_run, tmp_path / "demo")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(seekling.report.watch, "_REFRESH_S", 0.0)


@contextlib.contextmanager
def serving(run):
    with WatchServer(run, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(run):
    with serving(run) as server:
        yield server


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=FAILS_AFTER_S)
    connection.request(method, path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response, body


def test_the_page_is_the_report_with_a_policy_that_lets_it_ask_its_own_server_only(server, run):
    response, body = get(server, "/")
    policy = response.getheader("Content-Security-Policy")
    assert response.status == 200
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'; " in policy
    assert policy.endswith("frame-ancestors 'none'")
    assert "unsafe" not in policy
    assert response.getheader("X-Content-Type-Options") == "nosniff"
    assert response.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert response.getheader("Cache-Control") == "no-store"
    scripts = Blocks(body).scripts
    assert json.loads(scripts["index-0"])["count"] == len(read_run(run).episodes)
    assert json.loads(scripts["versions"]) == json.loads(get(server, "/versions.json")[1])


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1", "[::1]:1", ""])
def test_a_request_under_another_host_name_is_refused(server, host):
    response, body = get(server, "/", host=host or "localhost")
    assert (response.status, body) == (421, "wrong host\n")


@pytest.mark.parametrize(
    "path",
    ["/recipe.toml", "/../../etc/passwd", "/blocks/../recipe.toml", "/blocks/%2e%2e.json", "//x", "/blocks/"],
)
def test_nothing_is_served_but_the_page_and_its_blocks(server, path):
    assert get(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(server, method):
    assert get(server, "/", method=method)[0].status == 501


def test_versions_change_with_what_is_written_and_only_there(server, run):
    before = json.loads(get(server, "/versions.json")[1])
    assert json.loads(get(server, "/versions.json")[1]) == before
    rl = read_run(run).episodes
    write_records(run, "eval-rl", [record for record in rl if record.stage == "eval-rl"][:1], append=True)
    after = json.loads(get(server, "/versions.json")[1])
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == {"overview", "index-0", "episodes-0-4-0"}
    fresh = get(server, f"/blocks/index-0.json?version={after['index-0']}")
    assert json.loads(fresh[1])["count"] == len(rl) + 1
    assert get(server, f"/blocks/index-0.json?version={before['index-0']}")[0].status == 204
    assert get(server, "/blocks/none.json")[0].status == 204


def test_a_line_that_is_being_written_is_neither_damage_nor_lost(run):
    watched = Watched(run)
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    overview = json.loads(watched.block("overview"))["runs"][0]
    assert overview["problems"] == []
    assert overview["charts"]["time"][0]["lines"][0]["xs"] == [1, 2, 3]
    path.write_bytes(whole)
    assert json.loads(watched.block("overview"))["runs"][0]["charts"]["time"][0]["lines"][0]["xs"] == [1, 2, 3, 4]


def test_a_run_that_was_cut_back_to_a_checkpoint_is_read_anew(run):
    watched = Watched(run)
    before = json.loads(watched.block("index-0"))["count"]
    path = run / "episodes" / "rl.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    shutil.copy(path, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").write_text("".join(lines[:8] + lines[16:20]))
    path.with_suffix(".tmp").replace(path)
    assert json.loads(watched.block("index-0"))["count"] == before - len(lines) + 12
    assert "rl.jsonl" not in str(json.loads(watched.block("overview"))["runs"][0]["problems"])


def test_what_cannot_be_watched_is_said(tmp_path, server):
    with pytest.raises(DataError, match="there is no run folder at"):
        WatchServer(tmp_path / "none", 0)
    with pytest.raises(InfrastructureError, match=f"cannot listen on port {server.server_port}"):
        WatchServer(tmp_path / "demo", server.server_port)


def test_ctrl_c_ends_the_watching_cleanly(run):
    code = f"from seekling.cli.main import main; main(['report', '--watch', {str(run)!r}, '--port', '0'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout.readline().startswith(f"watching {run} at http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=FAILS_AFTER_S)
    assert (process.returncode, out, err) == (0, "\nstopped watching\n", "")


def hold_back(run, stage, number):
    """Take the last records of a stage out of the run, and give them back when called."""
    records = [record for record in read_run(run).episodes if record.stage == stage]
    write_records(run, stage, records[:-number])
    return lambda: write_records(run, stage, records[-number:], append=True)


@needs_browser
def test_the_open_episode_stays_while_the_run_grows_before_it(browser, server, run):
    go_on = hold_back(run, "rl", 16)
    browser.open(server.url, "#/0/episodes")
    browser.run("document.querySelector('[data-filter=stage]').value = ''")
    browser.run("document.querySelector('[data-filter=stage]').dispatchEvent(new Event('change'))")
    browser.wait("document.querySelectorAll('.row').length > 3")
    before = browser.run("Number(document.querySelector('#tally').innerText.split(' ')[0])")
    browser.run("document.querySelector('#list').focus()")
    browser.press("End", "Enter")
    browser.run("document.querySelector('.prompt').open = true")
    address, question = browser.run("location.hash"), browser.text(".question h2")
    assert address == f"#/0/episodes/{before - 1}"
    top = browser.run("document.querySelector('.row.is-selected').getBoundingClientRect().top")
    go_on()
    browser.wait(f"document.querySelector('#tally').innerText.startsWith('{before + 16} of')")
    assert browser.run("location.hash") == f"#/0/episodes/{before + 15}"
    assert browser.text(".question h2") == question
    assert browser.run("document.querySelector('.prompt').open")
    assert browser.run("document.querySelector('.row.is-selected').getBoundingClientRect().top") == top
    assert browser.run("document.activeElement.id") == "detail"


@needs_browser
def test_a_page_whose_server_ended_says_so_and_stays(shared_browser, run):
    browser = shared_browser
    with serving(run) as server:
        browser.open(server.url, "#/0/episodes")
    browser.wait("document.querySelector('#live').innerText.trim() === 'not served any more'")
    browser.press("j")
    assert len(browser.text(".question h2")) > 10
    browser.complaints.clear()  # the browser itself notes the refused connections


@needs_browser
def test_nothing_that_a_model_wrote_is_executed_when_it_arrives_later(browser, tmp_path):
    run = write_run(tmp_path / "demo", questions=3, steps=2)
    hostile = write_hostile_run(tmp_path / "hostile")
    with serving(run) as server:
        browser.open(server.url, "#/0/episodes")
        shutil.copytree(hostile, run, dirs_exist_ok=True)
        browser.wait(f"document.querySelector('#tally').innerText.startsWith('{len(ATTACKS)} of')")
        for address in ("#/0/overview", "#/0/analysis", "#/0/recipe", "#/0/episodes/0"):
            browser.go(address)
            assert browser.run("document.querySelector('#main').innerText.length") > 100
        assert browser.run("typeof window.pwned") == "undefined"
