"""The search server as its clients see it: Search-R1's wire format to the letter, and every failure with its status."""

import contextlib
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3

from seekling.retrieval.index import open_index
from seekling.types import Hit, Passage
from tests.patience import FAILS_AFTER_S, wait_until
from tests.retrieval.towns import QUERIES, build_towns
from tests.search_server import serve


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    return build_towns(folder, "bm25", folder)


@pytest.fixture(scope="module")
def url(index):
    with serve(str(index), f"other={index}", body_bytes=100_000, query_chars=50_000, hits_per_request=100) as url:
        yield url


def post(url, body, path="/retrieve"):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = urllib3.request("POST", url + path, body=raw, retries=False, timeout=FAILS_AFTER_S)
    return response.status, response.json(), response.headers


def ask(url, body, path="/retrieve"):
    status, reply, _ = post(url, body, path)
    assert status == 200, reply
    return reply


def test_queries_with_scores_are_answered_as_search_r1_does(index, url):
    reply = ask(url, {"queries": QUERIES, "topk": 2, "return_scores": True})
    assert list(reply) == ["result"]
    for row, hits in zip(reply["result"], open_index(index).search(QUERIES, 2), strict=True):
        assert [list(each) for each in row] == [["document", "score"]] * len(hits)
        for each, hit in zip(row, hits, strict=True):
            assert each["score"] == hit.score
            assert each["document"]["contents"] == f'"{hit.passage.title}"\n{hit.passage.text}'
            assert each["document"]["id"] == hit.passage.id


def test_pitfall_16_k_beyond_the_corpus_gives_what_there_is_and_no_padding(index, url):
    (row,) = ask(url, {"queries": ["town"], "topk": 10**12, "return_scores": True})["result"]
    (hits,) = open_index(index).search(["town"], 100)
    assert [each["document"]["id"] for each in row] == [hit.passage.id for hit in hits]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "the body is not JSON"),
        (b"[" * 50_000, 400, "the body is not JSON"),
        (b"", 400, "the body is not JSON"),
        ([], 422, "must be a JSON object, not []"),
        ({}, 422, 'expected one of "queries", a list of texts, and "query", a text'),
        ({"queries": "harbour"}, 422, 'queries: Input should be a valid list, got "harbour"'),
        ({"queries": ["a", 1]}, 422, "queries.1: Input should be a valid string, got 1"),
        ({"query": ["a"]}, 422, 'query: Input should be a valid string, got ["a"]'),
        ({"query": "a", "queries": ["a"]}, 422, "expected one of"),
        ({"queries": ["a"], "topk": -1}, 422, "topk: Input should be greater than or equal to 0, got -1"),
        ({"queries": ["a"], "topk": "3"}, 422, 'topk: Input should be a valid integer, got "3"'),
        ({"queries": ["a"], "topk": True}, 422, "got true"),
        ({"queries": ["a"], "return_scores": "yes"}, 422, "return_scores: Input should be a valid boolean"),
        ({"queries": ["a"], "top_k": 3}, 422, "'top_k' is no field of a request; did you mean 'topk'?"),
        ({"queries": ["a"] * 60, "topk": 5}, 422, "ask for 300 passages; this server gives 100"),
        ({"queries": ["a" * 200_000]}, 413, "this server takes 100000"),
        ({"queries": ["b", "a" * 60_000]}, 413, "a query has 60000 characters; this server takes 50000: shorten it"),
    ],
)
def test_a_wrong_request_is_told_why(url, body, status, why):
    got, reply, _ = post(url, body)
    assert (got, list(reply)) == (status, ["error"])
    assert why in reply["error"]


def test_a_huge_request_is_refused_without_being_kept(url):
    status, reply, _ = post(url, b" " * 30_000_000)
    assert (status, reply["error"]) == (413, "the request has 30000000 bytes; this server takes 100000: send fewer")


def test_indexes_go_by_name_and_the_first_by_none(url):
    body = {"queries": QUERIES, "return_scores": True}
    assert ask(url, body, "/bm25/retrieve") == ask(url, body, "/other/retrieve") == ask(url, body)
    status, reply, _ = post(url, body, "/wiki/retrieve")
    assert (status, reply["error"]) == (404, "there is no index 'wiki' here; there are: bm25, other")
    status, reply, _ = post(url, body, "/search")
    assert (status, reply["error"]) == (404, "there is nothing at '/search'; searches go to POST /retrieve")
    response = urllib3.request("GET", f"{url}/retrieve")
    assert (response.status, response.json()) == (405, {"error": "'/retrieve' is asked by POST, not by GET"})


def test_health_tells_what_is_served(index, url):
    reply = urllib3.request("GET", f"{url}/health").json()
    assert reply["status"] == "ok"
    assert [each["name"] for each in reply["indexes"]] == ["bm25", "other"]
    record = json.loads((index / "index.json").read_text(encoding="utf-8"))
    assert urllib3.request("GET", f"{url}/other/index").json()["corpus_hash"] == record["corpus_hash"]


def metrics_of(url):
    text = urllib3.request("GET", f"{url}/metrics").data.decode()
    return {name: float(value) for name, value in re.findall(r"^(seekling_\S+) (\S+)$", text, re.MULTILINE)}


class Scripted:
    """Finds the query itself. Notes what it was asked together, and waits for the test to say so."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()
        self.go.set()

    def search(self, queries, top_k):
        self.batches.append((list(queries), top_k))
        assert self.go.wait(FAILS_AFTER_S)
        if "bad" in queries:
            raise ValueError("a passage is damaged")
        return [[Hit(Passage(query, query, "Title", query), 1.0, 0)] for query in queries]


@pytest.fixture
def scripted():
    return Scripted()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def busy(scripted, pool):
    """Serve what searches for "first" until it may go on, and then answers what came meanwhile."""

    @contextlib.contextmanager
    def serving(first, *bodies, num_waiting=0, **settings):
        scripted.go.clear()
        with serve(retriever=scripted, **settings) as url:
            try:
                asked = [pool.submit(post, url, {"query": first})]
                wait_until(lambda: scripted.batches)
                asked += [pool.submit(post, url, body) for body in bodies]
                wait_until(lambda: metrics_of(url)['seekling_search_waiting_queries{index="own"}'] == num_waiting)
                yield url, asked
            finally:
                scripted.go.set()

    return serving


def test_what_comes_during_a_search_is_searched_together_and_equal_queries_once(scripted, busy):
    bodies = [{"queries": ["a", "b"]}, {"queries": ["b", "c", "b"]}, {"query": "first"}]
    with busy("first", *bodies, num_waiting=6) as (_, asked):
        scripted.go.set()
        _, *replies = [each.result() for each in asked]
        texts = [[row[0]["text"] for row in reply["result"]] for _, reply, _ in replies]
        assert texts == [["a", "b"], ["b", "c", "b"], ["first"]]
        assert [(sorted(queries), top_k) for queries, top_k in scripted.batches] == [
            (["first"], 3),
            (["a", "b", "c", "first"], 3),
        ]


def test_an_overload_is_503_with_retry_after_and_never_an_empty_result(scripted, busy):
    limits = {"waiting_queries": 3, "timeout_s": FAILS_AFTER_S}
    with busy("first", {"queries": ["a", "b", "c"]}, num_waiting=3, **limits) as (url, asked):
        status, reply, headers = post(url, {"query": "too much"})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert reply == {"error": "3 queries are waiting already; try again"}
        scripted.go.set()
        assert [each.result()[0] for each in asked] == [200, 200]
        assert ask(url, {"query": "too much"})["result"][0][0]["text"] == "too much"


def test_what_waits_is_bounded_in_bytes_too_and_the_room_is_given_back(scripted, busy, pool):
    limits = {"waiting_bytes": 60_000, "body_bytes": 100_000, "timeout_s": FAILS_AFTER_S}
    with busy("a" * 90_000, **limits) as (url, asked):  # alone: always taken
        status, reply, headers = post(url, {"query": "too much"})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert reply["error"].endswith(" bytes are waiting already; try again")
        scripted.go.set()
        assert asked[0].result()[0] == 200
        for body, expected in [(b"{", 400), (b" " * 100_001, 413), ({"query": "bad"}, 500), ({"query": "a"}, 200)] * 4:
            assert post(url, body)[0] == expected
        together = [pool.submit(post, url, {"query": f"q{number}"}) for number in range(3)]
        assert [each.result()[0] for each in together] == [200] * 3


def test_what_takes_too_long_is_504_and_is_not_searched_any_more(scripted, busy):
    with busy("first", timeout_s=0.3) as (url, asked):
        status, reply, _ = post(url, {"query": "second"})
        assert (status, reply) == (504, {"error": "the search did not end within 0.3 s"})
        assert asked[0].result()[0] == 504
        scripted.go.set()
        assert ask(url, {"query": "third"})["result"][0][0]["text"] == "third"
        assert [queries for queries, _ in scripted.batches] == [["first"], ["third"]]


def test_a_query_that_fails_is_500_and_does_not_fail_those_beside_it(scripted, busy):
    bodies = [{"query": "good"}, {"query": "bad"}, {"queries": ["fine", "bad"]}]
    with busy("first", *bodies, num_waiting=4) as (url, asked):
        scripted.go.set()
        _, *replies = [each.result() for each in asked]
        assert [status for status, _, _ in replies] == [200, 500, 500]
        assert replies[0][1]["result"][0][0]["text"] == "good"
        assert replies[1][1] == {"error": "the search failed: ValueError: a passage is damaged"}
        assert replies[1][2]["Connection"] == "close"  # the next request of a client that kept it would be lost
        assert ask(url, {"query": "fine"})["result"][0]
