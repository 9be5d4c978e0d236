"""Programs per second in the sandbox, against plain subprocesses and smolagents' executor, on the same programs.

    python benchmarks/sandbox.py [--seconds 4] [--smolagents /path/to/a/python/that/has/it] [--json]

A program is fresh when it has a session to itself; a turn is a further program in an open session. Every row says what
isolation it buys: the plain subprocess has none, and smolagents calls its executor no security boundary. Run it on a
machine that is otherwise idle; CPU milliseconds are the steadiest column.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PAGES = {f"p{n:03}": f"Town {n} lies on the river {n % 7}. It was founded in {1000 + 37 * n}." * 4 for n in range(60)}


def search_pages(query: str) -> list[dict[str, object]]:
    """The pages whose text holds most of the query's words."""
    words = query.lower().split()
    scored = sorted(((sum(word in text.lower() for word in words), page) for page, text in PAGES.items()), reverse=True)
    return [{"page_id": page, "title": f"Town {int(page[1:])}", "score": score} for score, page in scored[:10]]


def view_sections(page_id: str) -> list[dict[str, str]]:
    """Two sections a page."""
    return [{"section_id": f"{page_id}:{name}", "title": name} for name in ("lead", "history")]


def read_section(section_id: str) -> str:
    """The text of a section."""
    return PAGES[section_id.split(":")[0]]


FUNCTIONS: dict[str, Callable[..., object]] = {f.__name__: f for f in (search_pages, view_sections, read_section)}
PROGRAMS = [
    "for r in search_pages('river town'):\n    print(r['page_id'], '-', r['title'])",
    "import re\nfor s in view_sections('p004'):\n"
    "    print(re.findall(r'\\b1\\d{3}\\b', read_section(s['section_id']))[:2])",
    "from collections import Counter\nprint(Counter(read_section('p005:lead').lower().split()).most_common(4))",
    "seen = set()\nfor q in ['river', 'town', 'founded 1037']:\n    for r in search_pages(q):\n"
    "        seen.add(r['page_id'])\nprint(len(seen))",
    "for q in ['Town', 'zzz']:\n    page = search_pages(q)[0]\n    print(page['title'], page.get('url', 'no url'))",
    "def show(p):\n    return p['title'] + ': ' + str(len(view_sections(p['page_id'])))\n"
    "print([show(p) for p in search_pages('river')])",
    "import math\nprint(round(math.log(1 + len(read_section('p001:lead'))), 3))\nprint(sum(x * x for x in range(200)))",
    "pages = search_pages('founded in 1370')\nprint(max(pages, key=lambda p: p['score'])['title'])",
]


class Clock:
    """CPU time of this process and of all processes under it that have ended."""

    def __init__(self) -> None:
        self.started_s = self.now_s()

    @staticmethod
    def now_s() -> float:
        """Seconds on this clock."""
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def spent_s(self) -> float:
        """Seconds since it was made."""
        return self.now_s() - self.started_s


def measure(run: Callable[[str], None], seconds: float, workers: int) -> tuple[float, float, float, int]:
    """Run programs for so long with so many workers: programs/s, p50 ms, p99 ms, number."""
    times_ms: list[float] = []
    lock = threading.Lock()
    deadline_s = time.monotonic() + seconds

    def work(number: int) -> None:
        mine = []
        while time.monotonic() < deadline_s:
            started_s = time.monotonic()
            run(PROGRAMS[(number + len(mine)) % len(PROGRAMS)])
            mine.append((time.monotonic() - started_s) * 1000)
        with lock:
            times_ms.extend(mine)

    started_s = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    wall_s = time.monotonic() - started_s
    times_ms.sort()
    at = lambda share: times_ms[min(len(times_ms) - 1, int(share * len(times_ms)))]  # noqa: E731
    return len(times_ms) / wall_s, at(0.5), at(0.99), len(times_ms)


def row(
    name: str, measured: tuple[float, float, float, int], cpu_ms: float | None, memory_mb: float | None = None
) -> dict[str, object]:
    """One line of the table."""
    rate, p50, p99, count = measured
    return {
        "row": name,
        "programs_per_s": rate,
        "p50_ms": p50,
        "p99_ms": p99,
        "cpu_ms": cpu_ms,
        "memory_mb": memory_mb,
        "num": count,
    }


def sandbox_rows(seconds: float) -> list[dict[str, object]]:
    """Fresh sessions and further turns of our sandbox."""
    from seekling.config import SandboxConfig
    from seekling.env.sandbox import Sandbox

    config = SandboxConfig()
    rows = []
    for workers in (1, 2):
        clock = Clock()
        with Sandbox(config) as sandbox:
            layers = "+".join(sandbox.layers)

            def fresh(program: str, sandbox=sandbox) -> None:  # type: ignore[no-untyped-def]
                session = sandbox.open(FUNCTIONS)
                assert session.run(program).outcome == "ok"
                session.close()

            measured = measure(fresh, seconds, workers)
        # The fork server's end is in the clock, and with it all of its children; so is its start, some 0.1 s.
        cpu_ms = clock.spent_s() / measured[3] * 1000
        rows.append(row(f"fork server ({layers}), fresh, {workers} worker(s)", measured, cpu_ms))
    with Sandbox(config) as sandbox:
        sessions = [sandbox.open(FUNCTIONS) for _ in range(100)]
        for session in sessions:
            session.run(PROGRAMS[0])
        memory_mb = pss_mb(os.getpid()) / len(sessions)
        session = sessions[0]
        measured = measure(lambda program: _turn(session, program), seconds, 1)
    rows.append(row("fork server, further turns in one of 100 open sessions", measured, None, memory_mb))
    return rows


def _turn(session, program: str) -> None:  # type: ignore[no-untyped-def]
    result = session.run(program)
    assert result.outcome == "ok", result


def pss_mb(root: int) -> float:
    """Memory of all processes below one, shared pages divided among those that share them."""
    total_kb, family = 0, [root]
    for pid in family:
        try:
            family += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            if pid != root:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            return float("nan")  # not root: these processes may not be looked at
    return total_kb / 1024


def subprocess_rows(seconds: float) -> list[dict[str, object]]:
    """A new interpreter for each program, its functions pasted in front; no isolation whatever."""
    source = Path(__file__).read_text()
    functions = source[source.index("PAGES = {") : source.index("FUNCTIONS: ")]

    def run(program: str) -> None:
        done = subprocess.run(
            [sys.executable, "-I", "-c", functions + program], capture_output=True, timeout=20, check=False
        )
        assert done.returncode == 0, done.stderr

    rows = []
    for workers in (1, 2):
        clock = Clock()
        measured = measure(run, seconds, workers)
        rows.append(
            row(f"plain subprocess, fresh, {workers} worker(s)", measured, clock.spent_s() / measured[3] * 1000)
        )
    return rows


def smolagents_rows(seconds: float) -> list[dict[str, object]]:
    """The executor of smolagents, in this process as it is meant to be used."""
    from smolagents.local_python_executor import LocalPythonExecutor

    def run(program: str) -> None:
        executor = LocalPythonExecutor(["re", "collections", "math"])
        executor.send_tools(FUNCTIONS)
        executor(program)

    for program in PROGRAMS:
        run(program)
    rows = []
    for workers in (1, 2):
        clock = Clock()
        measured = measure(run, seconds, workers)
        rows.append(
            row(f"smolagents executor, fresh, {workers} worker(s)", measured, clock.spent_s() / measured[3] * 1000)
        )
    return rows


def main() -> None:
    """Measure what is there and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="per row")
    parser.add_argument("--smolagents", default="", help="a Python that has smolagents; its row is left out otherwise")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only-smolagents", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only_smolagents:
        print(json.dumps(smolagents_rows(given.seconds)))
        return
    from seekling.cores import cores_here

    load = os.getloadavg()[0]
    rows = sandbox_rows(given.seconds)
    rows += subprocess_rows(given.seconds)
    if given.smolagents:
        words = [given.smolagents, __file__, "--only-smolagents", "--seconds", str(given.seconds)]
        rows += json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    else:
        print("smolagents is left out; name a Python that has it with --smolagents", file=sys.stderr)
    if given.json:
        print(json.dumps({"load_before": load, "cores": cores_here(), "rows": rows}, indent=2))
        return
    base = next(r for r in rows if str(r["row"]).startswith("plain subprocess, fresh, 2"))
    print(f"{cores_here():g} cores, load {load:.1f} before, Python {sys.version.split()[0]}")
    print(f"{'':72} {'prog/s':>7} {'ratio':>6} {'p50 ms':>7} {'p99 ms':>7} {'CPU ms':>7} {'MB':>6}")
    for r in rows:
        rate = float(str(r["programs_per_s"]))
        numbers = [r["p50_ms"], r["p99_ms"], r["cpu_ms"], r["memory_mb"]]
        cells = [f"{'':>7}" if n is None else f"{float(str(n)):7.2f}" for n in numbers]
        print(f"{r['row']:72} {rate:7.0f} {rate / float(str(base['programs_per_s'])):5.1f}x {' '.join(cells)}")


if __name__ == "__main__":
    main()
