"""Servers of tests: an ASGI app or a plain handler in a thread, and `seekling serve` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette

from seekling.serve.running import KEEP_ALIVE_S
from tests.patience import FAILS_AFTER_S

SEEKLING = (sys.executable, "-c", "from seekling.cli.main import main; main()")


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


class Sent(NamedTuple):
    """What came of a request."""

    status: int
    headers: Message
    raw: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.raw)


def send(url: str, body: object = None, *, method: str | None = None, **headers: str) -> Sent:
    """Send a JSON value or raw bytes by POST, or nothing by GET."""
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=raw, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=FAILS_AFTER_S) as response:
            return Sent(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Sent(error.code, error.headers, error.read())


class JsonHandler(BaseHTTPRequestHandler):
    """Reads bodies and writes replies, quietly."""

    def body(self) -> bytes:
        """What was sent."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: int, reply: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a JSON value, or raw bytes."""
        raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server until the block ends; hands out the address."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Command:
    """A command that serves."""

    url: str
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    """What it has printed."""


@contextlib.contextmanager
def serving(*words: str, folder: Path | None = None, **environment: str) -> Iterator[Command]:
    """`seekling serve` in a process of its own, killed at the end."""
    process = subprocess.Popen(
        [*SEEKLING, "serve", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("serving"):
                break
        else:
            raise AssertionError("".join(lines))
        reader.start()
        yield Command(re.search(r"http://[0-9.:]+", line)[0], process, lines)
    finally:
        process.kill()
        process.wait()
        if reader.ident:
            reader.join()
        process.stdout.close()
