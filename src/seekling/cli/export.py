"""`seekling export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")],
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="The LoRA adapter alone, in PEFT's layout.")] = False,
    policy: Annotated[
        str, typer.Option(help="best, rl, sft, or a training state such as state-rl-20; default: best, or newest.")
    ] = "",
) -> None:
    """Write a run's policy as a folder that other libraries load.

    transformers, PEFT and vLLM do.
    """
    from seekling.pipeline.export import export_run

    name = export_run(run, out, policy=policy, is_adapter=adapter)
    typer.echo(f"wrote {name}{' (adapter)' if adapter else ''} of {run} to {out}")
