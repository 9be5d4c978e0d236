"""A run folder, served to this machine's browser while a training run writes it.

The page is that of a report. Its data blocks have versions; the page asks which changed and fetches those, so that a
reader keeps their place. Only this machine can connect, only names of data blocks are served (no file by its path), and
a page of another origin can neither read them nor be answered under another host name. Nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from seekling.errors import InfrastructureError
from seekling.report.packing import Packer
from seekling.report.page import blocks_of, render
from seekling.report.read import RunReader

HOST = "127.0.0.1"
_BLOCK = re.compile(r"/blocks/([\w-]+)\.json")
_REFRESH_S = 1.0
"""The folder is looked at so often at most, and only while somebody asks."""


class Watched:
    """The present state of a run folder, as the page's data blocks.

    Raises:
        DataError: there is no such folder, or it holds nothing that a run writes.
    """

    def __init__(self, path: Path) -> None:
        self._reader = RunReader(path, is_growing=True)
        self._packer = Packer()
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._blocks: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def block(self, name: str, version: str = "") -> str | None:
        """JSON of a block; None when there is none of this name, or another version than asked for."""
        self._refresh()
        with self._lock:
            is_wanted = not version or self._versions.get(name) == version
            return self._blocks.get(name) if is_wanted else None

    def versions(self) -> dict[str, str]:
        """Version by name of the block; it is another when the block's content is."""
        self._refresh()
        return self._versions

    def page(self) -> tuple[str, str]:
        """The HTML of the page, and its content policy."""
        self._refresh()
        with self._lock:
            blocks = {**self._blocks, "versions": json.dumps(self._versions)}
        return render(blocks, extra=("live",), connect="'self'")

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._looked_at < _REFRESH_S:
                return
            # A folder that vanished, perhaps for a moment, is no reason to take the page away from its reader.
            if (self._reader.has_changed() and self._reader.path.is_dir()) or not self._blocks:
                run = self._reader.read()
                blocks = blocks_of([run], [self._packer.pack(run.files)], is_live=True)
                self._versions = {
                    name: self._versions[name] if self._blocks.get(name) == text else _digest(text)
                    for name, text in blocks.items()
                }
                self._blocks = blocks
            self._looked_at = time.monotonic()


class WatchServer(ThreadingHTTPServer):
    """Serves one run folder on this machine only; port 0 takes a free one.

    Raises:
        DataError: there is no run folder at the path.
        InfrastructureError: the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: Path, port: int) -> None:
        self.watched = Watched(path)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InfrastructureError(
                f"cannot listen on port {port} of {HOST} ({error.strerror}); choose another with --port, or 0 for any"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        # A page elsewhere whose name is made to point here (DNS rebinding) names another host.
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "wrong host\n")
            return
        address = urlsplit(self.path)
        watched = self.server.watched
        if address.path == "/":
            page, policy = watched.page()
            self._send(HTTPStatus.OK, "text/html", page, policy)
        elif address.path == "/versions.json":
            self._send(HTTPStatus.OK, "application/json", json.dumps(watched.versions()))
        elif named := _BLOCK.fullmatch(address.path):
            block = watched.block(named.group(1), parse_qs(address.query).get("version", [""])[0])
            # Gone or changed since the page asked which versions there are: no error, it will ask again.
            status = HTTPStatus.NO_CONTENT if block is None else HTTPStatus.OK
            self._send(status, "application/json", block or "")
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "no such page\n")

    def _send(self, status: HTTPStatus, kind: str, text: str, policy: str = "default-src 'none'") -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the reader went on

    def version_string(self) -> str:
        return "seekling"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
