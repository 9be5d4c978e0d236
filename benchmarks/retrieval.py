"""Retrieval side by side with what people use instead. Each part runs both sides in turns and prints ratios last.

    python benchmarks/retrieval.py server INDEX QUESTIONS [--copies N] [--clients 1 8 32] [--repeats 3]
    python benchmarks/retrieval.py bm25 INDEX QUESTIONS [--repeats 5]
    python benchmarks/retrieval.py dense INDEX QUESTIONS [--repeats 3]
    python benchmarks/retrieval.py faults INDEX QUESTIONS [--requests 10000]

INDEX is a folder that `seekling index` made, dense for `server` and `dense`, bm25 for `bm25` and `faults`; QUESTIONS is
a question file such as an almanac's test.jsonl. Both sides of a part get the same passages, vectors, encoder, queries
and threads. Run it with OMP_NUM_THREADS=1 where other work shares the machine.

server: `seekling serve --search-only` against Search-R1's server as `reference_search_server.py` re-creates it,
requests of one query each, at several numbers of clients. `--copies` makes the index larger: each copy of a vector is
the vector with a little noise of its own, as neighbours in a large corpus are.
bm25: our index in-process against bm25s's own `tokenize` and `retrieve` over the same texts.
dense: our exact index in-process against flat FAISS and, where it is installed, Chroma; all with our encoder.
faults: requests through a proxy that breaks 1 % of the answers; each must end right, or as a typed failure.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seekling.config import SearchServerConfig
from seekling.corpus.questions import read_questions
from seekling.retrieval.index import IndexRetriever, open_index
from seekling.retrieval.index_record import read_record
from seekling.retrieval.store import DocumentStore, PassageStore
from seekling.retrieval.terms import TITLE_WEIGHT
from seekling.types import Passage

ROOT = Path(__file__).parent.parent
TOP_K = 3
_START_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a number of clients saw."""

    per_second: float
    """Right answers per second."""
    p50_ms: float
    p95_ms: float
    num_failed: int


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "serve"])
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path, nargs="?")
    parser.add_argument("--copies", type=int, default=1, help="server: make the index so many times larger")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=0, help="per measurement; 0 takes the part's own number")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part == "serve":
        serve_ours(arguments.index, arguments.work, arguments.port)
        return
    record = read_record(arguments.index)
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    what = f"{record.settings.kind} index of {record.counts.passages} passages"
    print(f"{what}, {threads} threads, median of {arguments.repeats}")
    queries = list(dict.fromkeys(question.question for question in read_questions(arguments.questions)))
    PARTS[arguments.part](arguments, queries)


# server


def compare_servers(arguments: argparse.Namespace, queries: Sequence[str]) -> None:
    """Throughput and latency of both servers."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        num_vectors = prepare(arguments.index, work, arguments.copies)
        print(f"{num_vectors} vectors; {len(queries)} different queries, one per request, top {TOP_K}")
        here = [sys.executable, str(Path(__file__).resolve()), "serve", str(arguments.index), "--work", str(work)]
        other = [sys.executable, str(ROOT / "benchmarks" / "reference_search_server.py"), str(work)]
        with contextlib.ExitStack() as stack:
            sides = {
                "ours": stack.enter_context(running(here)),
                "reference": stack.enter_context(running(other)),
            }
            agree = sum(ids_at(sides["ours"], query) == ids_at(sides["reference"], query) for query in queries[:100])
            print(f"both find the same passages for {agree} of {len(queries[:100])} queries")
            ratios = [
                line for num_clients in arguments.clients for line in at_clients(sides, queries, num_clients, arguments)
            ]
    print("\n".join(ratios))


def at_clients(
    sides: dict[str, int], queries: Sequence[str], num_clients: int, arguments: argparse.Namespace
) -> list[str]:
    """Measure every side with so many clients, in turns; returns the lines with the ratios."""
    num_requests = arguments.requests or (200 if num_clients == 1 else 640)
    asked = list(itertools.islice(itertools.cycle(queries), num_requests))
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    for port in sides.values():  # caches of processors, and connections
        load_of(port, asked[: 4 * num_clients], num_clients)
    for _ in range(arguments.repeats):
        for name, port in sides.items():
            loads[name].append(load_of(port, asked, num_clients))
    rate = {name: statistics.median(each.per_second for each in of_side) for name, of_side in loads.items()}
    for name, of_side in loads.items():
        p50, p95 = (statistics.median(times) for times in zip(*((e.p50_ms, e.p95_ms) for e in of_side), strict=True))
        failed = sum(each.num_failed for each in of_side)
        print(
            f"{num_clients:>3} clients, {name:<13} {rate[name]:8.1f} queries/s, p50 {p50:7.1f} ms, p95 {p95:7.1f} ms, "
            f"{failed} failed of {num_requests * arguments.repeats}"
        )
    return [
        f"throughput at {num_clients} clients, {name} over reference: {rate[name] / rate['reference']:.2f}"
        for name in rate
        if name != "reference"
    ]


def prepare(index: Path, work: Path, copies: int) -> int:
    """Write what both servers read: vectors.npy, passages.jsonl in Search-R1's form, settings.json."""
    from seekling.models import resolve_model

    record = read_record(index)
    assert record.encoder is not None, "the server part needs a dense index"
    vectors_ND = np.load(index / "vectors.npy")
    dice = np.random.default_rng(0)
    parts = [vectors_ND]
    for _ in range(copies - 1):
        noisy_ND = vectors_ND + dice.normal(0, 0.5 / vectors_ND.shape[1] ** 0.5, vectors_ND.shape).astype(np.float32)
        parts.append(noisy_ND / np.linalg.norm(noisy_ND, axis=1, keepdims=True))
    np.save(work / "vectors.npy", np.concatenate(parts))
    with (work / "passages.jsonl").open("w", encoding="utf-8") as file:
        for passage in PassageStore(index):
            row = {"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'}
            file.write(json.dumps(row) + "\n")
    settings = {"encoder": str(resolve_model(record.encoder.spec)), "query_prefix": record.encoder.query_prefix}
    (work / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return sum(len(part) for part in parts)


class RepeatedPassages:
    """The passages of an index, over and over."""

    def __init__(self, passages: PassageStore) -> None:
        self._passages = passages

    def __getitem__(self, position: int) -> Passage:
        return self._passages[position % len(self._passages)]


def serve_ours(index: Path, work: Path, port: int) -> None:
    """`seekling serve --search-only` over an index whose vectors are those of the work folder."""
    from seekling.retrieval.dense import DenseRanker
    from seekling.retrieval.encoders import load_encoder
    from seekling.retrieval.vectors import ExactVectors
    from seekling.serve.metrics import SearchMetrics
    from seekling.serve.running import run_app
    from seekling.serve.search_app import ServedIndex, search_app

    record = read_record(index)
    assert record.encoder is not None
    vectors_ND = np.asarray(np.load(work / "vectors.npy", mmap_mode="r"))
    ranker = DenseRanker(load_encoder(record.encoder), ExactVectors(vectors_ND))
    retriever = IndexRetriever(ranker, RepeatedPassages(PassageStore(index)))  # type: ignore[arg-type]
    config, metrics = SearchServerConfig(port=port), SearchMetrics()
    served = ServedIndex("index", retriever, DocumentStore(index), record, config=config, metrics=metrics)
    run_app(search_app([served], config, metrics), host=config.host, port=port, on_start=lambda address: None)


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[int]:
    """A server process until the end of the block; gives its port when it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The second as the command line sets it; both sides have it.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OPENBLAS_THREAD_TIMEOUT": "4"}
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL, env=environment)
    try:
        end = time.monotonic() + _START_S
        while True:
            try:
                ids_at(port, "is it there")
                break
            except (OSError, http.client.HTTPException):
                if time.monotonic() > end or process.poll() is not None:
                    raise SystemExit(f"the server did not start: {' '.join(command)}") from None
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


def ids_at(port: int, query: str) -> list[str]:
    """Ids of the passages that a server finds."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    row = ask(connection, query)
    connection.close()
    return [each["document"]["id"] for each in row or []]


def ask(connection: http.client.HTTPConnection, query: str) -> list[dict[str, dict[str, str]]] | None:
    """The passages for one query; None when the server fails."""
    body = json.dumps({"queries": [query], "topk": TOP_K, "return_scores": True})
    connection.request("POST", "/retrieve", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    raw = response.read()
    return json.loads(raw)["result"][0] if response.status == 200 else None


def load_of(port: int, queries: Sequence[str], num_clients: int) -> Load:
    """Let clients ask the queries, each one after another, on kept connections."""
    places, lock = iter(range(len(queries))), threading.Lock()
    times: list[float] = []
    num_failed = 0

    def work() -> None:
        nonlocal num_failed
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                connection.close()
                return
            started = time.perf_counter()
            row = ask(connection, queries[place])
            took = time.perf_counter() - started
            with lock:
                times.append(took)
                num_failed += row is None or len(row) != TOP_K

    threads = [threading.Thread(target=work) for _ in range(num_clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    p50, p95 = np.percentile(times, [50, 95])
    return Load((len(times) - num_failed) / seconds, 1e3 * float(p50), 1e3 * float(p95), num_failed)


# bm25, dense


def in_turns(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each side; they take turns, so that what else the machine does falls on all."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, work in sides.items():
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def compare_bm25(arguments: argparse.Namespace, queries: Sequence[str]) -> None:
    """Text of a query to text of the passages: ours against bm25s's own two calls."""
    import bm25s
    import Stemmer

    ours = open_index(arguments.index)
    passages = list(PassageStore(arguments.index))
    texts = [f"{passage.title}\n" * TITLE_WEIGHT + passage.text for passage in passages]
    stemmer = Stemmer.Stemmer("english")
    asked = list(queries[: arguments.requests or 500])
    ratios = []
    for backend in ("numpy", "numba"):
        raw = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend=backend)
        raw.index(bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

        def search_raw(batch: list[str], raw: bm25s.BM25 = raw) -> list[list[str]]:
            tokens = bm25s.tokenize(batch, stopwords="en", stemmer=stemmer, show_progress=False)
            # Given the texts as `corpus`, retrieve would turn the whole list into an array at every call.
            places, _ = raw.retrieve(tokens, k=TOP_K, show_progress=False)
            return [[texts[place] for place in row] for row in places]

        search_raw(asked[:2])
        ours.search(asked[:2], TOP_K)
        for size in (1, len(asked)):
            batches = [asked[start : start + size] for start in range(0, len(asked), size)]
            seconds = in_turns(
                {
                    "ours": lambda batches=batches: [ours.search(batch, TOP_K) for batch in batches],
                    "bm25s": lambda batches=batches: [search_raw(batch) for batch in batches],
                },
                arguments.repeats,
            )
            each = {name: 1e3 * took / len(asked) for name, took in seconds.items()}
            print(f"{size} at once: ours {each['ours']:.3f} ms a query, bm25s ({backend}) {each['bm25s']:.3f} ms")
            ratio = seconds["ours"] / seconds["bm25s"]
            ratios.append(f"time of BM25, {size} at once, ours over bm25s ({backend}): {ratio:.2f}")
    print("\n".join(ratios))


def compare_dense(arguments: argparse.Namespace, queries: Sequence[str]) -> None:
    """Text of a query to text of the passages: ours against flat FAISS and Chroma, all behind our encoder."""
    import faiss

    from seekling.retrieval.encoders import load_encoder

    record = read_record(arguments.index)
    assert record.encoder is not None
    ours, encoder = open_index(arguments.index), load_encoder(record.encoder)
    vectors_ND = np.load(arguments.index / "vectors.npy")
    texts = [passage.text for passage in PassageStore(arguments.index)]
    flat = faiss.IndexFlatIP(vectors_ND.shape[1])
    flat.add(vectors_ND)

    def search_flat(batch: Sequence[str]) -> list[list[str]]:
        _, places = flat.search(encoder.queries(batch), TOP_K)
        return [[texts[place] for place in row] for row in places]

    sides: dict[str, Callable[[Sequence[str]], object]] = {
        "encoder": encoder.queries,
        "ours": lambda batch: ours.search(batch, TOP_K),
        "flat FAISS": search_flat,
    }
    search_chroma = open_chroma(vectors_ND, texts, encoder.queries)
    if search_chroma is not None:
        sides["Chroma"] = search_chroma
    asked = list(queries[: arguments.requests or 128])
    ratios = []
    for size in (1, 32):
        batches = [asked[start : start + size] for start in range(0, len(asked), size)]
        work = {name: lambda side=side: [side(batch) for batch in batches] for name, side in sides.items()}  # noqa: B023
        for run in work.values():
            run()
        seconds = in_turns(work, arguments.repeats)
        for name, took in seconds.items():
            print(f"{size} at once: {name:<10} {1e3 * took / len(asked):7.2f} ms a query, {len(asked) / took:7.1f}/s")
        others = [name for name in seconds if name not in ("ours", "encoder")]
        ratios += [f"time, {size} at once, ours over {name}: {seconds['ours'] / seconds[name]:.2f}" for name in others]
    print("\n".join(ratios))


def open_chroma(
    vectors_ND: np.ndarray, texts: Sequence[str], encode: Callable[[Sequence[str]], np.ndarray]
) -> Callable[[Sequence[str]], object] | None:
    """Search in an embedded Chroma collection of the same vectors; None where Chroma is not installed."""
    try:
        import chromadb
    except ImportError:
        print("Chroma is not installed and left out")
        return None
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("passages", metadata={"hnsw:space": "ip"}, embedding_function=None)
    for start in range(0, len(texts), 5000):
        part = slice(start, start + 5000)
        ids = [str(place) for place in range(start, min(start + 5000, len(texts)))]
        collection.add(ids=ids, embeddings=vectors_ND[part], documents=list(texts[part]))
    return lambda batch: collection.query(query_embeddings=encode(batch), n_results=TOP_K)["documents"]


# faults


def count_faults(arguments: argparse.Namespace, queries: Sequence[str]) -> None:
    """Many requests through a proxy that breaks 1 % of the answers."""
    sys.path.insert(0, str(ROOT))
    from seekling.client import Client, Patience
    from seekling.errors import ServerError
    from seekling.retrieval.remote import RemoteIndex
    from tests.search_server import faulty_proxy, in_threads, serve

    asked = list(itertools.islice(itertools.cycle(queries), arguments.requests or 10_000))
    local = open_index(arguments.index)
    expected = dict(zip(queries, local.search(queries, TOP_K), strict=True))
    lines = []
    for num_tries in (1, 6):
        with serve(str(arguments.index)) as url, faulty_proxy(url, 0.01, delay_s=6.0) as proxy:
            patience = Patience(timeout_s=5.0, num_tries=num_tries, first_pause_s=0.01)
            client = RemoteIndex(Client(proxy.url, patience))

            def outcome(query: str, client: RemoteIndex = client) -> str:
                try:
                    return "right" if client.search([query], TOP_K)[0] == expected[query] else "WRONG"
                except ServerError:
                    return "typed failure"

            started = time.perf_counter()
            outcomes = in_threads(16, asked, outcome)
            seconds = time.perf_counter() - started
            faults = ", ".join(f"{count} {name}" for name, count in sorted(proxy.injected.items()))
            print(f"{num_tries} tries: {seconds:.1f} s; faults: {faults}")
            counts = {name: outcomes.count(name) for name in ("right", "typed failure", "WRONG")}
            lines.append(
                f"{len(asked)} requests, {num_tries} tries, {sum(proxy.injected.values())} faults: "
                + ", ".join(f"{count} {name}" for name, count in counts.items())
            )
    print("\n".join(lines))


PARTS: dict[str, Callable[[argparse.Namespace, Sequence[str]], None]] = {
    "server": compare_servers,
    "bm25": compare_bm25,
    "dense": compare_dense,
    "faults": count_faults,
}


if __name__ == "__main__":
    main()
