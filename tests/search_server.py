"""A real search server on localhost, in a thread; and a real proxy before it that breaks some of its answers."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer

import urllib3

from seekling.client import Patience
from seekling.config import IndexConfig, RetrievalConfig, SearchServerConfig
from seekling.retrieval.index_record import Counts, IndexRecord
from seekling.retrieval.interface import Retriever
from seekling.retrieval.remote import RemoteIndex, open_remote
from seekling.serve.metrics import SearchMetrics
from seekling.serve.search_app import ServedIndex, open_indexes, search_app
from seekling.types import Document
from tests.app_server import JsonHandler, running, served

HASTY = Patience(timeout_s=60.0, num_tries=4, first_pause_s=0.01, max_pause_s=0.05)
ONE_TRY = Patience(timeout_s=4.0, num_tries=1)


def open_client(url: str, patience: Patience = HASTY) -> RemoteIndex:
    """A client of the server at an address."""
    return open_remote(RetrievalConfig(url=url), patience)


class NoDocuments:
    """Has none."""

    def find(self, document_id: str) -> Document | None:
        return None


@contextlib.contextmanager
def serve(*specs: str, retriever: Retriever | None = None, **settings: float) -> Iterator[str]:
    """Serve index folders, or one retriever of the test's own under the name `own`, until the test is over."""
    config = SearchServerConfig.model_validate({"port": 0, **settings})
    metrics = SearchMetrics()
    if retriever is None:
        indexes = open_indexes(specs, config, metrics)
    else:
        record = IndexRecord(settings=IndexConfig(), counts=Counts(documents=9, passages=9), corpus_hash="none")
        indexes = [ServedIndex("own", retriever, NoDocuments(), record, config=config, metrics=metrics)]
    with served(search_app(indexes, config, metrics)) as url:
        yield url


FAULTS = ("reset", "silence", "error", "busy", "garbage", "cut", "too few", "no list", "delay")


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to a server, and breaks a share of the answers in every way that networks and servers know.

    Args:
        target: address of the server.
        share: of the requests that meet a fault.
        faults: kinds of faults, each as often as the others.
        delay_s: of the kind of fault that is only late.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, target: str, share: float, *, faults: Sequence[str] = FAULTS, delay_s: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target, self.share, self.delay_s, self.faults = target, share, delay_s, faults
        self.injected: Counter[str] = Counter()
        self.num_requests = 0
        self.pool = urllib3.PoolManager(maxsize=64, retries=False)
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self.server_port}"

    def draw(self) -> str:
        """The fault of the next request, or nothing."""
        with self._lock:
            self.num_requests += 1
            if self._random.random() >= self.share:
                return ""
            fault = self._random.choice(self.faults)
            self.injected[fault] += 1
            return fault

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up waiting is part of the game."""


class _Passing(JsonHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyProxy

    def do_POST(self) -> None:
        body = self.body()
        fault = self.server.draw()
        if fault in ("reset", "silence"):
            self._hang_up(hard=fault == "reset")
            return
        if fault == "delay":
            time.sleep(self.server.delay_s)
        reply = self.server.pool.request("POST", self.server.target + self.path, body=body)
        status, raw = reply.status, reply.data
        replaced = {
            "error": (500, b"Internal Server Error"),
            "busy": (503, b'{"error": "too busy"}'),
            "garbage": (200, b"\x00\xff<html>"),
            "too few": (200, b'{"result": []}'),
            "no list": (200, b'{"result": null}'),
        }
        status, raw = replaced.get(fault, (status, raw))
        self.answer(status, raw, {"Content-Length": str(len(raw) + 100 * (fault == "cut"))})
        if fault == "cut":
            self._hang_up(hard=False)

    def _hang_up(self, *, hard: bool) -> None:
        if hard:  # closing sends a reset instead of a farewell
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close() if hard else self.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def faulty_proxy(target: str, share: float, **settings: object) -> Iterator[FaultyProxy]:
    """A proxy until the test is over."""
    with running(proxy := FaultyProxy(target, share, **settings)):
        yield proxy
    proxy.pool.clear()


def in_threads(num_threads: int, queries: Sequence[str], ask: Callable[[str], object]) -> list[object]:
    """What `ask` returned for each query, asked by several threads, in the order of the queries."""
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(ask, queries))
