"""`seekling serve-search`: indexes behind Search-R1's /retrieve."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from seekling.cli.section_options import section_of
from seekling.config import SearchServerConfig
from seekling.errors import MissingExtraError

_DEFAULTS = SearchServerConfig()


def command(
    indexes: Annotated[
        list[str],
        typer.Argument(metavar="INDEX...", help="Index folders, each alone or as NAME=FOLDER.", show_default=False),
    ],
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = _DEFAULTS.port,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in; there is no password.")] = _DEFAULTS.host,
    top_k: Annotated[int, typer.Option(help="Passages when a request names no number.")] = _DEFAULTS.top_k,
    timeout_s: Annotated[float, typer.Option(help="Time limit of a request.")] = _DEFAULTS.timeout_s,
    batch_queries: Annotated[int, typer.Option(help="Queries searched together.")] = _DEFAULTS.batch_queries,
    waiting_queries: Annotated[
        int, typer.Option(help="Queries that may wait; more are sent away with 503.")
    ] = _DEFAULTS.waiting_queries,
    waiting_bytes: Annotated[
        int, typer.Option(help="Of requests that are not yet answered; more are sent away with 503.")
    ] = _DEFAULTS.waiting_bytes,
    cache_bytes: Annotated[int, typer.Option(help="Memory for recent answers, per index.")] = _DEFAULTS.cache_bytes,
    body_bytes: Annotated[int, typer.Option(help="Largest request.")] = _DEFAULTS.body_bytes,
    query_chars: Annotated[int, typer.Option(help="Longest query.")] = _DEFAULTS.query_chars,
    hits_per_request: Annotated[
        int, typer.Option(help="Most passages that one request may ask for.")
    ] = _DEFAULTS.hits_per_request,
) -> None:
    """Serve indexes over HTTP as Search-R1's retrieval server does: POST /retrieve.

    Clients of Search-R1, verl, slime and SkyRL use it unchanged, as does a recipe: its retrieval.url.
    The first index answers at /retrieve, each at /NAME/retrieve; /health and /metrics tell how it is. Ctrl-C or SIGTERM
    ends it after what has been asked is answered.
    """
    config = section_of(
        SearchServerConfig,
        port=port,
        host=host,
        top_k=top_k,
        timeout_s=timeout_s,
        batch_queries=batch_queries,
        waiting_queries=waiting_queries,
        waiting_bytes=waiting_bytes,
        cache_bytes=cache_bytes,
        body_bytes=body_bytes,
        query_chars=query_chars,
        hits_per_request=hits_per_request,
    )
    try:
        from seekling.serve.running import run_app
        from seekling.serve.search_app import search_app
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving needs {error.name}; install it with: pip install 'seekling[serve]'") from None
    from seekling.serve.search_index import open_indexes
    from seekling.serve.search_metrics import SearchMetrics

    metrics = SearchMetrics()
    opened = open_indexes(indexes, config, metrics)

    def say(address: str) -> None:
        for index in opened:
            about = index.describe()
            typer.echo(f"{about['kind']} index of {about['num_passages']} passages: {address}/{index.name}/retrieve")
        typer.echo(f"serving {opened[0].name} at {address}/retrieve (Ctrl-C stops)")

    app = search_app(opened, config, metrics)
    run_app(app, host=config.host, port=config.port, on_start=say, shutdown_s=math.ceil(timeout_s) + 1)
    typer.echo("stopped; what was asked is answered")
