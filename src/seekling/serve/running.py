"""An ASGI app on a port of this machine, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from seekling.errors import ConfigError

App = Starlette
"""What is served."""

KEEP_ALIVE_S = 75
"""Longer than a client pauses between two searches: it would meet a connection that is just being closed."""

HEAD_S = 10
"""A connection that does not say within this time what it wants is closed."""

# Hundreds of episodes may begin at once.
_BACKLOG = 2048


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, but whoever sends the head of a request too slowly is hung up on."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """The first byte of a request is there."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """The head of a request is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self._late or self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def run_app(app: App, *, host: str, port: int, on_start: Callable[[str], None], shutdown_s: int = 5) -> None:
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
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error}); choose another with --host and --port") from None
    # uvicorn raises the signal that stopped it again when it has ended; both then end here.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        on_start(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            app,
            log_config=None,  # its warnings go where all others go
            log_level="warning",
            access_log=False,
            http=ImpatientProtocol,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=shutdown_s,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
