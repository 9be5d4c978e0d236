"""Run folders -> one self-contained HTML file.

Everything in a run folder is untrusted: a model wrote most of it. It reaches the page only as JSON inside data blocks,
with every character escaped that could end a block, and the script puts it on screen as text nodes. The content policy
allows exactly the script and the style sheet that are inlined here, by hash, and no connection to anywhere; Trusted
Types make the browser refuse HTML from strings.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from seekling import __version__
from seekling.config import Recipe
from seekling.errors import DataError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.health import describe_health
from seekling.evaluate.worsening import describe_worsening
from seekling.files import write_atomically
from seekling.report.curves import charts_of
from seekling.report.formats import to_json
from seekling.report.json_lines import encode
from seekling.report.overview import course_of, headline_of, panels, seconds_of
from seekling.report.packing import PackedEpisodes, Packer
from seekling.report.read import RunFolder, read_run
from seekling.report.results import Policy, policies_of
from seekling.report.tables import changes_of, tables_of
from seekling.types import Json

_STYLES = ("style.css", "analysis.css", "episodes.css")
_SCRIPTS = (
    "dom", "data", "charts", "overview", "table", "timing", "analysis", "evidence", "tokens", "conversation",
    "explorer", "detail", "recipe", "app",
)  # fmt: skip
_TABLES = ("results", "sources", "costs", "samples", "kinds", "confidence", "figures")
_SHARED_TABLES = ("results", "samples", "gains")
"""Of all runs together."""
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def write_report(runs: Sequence[Path], out: Path) -> list[str]:
    """Write run folders as one HTML file, atomically; the page offers them in this order.

    Returns:
        What was missing or damaged, one sentence each, with the run's name in front. The page says the same.

    Raises:
        DataError: no run is given, or a path is not a run folder.
    """
    if not runs:
        raise DataError("a report needs at least one run folder, as `seekling train` writes it")
    folders = [read_run(path) for path in runs]
    blocks = blocks_of(folders, [Packer().pack(folder.files) for folder in folders])
    write_atomically(out, render(blocks)[0])
    return [f"{folder.name}: {problem}" for folder in folders for problem in folder.problems]


def blocks_of(
    folders: Sequence[RunFolder], packed: Sequence[PackedEpisodes], *, is_live: bool = False
) -> dict[str, str]:
    """The data of a page: JSON by name of its block; `is_live` where it is served while the run goes on."""
    overview: dict[str, Json] = {
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "live": is_live,
        "defaults": Recipe().model_dump(mode="json"),
        "behaviours": dict(BEHAVIOURS),
        "causes": dict(ERROR_CAUSES),
        "tables": _tables(policies_of(folders), _SHARED_TABLES if len(folders) > 1 else ()),
        "runs": [_run(folder, episodes) for folder, episodes in zip(folders, packed, strict=True)],
    }
    blocks = {"overview": encode(overview)}
    for number, episodes in enumerate(packed):
        blocks[f"index-{number}"] = encode(episodes.index)
        blocks |= {f"episodes-{number}-{name}": text for name, text in episodes.chunks.items()}
    return blocks


def render(blocks: Mapping[str, str], *, extra: Sequence[str] = (), connect: str = "'none'") -> tuple[str, str]:
    """The HTML of a page around the data of `blocks_of`, and the content policy that it states.

    `extra` scripts, which only this page has, run before the last one; `connect` is where they may connect to.
    """
    assets = importlib.resources.files("seekling.report") / "assets"
    style = "\n".join((assets / name).read_text(encoding="utf-8") for name in _STYLES)
    names = (*_SCRIPTS[:-1], *extra, _SCRIPTS[-1])
    code = "\n".join((assets / f"{name}.js").read_text(encoding="utf-8") for name in names)
    script = f'"use strict";\n(() => {{\n{code}\n}})();\n'
    slots = {
        "policy": _policy(script, style, connect),
        "style": style,
        "script": script,
        "data": "\n".join(
            f'<script type="application/json" id="{name}">{text}</script>' for name, text in blocks.items()
        ),
    }
    page = (assets / "page.html").read_text(encoding="utf-8")
    # One pass, so that a slot's name inside an episode stays what it is: text.
    return _SLOT.sub(lambda match: slots[match.group(1)], page), slots["policy"]


def _run(folder: RunFolder, packed: PackedEpisodes) -> dict[str, Json]:
    charts: Json = asdict(charts_of(folder, _shown_in_rl(packed)))
    return {
        "name": folder.name,
        "headline": list[Json](headline_of(folder)),
        "course": course_of(folder),
        "seconds": dict(seconds_of(folder)),
        "problems": list[Json](folder.problems),
        "warnings": list[Json](describe_worsening(packed.records)),
        "health": list[Json](describe_health(folder.metrics.get("rl", []))),
        "recipe": folder.recipe,
        "recipe_toml": folder.recipe_toml,
        "record": folder.record,
        "tables": _tables(policies_of([folder]), _TABLES),
        "changes": [each.to_json() for each in changes_of(folder)],
        "charts": charts,
        "panels": panels(packed.records, packed.facts),
    }


def _shown_in_rl(packed: PackedEpisodes) -> Iterator[tuple[int, tuple[str, ...]]]:
    for record, facts in zip(packed.records, packed.facts, strict=True):
        if record.stage == "rl" and facts.outcome != "failed":
            yield record.step, facts.behaviours


def _tables(policies: Sequence[Policy], names: Sequence[str]) -> dict[str, Json]:
    return {table.label: to_json(table) for table in tables_of(policies, names)}


def _policy(script: str, style: str, connect: str) -> str:
    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
