"""`seekling watch`: the report of a run, while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="The run folder that `seekling train` is writing.")],
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.", min=0, max=65535)] = 8765,
) -> None:
    """Serve a run's report to your browser while it trains, keeping it up to date.

    The page is that of `seekling report`, and new steps, episodes and figures appear on it by themselves. Only this
    machine can open it. Nothing is written to the run folder; Ctrl-C ends the watching and not the training.
    """
    from seekling.report.watch import WatchServer

    try:
        with WatchServer(run, port) as server:
            typer.echo(f"watching {run} at {server.url} (Ctrl-C stops)")
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        typer.echo("\nstopped watching")
