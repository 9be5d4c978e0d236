"""Speed and memory of building a BM25 index, at several sizes, each in a process of its own.

    python benchmarks/index_build.py [--passages 13000 130000 1300000] [--work FOLDER]

The corpus is an almanac. Pages per second are given by the processor's time, which a busy machine does not change, and
by the clock. Memory is the peak of what the process itself allocated (anonymous pages), and the peak of everything it
had mapped, which counts the index's own files as far as the machine had room to keep them. Growth is the ratio of two
neighbouring sizes over the ratio of their passages: 1.00 is linear, below 1 is better.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from seekling.config import IndexConfig
from seekling.corpus.almanac.census import make_world
from seekling.corpus.almanac.generator import write_corpus
from seekling.retrieval.index import build_index

PASSAGES_PER_PAGE = 5.54
_SAMPLE_S = 0.05


def main() -> None:
    """Build at each size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", nargs="+", type=int, default=[13_000, 130_000, 1_300_000])
    parser.add_argument("--work", type=Path, help="keep the corpora here and use those that are there")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(build_and_measure(*arguments.child)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        measured = []
        for passages in arguments.passages:
            corpus = almanac_of(round(passages / PASSAGES_PER_PAGE), work)
            command = [sys.executable, __file__, "--child", str(corpus), str(Path(scratch) / f"index-{passages}")]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            measured.append(json.loads(done.stdout))
            print_line(measured)


def almanac_of(pages: int, work: Path) -> Path:
    """Write the pages of an almanac, unless they are there."""
    path = work / f"almanac-{pages}.jsonl"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            for page in write_corpus(make_world(pages, 0)):
                row = asdict(page)
                del row["metadata"]
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        unfinished.rename(path)
    return path


def build_and_measure(corpus: Path, out: Path) -> dict[str, float]:
    """Build one index in this process.

    Returns:
        pages, passages, clock_s, processor_s, own_bytes and mapped_bytes at their peak, index_bytes.
    """
    own_bytes = [0]
    is_done = threading.Event()

    def sample() -> None:
        while not is_done.wait(_SAMPLE_S):
            own_bytes[0] = max(own_bytes[0], anonymous_bytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    clock, processor = time.perf_counter(), time.process_time()
    record = build_index(corpus, out, IndexConfig())
    clock_s, processor_s = time.perf_counter() - clock, time.process_time() - processor
    is_done.set()
    sampler.join()
    return {
        "pages": record.counts.documents,
        "passages": record.counts.passages,
        "clock_s": clock_s,
        "processor_s": processor_s,
        "own_bytes": own_bytes[0],
        "mapped_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "index_bytes": sum(file.size for file in record.files.values()),
    }


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def print_line(measured: list[dict[str, float]]) -> None:
    """One size; from the second on with its growth over the one before."""
    now = measured[-1]
    line = (
        f"{now['passages']:>11,.0f} passages of {now['pages']:>9,.0f} pages  "
        f"{now['pages'] / now['processor_s']:>6,.0f} pages/s, {now['passages'] / now['processor_s']:>7,.0f} passages/s "
        f"of processor time ({now['processor_s']:,.1f} s; {now['clock_s']:,.1f} s by the clock)  "
        f"own memory {now['own_bytes'] / 2**20:,.0f} MiB, with mapped files {now['mapped_bytes'] / 2**20:,.0f} MiB  "
        f"index {now['index_bytes'] / 2**20:,.0f} MiB"
    )
    if len(measured) > 1:
        before = measured[-2]
        sizes = now["passages"] / before["passages"]
        grown = {name: now[name] / before[name] / sizes for name in ("processor_s", "own_bytes")}
        line += f"  growth: time {grown['processor_s']:.2f}, memory {grown['own_bytes']:.2f}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
