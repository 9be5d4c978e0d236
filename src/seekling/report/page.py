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
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from seekling import __version__
from seekling.config import Recipe
from seekling.errors import DataError
from seekling.files import write_atomically
from seekling.report.episodes import pack
from seekling.report.read import RunFolder, finite, read_run
from seekling.types import Json

_STYLES = ("style.css", "episodes.css")
_SCRIPTS = ("dom.js", "data.js", "charts.js", "overview.js", "conversation.js", "episodes.js", "recipe.js", "app.js")
# Besides what could end or confuse a script block: lone surrogates, which UTF-8 cannot hold, and the line separators
# that JSON allows in strings.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
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
    write_atomically(out, render(folders))
    return [f"{folder.name}: {problem}" for folder in folders for problem in folder.problems]


def render(folders: Sequence[RunFolder]) -> str:
    """The HTML of a report."""
    assets = importlib.resources.files("seekling.report") / "assets"
    style = "\n".join((assets / name).read_text(encoding="utf-8") for name in _STYLES)
    code = "\n".join((assets / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{code}\n}})();\n'
    blocks = [_block("overview", _overview(folders))]
    for number, folder in enumerate(folders):
        packed = pack(folder.episodes)
        blocks.append(_block(f"index-{number}", packed.index))
        blocks += [_block(f"episodes-{number}-{i}", chunk) for i, chunk in enumerate(packed.chunks)]
    slots = {
        "policy": _policy(script, style),
        "style": style,
        "script": script,
        "data": "\n".join(blocks),
    }
    page = (assets / "page.html").read_text(encoding="utf-8")
    # One pass, so that a slot's name inside an episode stays what it is: text.
    return _SLOT.sub(lambda match: slots[match.group(1)], page)


def encode(value: Json) -> str:
    r"""JSON that is safe inside a script block, whatever strings it holds.

    Example:
        >>> print(encode("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _overview(folders: Sequence[RunFolder]) -> dict[str, Json]:
    return {
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "defaults": Recipe().model_dump(mode="json"),
        "runs": [_run(folder) for folder in folders],
    }


def _run(folder: RunFolder) -> dict[str, Json]:
    return {
        "name": folder.name,
        "problems": list[Json](folder.problems),
        "recipe": folder.recipe,
        "recipe_toml": folder.recipe_toml,
        "record": folder.record,
        "metrics": {stage: _columns(rows) for stage, rows in folder.metrics.items()},
        "evaluations": {name: summary for name, summary in folder.evaluations.items()},
        "comparisons": list[Json](folder.comparisons),
    }


def _columns(rows: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Numbers of metric rows by name, None where a row lacks one. A resumed run repeats steps; the last word counts."""
    by_step = {row.get("step") if isinstance(row.get("step"), int) else -i: row for i, row in enumerate(rows, start=1)}
    kept = list(by_step.values())
    names = dict.fromkeys(name for row in kept for name, value in row.items() if _is_number(value))
    return {name: [row.get(name) if _is_number(row.get(name)) else None for row in kept] for name in names}


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _block(identifier: str, value: Json) -> str:
    return f'<script type="application/json" id="{identifier}">{encode(value)}</script>'


def _policy(script: str, style: str) -> str:
    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
