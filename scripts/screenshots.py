"""Pictures of the viewer for docs/, taken with headless Chromium.

python scripts/screenshots.py [RUN] [--out docs/images]

Those in docs/ show the run of `make demo`, which is also the default. Pictures that a run has nothing to show for (an
older one has no probabilities of tokens) are left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from seekling.report import read_run, write_report
from seekling.types import EpisodeRecord
from tests.report.browser import Browser, find_browser


@dataclass(frozen=True)
class Picture:
    """One file, and how to get the page to show what it shows."""

    name: str
    address: str
    keys: str = ""
    is_dark: bool = False
    is_phone: bool = False
    size: tuple[int, int] = (1000, 640)


def pictures(records: list[EpisodeRecord]) -> list[Picture]:
    """The pictures that a run can give."""
    wanted = [
        Picture("viewer-overview.png", "#/0/overview"),
        Picture("viewer-analysis.png", "#/0/analysis", is_dark=True),
        Picture("viewer-phone.png", "#/0/episodes", keys="\n", is_phone=True, size=(390, 780)),
    ]
    evaluated = [i for i, r in enumerate(records) if r.stage == "eval-rl" and r.scores.get("em") == 1]
    several = next((i for i in evaluated if len(records[i].episode.turns) > 2), evaluated[0] if evaluated else None)
    if several is not None:
        wanted.append(Picture("viewer-side-by-side.png", f"#/0/episodes/{several}", keys="c", size=(1280, 720)))
    told = [i for i, r in enumerate(records) if r.advantage and any(turn.action_logprobs for turn in r.episode.turns)]
    if told:
        wanted.append(Picture("viewer-tokens.png", f"#/0/episodes/{told[0]}", keys="t", size=(1000, 960)))
    return wanted


def main() -> None:
    """Write the report of a run somewhere, and take its pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/demo"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    if find_browser() is None:
        sys.exit("no Chromium on this machine (on Debian: apt-get install chromium)")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "report.html"
        write_report([arguments.run], page)
        for picture in pictures(read_run(arguments.run).episodes):
            width, height = picture.size
            with Browser(width=width, height=height, dark=picture.is_dark, is_phone=picture.is_phone) as browser:
                browser.open(page, picture.address)
                for key in picture.keys:
                    browser.press("Enter" if key == "\n" else key)
                browser.screenshot(arguments.out / picture.name)
            print(f"{arguments.out / picture.name}: {(arguments.out / picture.name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
