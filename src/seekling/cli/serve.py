"""`seekling serve`: a run's agent over HTTP, MCP and a web page; a bare model; indexes; a model that programs train."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.cli.options import Policy, settings
from seekling.config import SearchServerConfig, ServeConfig
from seekling.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from seekling.serve.desk import Desk
    from seekling.serve.gate import GateRules
    from seekling.serve.keys import Keys
    from seekling.serve.running import App
    from seekling.types import Json

Model = Annotated[str, typer.Argument(metavar="RUN_OR_MODEL", help="A run, or a model spec such as default.")]
Run = Annotated[Path, typer.Argument(help="Run folder, such as runs/demo.")]
Name = Annotated[str, typer.Option(help="Model name for clients; default the spec's or the folder's.")]
KeyFile = Annotated[Path | None, typer.Option(help="File of keys; default keys.json in the run.")]
KeyEnv = Annotated[str, typer.Option(help="Environment variable with a further key.")]
KeyName = Annotated[str, typer.Argument(help="Whose key, such as alice.")]
_CACHE_BYTES = 2 * 1024**3


@settings("config", ServeConfig)
def command(
    model: Model, config: ServeConfig, name: Name = "", policy: Policy = "", keys: KeyFile = None, key_env: KeyEnv = ""
) -> None:
    """Serve a run's agent: a web page, OpenAI's chat completions, and MCP.

    Open http://127.0.0.1:8000 to ask. POST /v1/chat/completions (whole or streamed) and /v1/feedback, GET /v1/models,
    /v1/pages/ID, /metrics and /openapi.json; MCP at /mcp. A plain model spec is served bare, as with --policy-only.
    Ctrl-C stops it after what was asked is answered.
    """
    run, known = Path(model), _keys(model, keys, key_env, config.host)
    if not _is_run(run):
        return _serve_bare(model, config, known, name, policy)
    with _serving():
        from seekling.serve.agent_app import OPEN_PATHS, make_agent_app

    with _desk(run, config, name=name, policy=policy) as desk:
        rules = replace(_rules(config, known, OPEN_PATHS, desk.metrics.count_request), limits_keyless=True)
        _run(make_agent_app(desk, rules), config, desk.name)


@settings("config", ServeConfig, "host port in_flight requests_per_minute")
def policy_only(
    model: Model,
    config: ServeConfig,
    name: Name = "",
    policy: Policy = "",
    keys: KeyFile = None,
    key_env: KeyEnv = "",
    context_tokens: Annotated[int, typer.Option(min=0, help="Prompt and reply together; 0: as the model allows.")] = 0,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Memory for the caches of replies.")] = _CACHE_BYTES,
) -> None:
    """Serve a model, or a run's bare policy without search, behind an OpenAI-compatible address.

    POST /v1/chat/completions (whole or streamed), GET /v1/models, GET /health. Ctrl-C stops it.
    """
    known = _keys(model, keys, key_env, config.host)
    _serve_bare(model, config, known, name, policy, context_tokens=context_tokens, cache_bytes=cache_bytes)


def _serve_bare(
    model: str,
    config: ServeConfig,
    keys: Keys,
    name: str,
    policy: str,
    *,
    context_tokens: int = 0,
    cache_bytes: int = _CACHE_BYTES,
) -> None:
    with _serving():
        from seekling.serve.chat_app import make_chat_app
    from seekling.serve.local_model import open_local_chat

    with open_local_chat(
        model,
        name=name,
        policy=policy,
        context_tokens=context_tokens,
        in_flight=config.in_flight,
        cache_bytes=cache_bytes,
        log=_say,
    ) as chat:
        _run(make_chat_app(chat, rules=_rules(config, keys)), config, chat.endpoint.model)


@settings("config", ServeConfig, "host port in_flight")
def tinker(
    config: ServeConfig,
    model: Annotated[str, typer.Option(help="The base model: a spec such as default, or a model folder.")] = "default",
    name: Annotated[str, typer.Option(help="Hub id by which clients load the tokenizer; default the folder.")] = "",
    keys: Annotated[Path | None, typer.Option(help="File of keys; default keys.json in --saves.")] = None,
    key_env: KeyEnv = "",
    saves: Annotated[Path, typer.Option(help="Folder in which programs' weights are saved.")] = Path("runs/tinker"),
    max_models: Annotated[int, typer.Option(min=1, help="Models that train at once; each has adapters.")] = 8,
    context_tokens: Annotated[int, typer.Option(min=2, help="Prompt and reply together, and a datum.")] = 4096,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Memory for the caches of samples.")] = 1024**3,
) -> None:
    """Serve a model to programs written for the Tinker API: they train adapters of it, and sample.

    Set TINKER_BASE_URL to the address, and TINKER_API_KEY to tml- and a key of this server; without keys, to tml-local.
    docs/TINKER.md says what is supported. Ctrl-C stops it; what programs saved stays.
    """
    # Programs send whole batches, as often as they like.
    config = config.model_copy(update={"requests_per_minute": 0, "body_s": 60.0})
    known = _keys("", keys or saves / "keys.json", key_env, config.host)
    from seekling.models import resolve_model

    with _serving():
        if importlib.util.find_spec("tinker") is None:
            raise MissingExtraError(
                "serving the Tinker API needs tinker; install it with: pip install 'seekling[tinker]'"
            )
        from seekling.tinker.app import OPEN_PATHS, make_tinker_app
        from seekling.tinker.engine import Engine
    folder = resolve_model(model, log=_say)
    engine = Engine(
        folder,
        saves,
        in_flight=config.in_flight,
        context_tokens=context_tokens,
        cache_bytes=cache_bytes,
        max_models=max_models,
    )
    names = tuple(dict.fromkeys(each for each in (name, str(folder), model) if each))
    _say(f"models may be asked for as: {', '.join(names)}")
    _run(make_tinker_app(engine, names, rules=_rules(config, known, OPEN_PATHS)), config, names[0])


@settings("config", ServeConfig, "in_flight timeout_s question_chars")
def mcp(run: Run, config: ServeConfig, policy: Policy = "") -> None:
    """Serve a run's agent to one program by MCP over stdin and stdout: search, read and ask."""
    with _serving():
        from seekling.serve.mcp_server import make_mcp_server

    with _desk(run, config, policy=policy) as desk:
        make_mcp_server(desk).run("stdio")


def add_key(run: Run, name: KeyName, keys: KeyFile = None) -> None:
    """Make a key for a server, running or not, and print it: it is shown only now."""
    from seekling.serve import keys as stored

    typer.echo(stored.add_key(keys or run / stored.KEYS, name))


def revoke_key(run: Run, name: KeyName, keys: KeyFile = None) -> None:
    """Take a key back: a running server refuses it from now on."""
    from seekling.serve import keys as stored

    stored.revoke_key(keys or run / stored.KEYS, name)
    typer.echo(f"revoked the key of {name}")


def _is_run(path: Path) -> bool:
    return (path / "recipe.toml").is_file()


def _keys(model: str, path: Path | None, key_env: str, host: str) -> Keys:
    """Who may ask; without any key only this machine."""
    from seekling.serve.gate import is_local
    from seekling.serve.keys import KEYS, Keys

    secret = os.environ.get(key_env, "").strip() if key_env else ""
    if key_env and not secret:
        raise ConfigError(f"the environment variable {key_env} is not set; it must hold the key")
    if path is None and _is_run(Path(model)):
        path = Path(model) / KEYS
    keys = Keys(path, secret=secret)
    if not keys.are_needed and not is_local(host):
        raise ConfigError(
            f"at {host} other machines could ask, and there is no key; make one with `seekling serve --add-key RUN "
            "NAME`, give --key-env, or listen at 127.0.0.1"
        )
    return keys


@contextlib.contextmanager
def _desk(run: Path, config: ServeConfig, *, policy: str, name: str = "") -> Iterator[Desk]:
    """A run's agent, ready to be asked."""
    with _serving():
        from seekling.serve.desk import Desk
        from seekling.serve.metrics import AgentMetrics
    from seekling.serve import load_agent
    from seekling.serve.episodes import SERVED, Episodes
    from seekling.serve.logs import logging_as_json

    with (
        logging_as_json(_log),
        load_agent(run, policy=policy, in_flight=config.in_flight, log=_say) as agent,
        contextlib.closing(Episodes(run / SERVED)) as episodes,
        agent.asker() as asker,
    ):
        yield Desk(asker, agent.library, episodes, config, AgentMetrics(), name=name or run.resolve().name)


def _rules(
    config: ServeConfig,
    keys: Keys,
    open_paths: frozenset[str] = frozenset({"/health"}),
    count: Callable[[str, int], None] = lambda route, status: None,
) -> GateRules:
    """Whom to let in, and a line of JSON on stderr for every request."""
    from seekling.serve.gate import GateRules
    from seekling.serve.keys import RateLimit
    from seekling.serve.logs import json_line

    def note(row: dict[str, Json]) -> None:
        count(str(row["route"]), int(str(row["status"])))
        _log(json_line(row))

    return GateRules(keys, RateLimit(config.requests_per_minute), config.body_s, open_paths, note)


def _run(app: App, config: ServeConfig, name: str) -> None:
    from seekling.serve.logs import logging_as_json
    from seekling.serve.running import run_app

    def say(address: str) -> None:
        _say(f"serving {name} at {address} (Ctrl-C stops)")

    with logging_as_json(_log):
        run_app(app, host=config.host, port=config.port, on_start=say, shutdown_s=math.ceil(config.timeout_s) + 1)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _log(line: str) -> None:
    """Say it as far as that is possible: a full disk, or a reader of the log that went away, ends no request."""
    with contextlib.suppress(OSError):
        _say(line)


@settings("config", SearchServerConfig)
def search_only(
    indexes: Annotated[
        list[str], typer.Argument(metavar="INDEX...", help="Index folders, each alone or as NAME=FOLDER.")
    ],
    config: SearchServerConfig,
) -> None:
    """Serve indexes over HTTP as Search-R1's retrieval server does: POST /retrieve.

    Clients of Search-R1, verl, slime and SkyRL use it unchanged, as does a recipe: its retrieval.url.
    The first index answers at /retrieve, each at /NAME/retrieve; /health and /metrics tell how it is. Ctrl-C or SIGTERM
    ends it after what has been asked is answered.
    """
    with _serving():
        from seekling.serve.logs import logging_as_json
        from seekling.serve.metrics import SearchMetrics
        from seekling.serve.running import run_app
        from seekling.serve.search_app import open_indexes, search_app

    metrics = SearchMetrics()
    opened = open_indexes(indexes, config, metrics)

    def say(address: str) -> None:
        for index in opened:
            about = index.describe()
            typer.echo(f"{about['kind']} index of {about['num_passages']} passages: {address}/{index.name}/retrieve")
        typer.echo(f"serving {opened[0].name} at {address}/retrieve (Ctrl-C stops)")

    app = search_app(opened, config, metrics)
    with logging_as_json(_log):
        run_app(app, host=config.host, port=config.port, on_start=say, shutdown_s=math.ceil(config.timeout_s) + 1)
    typer.echo("stopped; what was asked is answered")


@contextlib.contextmanager
def _serving() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving needs {error.name}; install it with: pip install 'seekling[serve]'") from None
