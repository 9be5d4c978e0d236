"""Run folders -> one self-contained HTML file.

Everything in a run folder is untrusted: a model wrote most of it. It reaches the page only as JSON inside data blocks,
with every character escaped that could end a block, and the page's script puts it on screen as text nodes. The policy
in the page's head allows exactly the one script and the one style sheet that are inlined here, by hash, and no
connection to anywhere; Trusted Types make the browser refuse HTML from strings.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from seekling import __version__
from seekling.config import Recipe
from seekling.errors import DataError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.health import describe_health
from seekling.evaluate.pooled import Pooled, read_pooled
from seekling.evaluate.worsening import describe_worsening
from seekling.files import write_atomically
from seekling.report.encode import encode
from seekling.report.episodes import PackedEpisodes, Packer
from seekling.report.panels import panels
from seekling.report.read import RunFolder, read_run
from seekling.types import Json

_STYLES = ("style.css", "analysis.css", "episodes.css")
_SCRIPTS = (
    "dom.js",
    "data.js",
    "charts.js",
    "overview.js",
    "table.js",
    "timing.js",
    "analysis.js",
    "evidence.js",
    "tokens.js",
    "conversation.js",
    "explorer.js",
    "detail.js",
    "recipe.js",
    "app.js",
)
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def write_report(runs: Sequence[Path], out: Path) -> list[str]:
    """Write run folders as one HTML file, atomically.

    Args:
        runs: folders, in the order in which the page offers them.
        out: the file to write; its folder is made when it does not exist.

    Returns:
        What was missing or damaged, one sentence each, with the run's name in front. The page says the same.

    Raises:
        DataError: no run is given, or a path is not a run folder.
    """
    if not runs:
        raise DataError("a report needs at least one run folder, as `seekling train` writes it")
    folders = [read_run(path) for path in runs]
    pooled, unpooled = read_pooled(runs)
    blocks = blocks_of(folders, [Packer().pack(folder.files) for folder in folders], pooled=pooled)
    write_atomically(out, render(blocks)[0])
    return [*(f"{folder.name}: {problem}" for folder in folders for problem in folder.problems), *unpooled]


def blocks_of(
    folders: Sequence[RunFolder],
    packed: Sequence[PackedEpisodes],
    *,
    pooled: Sequence[Pooled] = (),
    is_live: bool = False,
) -> dict[str, str]:
    """The data of a page: JSON by name of its block.

    Args:
        folders: the runs.
        packed: the episodes of each.
        pooled: what several samples or seeds of them say together.
        is_live: the page is served while the run goes on.
    """
    overview: dict[str, Json] = {
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "live": is_live,
        "defaults": Recipe().model_dump(mode="json"),
        "behaviours": dict(BEHAVIOURS),
        "causes": dict(ERROR_CAUSES),
        "pooled": [each.to_json() for each in pooled],
        "runs": [_run(folder, episodes) for folder, episodes in zip(folders, packed, strict=True)],
    }
    blocks = {"overview": encode(overview)}
    for number, episodes in enumerate(packed):
        blocks[f"index-{number}"] = encode(episodes.index)
        blocks |= {f"episodes-{number}-{name}": text for name, text in episodes.chunks.items()}
    return blocks


def render(blocks: Mapping[str, str], *, extra: Sequence[str] = (), connect: str = "'none'") -> tuple[str, str]:
    """The HTML of a page around its data, and the content policy that it states.

    Args:
        blocks: from `blocks_of`.
        extra: script files that only this page has; they run before the last one.
        connect: where its script may connect to.
    """
    assets = importlib.resources.files("seekling.report") / "assets"
    style = "\n".join((assets / name).read_text(encoding="utf-8") for name in _STYLES)
    names = (*_SCRIPTS[:-1], *extra, _SCRIPTS[-1])
    code = "\n".join((assets / name).read_text(encoding="utf-8") for name in names)
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
    return {
        "name": folder.name,
        "problems": list[Json](folder.problems),
        "warnings": list[Json](describe_worsening(packed.records)),
        "health": list[Json](describe_health(folder.metrics.get("rl", []))),
        "recipe": folder.recipe,
        "recipe_toml": folder.recipe_toml,
        "record": folder.record,
        "progress": folder.progress,
        "metrics": {stage: _columns(rows) for stage, rows in folder.metrics.items()},
        "evaluations": {name: summary for name, summary in folder.evaluations.items()},
        "comparisons": list[Json](folder.comparisons),
        "panels": panels(packed.records, packed.facts),
    }


def _columns(rows: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Numbers of metric rows by name, None where a row lacks one. A resumed run repeats steps; the last word counts."""
    by_step = {row.get("step") if isinstance(row.get("step"), int) else -i: row for i, row in enumerate(rows, start=1)}
    kept = list(by_step.values())
    names = dict.fromkeys(name for row in kept for name, value in row.items() if _is_number(value))
    return {name: [row.get(name) if _is_number(row.get(name)) else None for row in kept] for name in names}


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _policy(script: str, style: str, connect: str) -> str:
    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
