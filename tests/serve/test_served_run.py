"""`seekling serve RUN` as a process: what is acknowledged stays, whatever ends it; keys come and go meanwhile."""

import contextlib
import http.client
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seekling.corpus.questions import read_questions
from seekling.serve.episodes import SERVED, Episodes
from seekling.types import UNANSWERABLE
from tests.app_server import send, serving
from tests.commands import seekling
from tests.patience import FAILS_AFTER_S, wait_until

KILLED_BETWEEN_RENAMES = """
import os, pathlib, signal
from seekling import files
from seekling.cli.main import main
move = os.replace
def move_once(source, target):
    move(source, target)
    if ".old" in pathlib.Path(target).name:
        os.kill(os.getpid(), signal.SIGKILL)
files.os.replace = move_once
main()
"""
QUESTIONS = ("When was Alder Mill built?", "When was Birch Mill built?")


@pytest.fixture
def run(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "demo")


def post(url, path, body, key=""):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=FAILS_AFTER_S) as response:
        return json.loads(response.read())


def ask(url, question, key=""):
    return post(
        url, "/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": question}]}, key
    )


def test_feedback_that_was_acknowledged_outlives_kill_9(run, tmp_path):
    acknowledged = []
    for round_ in range(2):  # the second start is on what the first kill left
        with serving(str(run), "--port", "0") as server, ThreadPoolExecutor(4) as pool:
            ids = [ask(server.url, question)["id"] for question in QUESTIONS]

            def judge(number, url=server.url, ids=ids, round_=round_):
                body = {"id": ids[number % 2], "thumbs": "down", "correction": f"{round_} {number}"}
                with contextlib.suppress(OSError, http.client.HTTPException):  # cut off by the kill
                    post(url, "/v1/feedback", body)
                    acknowledged.append(body["correction"])

            def judge_all(start):
                for number in range(start, 10_000, 4):
                    if server.process.poll() is not None:
                        return
                    judge(number)

            num_before = len(acknowledged)
            jobs = [pool.submit(judge_all, start) for start in range(4)]
            wait_until(lambda before=num_before: len(acknowledged) > before + 50)
            server.process.kill()
            server.process.wait()
            for job in jobs:
                job.result()
    episodes = Episodes(run / SERVED)
    stored = {row[0] for row in episodes._database.execute("SELECT correction FROM feedback")}
    assert len(acknowledged) > 100
    assert set(acknowledged) <= stored
    episodes.close()
    result = seekling("data", "feedback", run, "--out", tmp_path / "q.jsonl")
    assert result.exit_code == 0, result.output
    questions = read_questions(tmp_path / "q.jsonl")
    assert {each.question for each in questions} == set(QUESTIONS)


def test_answers_that_were_given_outlive_kill_9_in_the_middle_of_others(run):
    given = []
    with serving(str(run), "--port", "0", "--requests-per-minute", "0") as server, ThreadPoolExecutor(4) as pool:

        def ask_on(number):
            while server.process.poll() is None:
                with contextlib.suppress(OSError, http.client.HTTPException):  # cut off by the kill
                    given.append(ask(server.url, QUESTIONS[number % 2])["id"])

        jobs = [pool.submit(ask_on, number) for number in range(4)]
        wait_until(lambda: len(given) > 20)
        server.process.kill()
        for job in jobs:
            job.result()
    with contextlib.closing(sqlite3.connect(run / SERVED)) as database:
        assert set(given) <= {row[0] for row in database.execute("SELECT id FROM answers")}
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with serving(str(run), "--port", "0") as server:
        assert ask(server.url, QUESTIONS[0])["choices"][0]["message"]["content"] == "1612"


def test_feedback_becomes_questions_that_training_reads(run, tmp_path):
    with serving(str(run), "--port", "0") as server:
        first, second = (ask(server.url, question) for question in QUESTIONS)
        unknown = ask(server.url, "Who painted the moon?")
        post(server.url, "/v1/feedback", {"id": first["id"], "thumbs": "down"})
        post(server.url, "/v1/feedback", {"id": first["id"], "thumbs": "up"})
        post(server.url, "/v1/feedback", {"id": second["id"], "thumbs": "down", "correction": "in 1656"})
        post(server.url, "/v1/feedback", {"id": second["id"], "thumbs": "down"})
        post(server.url, "/v1/feedback", {"id": unknown["id"], "thumbs": "down", "correction": "unknown"})
        again = ask(server.url, "Where is Birch Mill?")
        post(server.url, "/v1/feedback", {"id": again["id"], "thumbs": "down"})
    out = tmp_path / "questions.jsonl"
    result = seekling("data", "feedback", run, "--out", out, "--json")
    counts = {"questions": 3, "corrected": 2, "unanswerable": 1, "without_answer": 1, "without_page": 1}
    assert json.loads(result.stdout) == counts
    alder, birch, moon = read_questions(out)
    assert (alder.answers, alder.supporting_ids) == (("1612",), ("alder_mill",))
    assert (birch.answers, birch.supporting_ids, birch.source) == (("in 1656",), ("birch_mill",), "feedback")
    assert (moon.kind, moon.answers[0]) == (UNANSWERABLE, "unknown")


def test_a_server_that_is_told_to_stop_answers_what_was_asked(run):
    with serving(str(run), "--port", "0", "--requests-per-minute", "0") as server, ThreadPoolExecutor(8) as pool:

        def has_come():
            figures = send(f"{server.url}/metrics").raw.decode()
            return "seekling_open_questions 0.0" not in figures or "seekling_questions_total{" in figures

        asked = [pool.submit(ask, server.url, QUESTIONS[0]) for _ in range(8)]
        wait_until(has_come)
        server.process.send_signal(signal.SIGTERM)
        answers = []
        for job in asked:
            with contextlib.suppress(ConnectionError, urllib.error.URLError):  # refused, not cut off
                answers.append(job.result()["choices"][0]["message"]["content"])
        assert server.process.wait(timeout=FAILS_AFTER_S) == 0
        done = '"route": "/v1/chat/completions", "status": 200'
        wait_until(lambda: sum(done in line for line in server.lines) == len(answers))
    assert set(answers) <= {"1612"}
    assert answers
    assert "Traceback" not in "".join(server.lines)


def test_keys_are_made_and_taken_back_while_it_runs(run):
    with serving(str(run), "--port", "0") as server:
        assert ask(server.url, QUESTIONS[0])["id"]
        key = seekling("serve", run, "--add-key", "alice").stdout.strip()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(server.url, QUESTIONS[0])
        assert ask(server.url, QUESTIONS[0], key)["choices"][0]["message"]["content"] == "1612"
        assert seekling("serve", run, "--revoke-key", "alice").exit_code == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(server.url, QUESTIONS[0], key)


def what_was_found(run, answer):
    """Everything that came back in the episode of an answer."""
    with contextlib.closing(sqlite3.connect(run / SERVED)) as database:
        ((episode,),) = database.execute("SELECT episode FROM answers WHERE id = ?", [answer["id"]])
    return "".join(turn.get("observation", "") for turn in json.loads(episode)["turns"])


def test_documents_that_change_are_answered_from_while_it_runs_and_after_kill_9_in_an_update(run, tmp_path):
    pages = Path(tomllib.loads((run / "recipe.toml").read_text())["data"]["corpus"]).read_text()
    corpus = tmp_path / "corpus.jsonl"
    update = ["index", str(corpus), "--out", str(run / "index"), "--update"]
    with serving(str(run), "--port", "0") as server:
        assert "built in 1612" in what_was_found(run, ask(server.url, QUESTIONS[0]))
        corpus.write_text(pages.replace("1612", "1844"))
        result = seekling(*update)
        assert result.exit_code == 0, result.output
        found = what_was_found(run, ask(server.url, QUESTIONS[0]))
        assert "built in 1844" in found
        assert "1612" not in found
        with urllib.request.urlopen(f"{server.url}/v1/pages/alder_mill", timeout=FAILS_AFTER_S) as response:
            assert "built in 1844" in response.read().decode()
        # The moment when no index stands in its place: the old one was moved away, the new one not yet there.
        corpus.write_text(pages.replace("1612", "1911"))
        child = subprocess.run([sys.executable, "-c", KILLED_BETWEEN_RENAMES, *update])
        assert child.returncode == -signal.SIGKILL
        assert not (run / "index").exists()
        assert "built in 1844" in what_was_found(run, ask(server.url, QUESTIONS[0]))
    with serving(str(run), "--port", "0") as server:
        assert "built in 1844" in what_was_found(run, ask(server.url, QUESTIONS[0]))
        assert seekling(*update).exit_code == 0
        assert "built in 1911" in what_was_found(run, ask(server.url, QUESTIONS[0]))
    told = seekling("ask", run, QUESTIONS[0], "--json")
    assert "built in 1911" in "".join(turn["observation"] for turn in json.loads(told.stdout)["turns"])


def test_an_index_that_was_made_otherwise_is_not_taken_while_it_runs(run, tmp_path):
    pages = tomllib.loads((run / "recipe.toml").read_text())["data"]["corpus"]
    with serving(str(run), "--port", "0") as server:
        words = ["index", pages, "--out", str(run / "index"), "--passage-words", "5", "--force"]
        assert seekling(*words).exit_code == 0
        for _ in range(2):
            assert "built in 1612" in what_was_found(run, ask(server.url, QUESTIONS[0]))
        wait_until(lambda: "passage_words" in "".join(server.lines))
    (line,) = [line for line in server.lines if "passage_words" in line]
    logged = json.loads(line)
    assert (logged["level"], logged["logger"]) == ("error", "seekling.serve.desk")
    assert logged["message"].startswith("the new index is not used, the one that was opened before is: ")
    for each in server.lines[server.lines.index(line) :]:
        json.loads(each)


def test_other_machines_are_let_in_only_with_keys(run):
    refused = seekling("serve", run, "--host", "0.0.0.0")
    assert refused.exit_code == 1
    assert "other machines could ask, and there is no key" in refused.output


def test_a_head_that_trickles_in_is_hung_up_on(run):
    with serving(str(run), "--port", "0") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            connection.settimeout(FAILS_AFTER_S)
            started = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
            assert 5 < time.monotonic() - started < 60
