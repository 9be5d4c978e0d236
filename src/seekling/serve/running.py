"""An ASGI app on a port of this machine, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from seekling.errors import ConfigError

SHUTDOWN_S = 5
"""What is being answered when the server is stopped may take this long to end."""

KEEP_ALIVE_S = 75
"""Longer than a client pauses between two searches: it would meet a connection that is just being closed."""

# Hundreds of episodes may begin at once.
_BACKLOG = 2048


def run_app(
    app: Starlette, *, host: str, port: int, on_start: Callable[[str], None], shutdown_s: int = SHUTDOWN_S
) -> None:
    """Serve until the process is told to stop; what is being answered is ended first.

    Args:
        app: what to serve.
        host: address to listen at.
        port: 0 takes a free one.
        on_start: told the address, such as http://127.0.0.1:8000, when connections are taken.
        shutdown_s: what is being answered when it is told to stop may take this long.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        listening = socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error}); choose another with --host and --port") from None
    # uvicorn raises the signal that stopped it again when it has ended; both then end here.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        on_start(f"http://{host}:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=shutdown_s,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
