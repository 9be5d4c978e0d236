"""A real OpenAI-compatible server on localhost, a few lines long, whose replies a test writes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Respond = Callable[[dict], tuple[int, object]]
"""The request's body -> status, and a JSON value or raw bytes."""


@dataclass
class ChatServer:
    """What a test sees of the server."""

    url: str
    requests: list[dict] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


def completion(text: str | None, *, finish: str = "stop", prompt_tokens: int = 10, completion_tokens: int = 5) -> dict:
    """The body of a chat completion."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
    }


@contextlib.contextmanager
def chat_server(respond: Respond, headers: dict[str, str] | None = None) -> Iterator[ChatServer]:
    """Serve until the test is over; one request at a time reaches `respond`."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.requests.append(body)
                seen.keys.append(self.headers.get("Authorization"))
                seen.paths.append(self.path)
                status, reply = respond(body)
            raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = ChatServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
