"""How fast a report of ten thousand episodes opens and scrolls, in headless Chromium.

python benchmarks/report.py [--episodes 10000] [--keep FOLDER]

Makes a run folder of varied episodes (every one has texts of its own), writes the report, and measures in the browser:
from navigation until the first rows are drawn; frames while the list scrolls from end to end; opening the next episode;
a text search through everything. Run it on a quiet machine; what else runs there counts. Needs Chromium, and the tests'
folder beside this one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from seekling.report import write_report
from seekling.types import EpisodeRecord
from tests.report.browser import Browser, find_browser
from tests.report.run_folder import make_fact, rl_records, write_records, write_run

SCROLL = """
new Promise((resolve) => {
  const list = document.querySelector("#list");
  const frames = [];
  const end = list.scrollHeight - list.clientHeight;
  const began = performance.now();
  let before = began;
  const step = (now) => {
    frames.push(now - before);
    before = now;
    const share = (now - began) / 3000;
    list.scrollTop = Math.min(1, share) * end;
    if (share < 1) requestAnimationFrame(step);
    else {
      frames.sort((a, b) => a - b);
      const rows = document.querySelectorAll(".row").length;
      const at = (share) => frames[Math.floor(frames.length * share)];
      resolve(JSON.stringify({ median: at(0.5), p95: at(0.95), most: frames.at(-1), rows }));
    }
  };
  requestAnimationFrame(step);
})
"""


def make_run(folder: Path, num_episodes: int) -> int:
    """Write a run of so many RL episodes, each with words of its own, and say how many bytes its texts have."""
    rng = random.Random(0)
    write_run(folder, questions=100, steps=12)
    facts = [make_fact(number, rng) for number in range(num_episodes // 16)]
    records: list[EpisodeRecord] = []
    for number, record in enumerate(itertools.islice(_endless(facts, rng), num_episodes)):
        turns = tuple(
            replace(turn, observation=turn.observation and f"{turn.observation}\n{_filler(rng)} ({number})")
            for turn in record.episode.turns
        )
        records.append(replace(record, episode=replace(record.episode, turns=turns)))
    write_records(folder, "rl", records)
    return (folder / "episodes" / "rl.jsonl").stat().st_size


def _endless(facts: list, rng: random.Random):
    while True:
        yield from rl_records(facts, 100, rng)


def _filler(rng: random.Random) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(60))


def measure(page: Path) -> dict[str, float]:
    """Seconds and milliseconds of what a reader does."""
    with Browser() as browser:
        browser.open(page, "#/0/overview")  # so that the file is in memory and the browser has started
        times: dict[str, float] = {}
        for name, address in (("overview", "#/0/overview"), ("episodes", "#/0/episodes")):
            browser.open(page, address)
            entry = "JSON.stringify(performance.getEntriesByType('navigation')[0])"
            times[f"open {name}, s"] = json.loads(browser.run(entry))["domContentLoadedEventEnd"] / 1000
        browser.run("document.querySelector('[data-filter=stage]').value = ''")
        browser.run("document.querySelector('[data-filter=stage]').dispatchEvent(new Event('change'))")
        scrolled = json.loads(browser.run(SCROLL))
        times |= {f"scroll, {name} frame, ms": scrolled[name] for name in ("median", "p95", "most")}
        times["rows in the page"] = scrolled["rows"]
        browser.run("document.querySelector('#list').focus()")
        started = time.perf_counter()
        browser.press(*["k"] * 20)
        times["next episode, ms"] = (time.perf_counter() - started) / 20 * 1000
        started = time.perf_counter()
        browser.run("words.value = 'nothing says this'; words.dispatchEvent(new Event('input'))")
        browser.wait("tally.innerText.startsWith('0 of') && !tally.innerText.includes('…')")
        times["search through everything, s"] = time.perf_counter() - started
        assert browser.complaints == [], browser.complaints
    return times


def main() -> None:
    """Make, write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="folder in which the run and the page stay")
    arguments = parser.parse_args()
    if find_browser() is None:
        print("no Chromium on this machine (on Debian: apt-get install chromium); nothing measured")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        size = make_run(folder / "run", arguments.episodes)
        started = time.perf_counter()
        write_report([folder / "run"], folder / "report.html")
        print(f"{platform.machine()}, {arguments.episodes:,} RL episodes, {size / 1e6:.0f} MB of records")
        print(
            f"written in {time.perf_counter() - started:.1f} s, {(folder / 'report.html').stat().st_size / 1e6:.0f} MB"
        )
        for name, value in measure(folder / "report.html").items():
            print(f"{name:32} {value:.3g}")


if __name__ == "__main__":
    main()
