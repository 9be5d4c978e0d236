"""`seekling serve`: a run's agent over HTTP, MCP and a web page; a bare model; indexes; a model that programs train."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.cli.options import Policy, section_of
from seekling.config import SearchServerConfig, ServeConfig
from seekling.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from seekling.serve.desk import Desk
    from seekling.serve.gate import GateRules
    from seekling.serve.keys import Keys
    from seekling.serve.running import App
    from seekling.types import Json

_SEARCH = SearchServerConfig()
_SERVE = ServeConfig()


Model = Annotated[str, typer.Argument(metavar="RUN_OR_MODEL", help="A run, or a model spec such as default.")]
Run = Annotated[Path, typer.Argument(help="Run folder, such as runs/demo.")]
Host = Annotated[str, typer.Option(help="Address to listen at; one that other machines reach needs keys.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Name = Annotated[str, typer.Option(help="Model name for clients; default the spec's or the folder's.")]
KeyFile = Annotated[Path | None, typer.Option(help="File of keys; default keys.json in the run.")]
KeyEnv = Annotated[str, typer.Option(help="Environment variable with a further key.")]
KeyName = Annotated[str, typer.Argument(help="Whose key, such as alice.")]
PerMinute = Annotated[
    int,
    typer.Option(
        help="Requests of each key, or to an agent without keys of all together; more are sent away with 429. "
        "0: no limit."
    ),
]
InFlight = Annotated[int, typer.Option(help="Questions or replies worked on at once.")]
TimeoutS = Annotated[float, typer.Option(help="Time limit of a question.")]
QuestionChars = Annotated[int, typer.Option(help="Longest question.")]


def command(
    ctx: typer.Context,
    model: Model,
    host: Host = _SERVE.host,
    port: Port = _SERVE.port,
    name: Name = "",
    policy: Policy = "",
    keys: KeyFile = None,
    key_env: KeyEnv = "",
    in_flight: InFlight = _SERVE.in_flight,
    waiting_questions: Annotated[
        int, typer.Option(help="Questions that may wait; more are sent away with 503.")
    ] = _SERVE.waiting_questions,
    timeout_s: TimeoutS = _SERVE.timeout_s,
    body_s: Annotated[float, typer.Option(help="Time limit for a request's body to arrive.")] = _SERVE.body_s,
    body_bytes: Annotated[int, typer.Option(help="Largest request.")] = _SERVE.body_bytes,
    question_chars: QuestionChars = _SERVE.question_chars,
    requests_per_minute: PerMinute = _SERVE.requests_per_minute,
    log_questions: Annotated[bool, typer.Option("--log-questions", help="Write questions into the log.")] = False,
) -> None:
    """Serve a run's agent: a web page, OpenAI's chat completions, and MCP.

    Open http://127.0.0.1:8000 to ask. POST /v1/chat/completions (whole or streamed) and /v1/feedback, GET /v1/models,
    /v1/pages/ID, /metrics and /openapi.json; MCP at /mcp. A plain model spec is served bare, as with --policy-only.
    Ctrl-C stops it after what was asked is answered.
    """
    run = Path(model)
    if not _is_run(run):
        return policy_only(ctx, model, host, port, name, policy, keys, key_env, in_flight, requests_per_minute)
    config, known = section_of(ServeConfig, ctx.params), _keys(model, keys, key_env)
    _check_reach(config.host, known)
    with _serving():
        from seekling.serve.agent_app import OPEN_PATHS, make_agent_app

    with _desk(run, config, name=name, policy=policy) as desk:
        rules = replace(_rules(config, known, OPEN_PATHS, desk.metrics.count_request), limits_keyless=True)
        _run(make_agent_app(desk, rules), config, desk.name)


def policy_only(
    ctx: typer.Context,
    model: Model,
    host: Host = _SERVE.host,
    port: Port = _SERVE.port,
    name: Name = "",
    policy: Policy = "",
    keys: KeyFile = None,
    key_env: KeyEnv = "",
    in_flight: InFlight = _SERVE.in_flight,
    requests_per_minute: PerMinute = _SERVE.requests_per_minute,
    context_tokens: Annotated[int, typer.Option(min=0, help="Prompt and reply together; 0: as the model allows.")] = 0,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Memory for the caches of replies.")] = 2 * 1024**3,
) -> None:
    """Serve a model, or a run's bare policy without search, behind an OpenAI-compatible address.

    POST /v1/chat/completions (whole or streamed), GET /v1/models, GET /health. Ctrl-C stops it.
    """
    config, known = section_of(ServeConfig, ctx.params), _keys(model, keys, key_env)
    _check_reach(config.host, known)
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
        _run(make_chat_app(chat, rules=_rules(config, known)), config, chat.endpoint.model)


def tinker(
    ctx: typer.Context,
    model: Annotated[str, typer.Option(help="The base model: a spec such as default, or a model folder.")] = "default",
    host: Host = _SERVE.host,
    port: Port = _SERVE.port,
    name: Annotated[str, typer.Option(help="Hub id by which clients load the tokenizer; default the folder.")] = "",
    keys: Annotated[Path | None, typer.Option(help="File of keys; default keys.json in --saves.")] = None,
    key_env: KeyEnv = "",
    in_flight: Annotated[int, typer.Option(min=1, help="Samples drawn at once.")] = _SERVE.in_flight,
    saves: Annotated[Path, typer.Option(help="Folder in which programs' weights are saved.")] = Path("runs/tinker"),
    max_models: Annotated[int, typer.Option(min=1, help="Models that train at once; each has adapters.")] = 8,
    context_tokens: Annotated[int, typer.Option(min=2, help="Prompt and reply together, and a datum.")] = 4096,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Memory for the caches of samples.")] = 1024**3,
) -> None:
    """Serve a model to programs written for the Tinker API: they train adapters of it, and sample.

    Set TINKER_BASE_URL to the address, and TINKER_API_KEY to tml- and a key of this server; without keys, to tml-local.
    docs/TINKER.md says what is supported. Ctrl-C stops it; what programs saved stays.
    """
    config = section_of(ServeConfig, {**ctx.params, "requests_per_minute": 0, "body_s": 60.0})
    known = _keys("", keys or saves / "keys.json", key_env)
    _check_reach(config.host, known)
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


def mcp(
    ctx: typer.Context,
    run: Run,
    policy: Policy = "",
    in_flight: InFlight = _SERVE.in_flight,
    timeout_s: TimeoutS = _SERVE.timeout_s,
    question_chars: QuestionChars = _SERVE.question_chars,
) -> None:
    """Serve a run's agent to one program by MCP over stdin and stdout: search, read and ask."""
    with _serving():
        from seekling.serve.mcp_server import make_mcp_server

    with _desk(run, section_of(ServeConfig, ctx.params), policy=policy) as desk:
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


def _keys(model: str, path: Path | None, key_env: str) -> Keys:
    from seekling.serve.keys import KEYS, Keys

    secret = os.environ.get(key_env, "").strip() if key_env else ""
    if key_env and not secret:
        raise ConfigError(f"the environment variable {key_env} is not set; it must hold the key")
    if path is None and _is_run(Path(model)):
        path = Path(model) / KEYS
    return Keys(path, secret=secret)


def _check_reach(host: str, keys: Keys) -> None:
    from seekling.serve.gate import is_local

    if not keys.are_needed and not is_local(host):
        raise ConfigError(
            f"at {host} other machines could ask, and there is no key; make one with `seekling serve --add-key RUN "
            "NAME`, give --key-env, or listen at 127.0.0.1"
        )


@contextlib.contextmanager
def _desk(run: Path, config: ServeConfig, *, policy: str, name: str = "") -> Iterator[Desk]:
    """A run's agent, ready to be asked."""
    with _serving():
        from seekling.serve.agent_metrics import AgentMetrics
        from seekling.serve.desk import Desk
    from seekling.serve import load_agent
    from seekling.serve.episodes import SERVED, Episodes

    with (
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
    from seekling.serve.gate import GateRules, json_line
    from seekling.serve.keys import RateLimit

    def note(row: dict[str, Json]) -> None:
        count(str(row["route"]), int(str(row["status"])))
        _say(json_line(row))

    return GateRules(keys, RateLimit(config.requests_per_minute), config.body_s, open_paths, note)


def _run(app: App, config: ServeConfig, name: str) -> None:
    from seekling.serve.running import run_app

    def say(address: str) -> None:
        _say(f"serving {name} at {address} (Ctrl-C stops)")

    run_app(app, host=config.host, port=config.port, on_start=say, shutdown_s=math.ceil(config.timeout_s) + 1)


def _say(line: str) -> None:
    typer.echo(line, err=True)


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
