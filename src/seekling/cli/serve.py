"""`seekling serve`: a model behind an OpenAI-compatible address, or with --search-only indexes behind /retrieve."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from seekling.cli.options import Policy, section_of
from seekling.config import SearchServerConfig
from seekling.errors import ConfigError, MissingExtraError

_SEARCH = SearchServerConfig()


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help="A model spec, such as default, or a run.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[str, typer.Option(help="Model name for clients; default the spec's or the folder's.")] = "",
    policy: Policy = "",
    key_env: Annotated[str, typer.Option(help="Environment variable with a key that clients must send.")] = "",
    context_tokens: Annotated[int, typer.Option(min=0, help="Prompt and reply together; 0: as the model allows.")] = 0,
    in_flight: Annotated[int, typer.Option(min=1, help="Replies sampled at once.")] = 16,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Memory for their caches.")] = 2 * 1024**3,
) -> None:
    """Serve a model, or a run's best policy, behind an OpenAI-compatible address.

    POST /v1/chat/completions (whole or streamed), GET /v1/models, GET /health. Ctrl-C stops it.
    """
    key = os.environ.get(key_env, "").strip() if key_env else ""
    if key_env and not key:
        raise ConfigError(f"the environment variable {key_env} is not set; it must hold the key")
    with _serving():
        from seekling.serve.chat_app import make_chat_app
        from seekling.serve.running import run_app
    from seekling.serve.local_model import open_local_chat

    with open_local_chat(
        model,
        name=name,
        policy=policy,
        context_tokens=context_tokens,
        in_flight=in_flight,
        cache_bytes=cache_bytes,
        log=lambda line: typer.echo(line, err=True),
    ) as chat:

        def say(address: str) -> None:
            typer.echo(f"serving {chat.endpoint.model} at {address}/v1 (Ctrl-C stops)", err=True)

        run_app(make_chat_app(chat, key=key), host=host, port=port, on_start=say)


def search_only(
    ctx: typer.Context,
    indexes: Annotated[
        list[str], typer.Argument(metavar="INDEX...", help="Index folders, each alone or as NAME=FOLDER.")
    ],
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = _SEARCH.port,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in; there is no password.")] = _SEARCH.host,
    top_k: Annotated[int, typer.Option(help="Passages when a request names no number.")] = _SEARCH.top_k,
    timeout_s: Annotated[float, typer.Option(help="Time limit of a request.")] = _SEARCH.timeout_s,
    batch_queries: Annotated[int, typer.Option(help="Queries searched together.")] = _SEARCH.batch_queries,
    waiting_queries: Annotated[
        int, typer.Option(help="Queries that may wait; more are sent away with 503.")
    ] = _SEARCH.waiting_queries,
    waiting_bytes: Annotated[
        int, typer.Option(help="Of requests that are not yet answered; more are sent away with 503.")
    ] = _SEARCH.waiting_bytes,
    cache_bytes: Annotated[int, typer.Option(help="Memory for recent answers, per index.")] = _SEARCH.cache_bytes,
    body_bytes: Annotated[int, typer.Option(help="Largest request.")] = _SEARCH.body_bytes,
    query_chars: Annotated[int, typer.Option(help="Longest query.")] = _SEARCH.query_chars,
    hits_per_request: Annotated[
        int, typer.Option(help="Most passages that one request may ask for.")
    ] = _SEARCH.hits_per_request,
) -> None:
    """Serve indexes over HTTP as Search-R1's retrieval server does: POST /retrieve.

    Clients of Search-R1, verl, slime and SkyRL use it unchanged, as does a recipe: its retrieval.url.
    The first index answers at /retrieve, each at /NAME/retrieve; /health and /metrics tell how it is. Ctrl-C or SIGTERM
    ends it after what has been asked is answered.
    """
    config = section_of(SearchServerConfig, ctx.params)
    with _serving():
        from seekling.serve.running import run_app
        from seekling.serve.search_app import search_app
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


@contextlib.contextmanager
def _serving() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving needs {error.name}; install it with: pip install 'seekling[serve]'") from None
