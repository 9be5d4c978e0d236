"""`seekling serve`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from seekling.errors import ConfigError, MissingExtraError


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help="A model spec, such as default, or a run.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[str, typer.Option(help="Model name for clients; default the spec's or the folder's.")] = "",
    policy: Annotated[str, typer.Option(help="Of a run: best, rl or sft; default: the best.")] = "",
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
    try:
        from seekling.serve.chat_app import make_chat_app
        from seekling.serve.running import run_app
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving needs {error.name}; install it with: pip install 'seekling[serve]'") from None
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
