"""`seekling sandbox`: one model-written program, by hand."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.cli.options import AsJson
from seekling.config import IndexConfig, SandboxConfig, load_recipe
from seekling.errors import ConfigError
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.env.sandbox import Result

FUNCTION_NAMES = ("search_pages", "view_sections", "read_section")
ALMANAC_PAGES = 150


def command(
    file: Annotated[Path, typer.Argument(help="A Python program; - reads it from standard input.")],
    recipe: Annotated[Path | None, typer.Option(help="Take back end and limits from this recipe.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program in the sandbox and print its outcome, output and error.

    It may call search_pages, view_sections and read_section of an almanac of 150 pages. The exit code is 0 whatever the
    program did; it is 1 when the sandbox could not run it.
    """
    from seekling.env.sandbox import Sandbox

    code = _read_program(file)
    config = load_recipe(recipe).env.sandbox if recipe is not None else SandboxConfig()
    with tempfile.TemporaryDirectory(prefix="seekling-") as folder, Sandbox(config) as sandbox:
        session = sandbox.open(_almanac_functions(Path(folder)))
        result = session.run(code)
        session.close()
        layers = sandbox.layers
    if as_json:
        document: dict[str, Json] = {**asdict(result), "layers": list(layers)}
        print(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _print(result)


def _read_program(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the program {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the program {file} is not UTF-8 text: {error}") from None


def _almanac_functions(folder: Path) -> Mapping[str, Callable[..., object]]:
    """The library of a small almanac, built on the spot."""
    from seekling.corpus.almanac import generate
    from seekling.retrieval.index import build_index
    from seekling.retrieval.library import open_library

    generate(pages=ALMANAC_PAGES, seed=0, out=folder / "almanac")
    build_index(folder / "almanac" / "corpus.jsonl", folder / "index", IndexConfig())
    library = open_library(folder / "index")
    return {name: getattr(library, name) for name in FUNCTION_NAMES}


def _print(result: Result) -> None:
    # Plain text, not rich: what a program printed is printed as it is, brackets and all.
    typer.secho(f"outcome: {result.outcome}", fg=typer.colors.GREEN if result.outcome == "ok" else typer.colors.RED)
    typer.echo(
        f"{result.wall_s * 1000:.1f} ms wall, {result.cpu_s * 1000:.1f} ms processor, {result.host_calls} host call(s)"
        + (", output cut" if result.truncated else "")
    )
    if result.stdout:
        typer.echo("stdout:")
        typer.echo(result.stdout, nl=not result.stdout.endswith("\n"))
    if result.error_text:
        typer.echo("error:")
        typer.echo(result.error_text)
