"""A search server over a network that fails in every way: right answers or typed failures, never emptiness."""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3

from seekling import client as client_module
from seekling.client import BadReplyError, Client, Patience
from seekling.config import RetrievalConfig
from seekling.errors import ServerError, ToolError
from seekling.retrieval.index import open_index
from seekling.retrieval.library import open_library
from seekling.retrieval.remote import RemoteIndex, hits_from_json, open_remote
from seekling.types import Hit, Passage
from tests.patience import FAILS_AFTER_S, wait_until
from tests.retrieval.towns import QUERIES, TOWNS, build_towns
from tests.search_server import FAULTS, faulty_proxy, in_threads, open_client, serve


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    return build_towns(folder, "bm25", folder)


@pytest.fixture(scope="module")
def url(index):
    with serve(f"towns={index}") as url:
        yield url


def many_queries(num):
    words = " ".join(row[2] for row in TOWNS).split()
    dice = random.Random(7)
    return [" ".join(dice.choices(words, k=3)) for _ in range(num)]


def outcome_of(client, query):
    try:
        return client.search([query], 3)[0]
    except ServerError as error:
        return error


def test_a_remote_library_does_all_that_a_local_one_does(index, url):
    local, remote = (
        open_library(index),
        open_library(index, RetrievalConfig(url=f"{url}/towns/retrieve")),
    )
    for query in QUERIES:
        assert remote.search(query, 3) == local.search(query, 3)
        assert remote.search_pages(query) == local.search_pages(query)
    assert remote.view_sections("star:fowey") == local.view_sections("star:fowey")
    assert remote.read_section("star:fowey:History") == local.read_section("star:fowey:History")
    assert remote.title_of("nowhere") == ""
    assert (local.may_wait, remote.may_wait) == (False, True)
    with pytest.raises(ToolError, match="no page 'alnwik'"):
        remote.view_sections("alnwik")


@pytest.mark.long
def test_one_percent_of_random_faults_is_outlasted_and_nothing_is_lost(index, url):
    num_requests = 10_000
    queries = many_queries(num_requests)
    expected = open_index(index).search(queries, 3)
    patience = Patience(timeout_s=2.0, num_tries=6, first_pause_s=0.01, max_pause_s=0.1)
    with faulty_proxy(url, 0.01, delay_s=3.0) as proxy:
        client = RemoteIndex(Client(proxy.url, patience))
        got = in_threads(8, queries, lambda query: outcome_of(client, query))
        assert got == expected
        assert sum(proxy.injected.values()) > num_requests // 200
        assert set(proxy.injected) == set(FAULTS)


class ServerProcess:
    """`seekling serve --search-only` in a process of its own."""

    def __init__(self, index, port="0"):
        code = (
            f"from seekling.cli.main import main; main(['serve', '--search-only', {str(index)!r}, '--port', {port!r}])"
        )
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
        self.process.stdout.readline()
        line = self.process.stdout.readline()
        assert line.startswith("serving bm25 at http://127.0.0.1:"), line + self.process.stderr.read()
        self.url = line.split()[3].removesuffix("/retrieve")
        self.port = self.url.rpartition(":")[2]

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=FAILS_AFTER_S)
        return self.process.returncode, out, err


def test_a_server_that_is_killed_is_a_typed_failure_and_one_that_comes_back_is_used_again(index):
    server = ServerProcess(index)
    client = open_client(server.url, Patience(timeout_s=60, num_tries=2, first_pause_s=0.01))
    right = client.search(QUERIES, 3)
    server.end(signal.SIGKILL)
    with pytest.raises(ServerError, match="gave no answer in 2 tries"):
        client.search(QUERIES, 3)
    patience = Patience(timeout_s=60, num_tries=6000, first_pause_s=0.1, max_pause_s=0.1)
    patient, waited_for = RemoteIndex(Client(server.url, patience)), []
    thread = threading.Thread(target=lambda: waited_for.append(patient.search(QUERIES, 3)))
    thread.start()
    server = ServerProcess(index, port=server.port)
    try:
        assert client.search(QUERIES, 3) == right
        thread.join()
        assert waited_for == [right]
    finally:
        server.end()


def test_half_a_minute_is_waited_for_a_server_that_was_there_even_if_chance_cuts_every_pause_in_half(monkeypatch):
    slept = []
    monkeypatch.setattr(client_module.time, "sleep", slept.append)
    monkeypatch.setattr(client_module._JITTER, "uniform", lambda least, most: least)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(ServerError, match="gave no answer in 9 tries"):
            RemoteIndex(Client(url, Patience())).search(QUERIES, 3)
        assert sum(slept) >= 30
        slept.clear()
        with pytest.raises(ServerError):
            open_remote(RetrievalConfig(url=url))
        assert 15 <= sum(slept) < 30, "a wrong address is told sooner"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_what_was_asked_is_answered(index, number):
    server = ServerProcess(index)
    client = RemoteIndex(Client(server.url, Patience(timeout_s=FAILS_AFTER_S, num_tries=1)))
    queries = [f"{word} {place}" for place, word in enumerate(many_queries(1_500))]
    answers = []
    asking = threading.Thread(target=lambda: answers.append(client.search(queries, 3)))
    asking.start()
    waiting = 'seekling_search_waiting_queries{index="bm25"} 0.0'
    wait_until(lambda: waiting not in urllib3.request("GET", f"{server.url}/metrics").data.decode())
    assert server.end(number) == (0, "stopped; what was asked is answered\n", "")
    asking.join()
    assert answers == [open_index(index).search(queries, 3)]


def test_a_busy_server_is_given_the_time_that_it_asks_for():
    with serve(retriever=Crowded(), waiting_queries=1, batch_queries=1) as url:
        service = Client(url, Patience(timeout_s=60, num_tries=30, first_pause_s=0.01))
        assert in_threads(6, [f"q{n}" for n in range(6)], lambda query: RemoteIndex(service).search([query], 1)) == [
            [[Hit(Passage(f"q{n}", f"q{n}", "", "text"), 1.0, 0)]] for n in range(6)
        ]


class Crowded:
    """Takes its time."""

    def search(self, queries, top_k):
        time.sleep(0.05)
        return [[Hit(Passage(query, query, "", "text"), 1.0, 0)] for query in queries]


def test_what_other_servers_answer_is_understood():
    bare = {"id": 7, "contents": '"Fowey"\nA harbour.'}
    forms = [
        ([{"document": bare, "score": 2}], [("7", "Fowey", "A harbour.", 2.0)]),
        ([bare], [("7", "Fowey", "A harbour.", 0.0)]),
        ([{"document": '"Fowey"\nA harbour.', "score": 1.5}], [(None, "Fowey", "A harbour.", 1.5)]),
        ([{"document": {"id": "x", "title": "T", "text": "t", "contents": "else"}}], [("x", "T", "t", 0.0)]),
        ([{"document": {"contents": "one line"}, "score": -1}], [(None, "", "one line", -1.0)]),
        # FAISS pads a small corpus with its last passage.
        ([{"document": bare, "score": 2}, {"document": bare, "score": -3e38}], [("7", "Fowey", "A harbour.", 2.0)]),
        ([], []),
    ]
    for rows, expected in forms:
        (hits,) = hits_from_json({"result": [rows]}, num_queries=1, top_k=3)
        assert [hit.rank for hit in hits] == list(range(len(hits)))
        for hit, (id_, title, text, score) in zip(hits, expected, strict=True):
            assert (hit.passage.title, hit.passage.text, hit.score) == (title, text, score)
            assert hit.passage.id == id_ or id_ is None
    many = [{"document": {"id": n, "contents": "c"}, "score": 9 - n} for n in range(9)]
    assert len(hits_from_json({"result": [many]}, num_queries=1, top_k=3)[0]) == 3


@pytest.mark.parametrize(
    "reply",
    [
        *(None, [], "text", 3, {}, {"result": None}, {"result": []}, {"result": [[], []]}, {"result": [None]}),
        *({"result": [[row]]} for row in (None, 3, {}, {"document": None}, {"document": {"id": "a"}}, {"contents": 4})),
        *({"result": [[{"document": "a", "score": score}]]} for score in ("1", True, float("nan"), float("inf"), [1])),
    ],
)
def test_a_reply_that_is_no_answer_is_a_bad_reply_and_never_an_empty_one(reply):
    with pytest.raises(BadReplyError):
        hits_from_json(reply, num_queries=1, top_k=3)


def test_a_reply_that_never_ends_is_given_up(url):
    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b" ")
                time.sleep(0.02)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    server.handle_error = lambda *args: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        client = RemoteIndex(Client(f"http://127.0.0.1:{server.server_port}", Patience(timeout_s=0.3, num_tries=1)))
        with pytest.raises(ServerError, match="did not end in time"):
            client.search(["harbour"], 1)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
