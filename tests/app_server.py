"""A real server of an ASGI app, in a thread of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from seekling.serve.running import KEEP_ALIVE_S


@contextlib.contextmanager
def served(app: Starlette) -> Iterator[str]:
    """Serve until the block ends; hands out the address."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(
        app, log_level="critical", lifespan="on", timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
