"""A real OpenAI-compatible server on localhost, a few lines long, whose replies a test writes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from tests.app_server import JsonHandler, running

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

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = json.loads(self.body())
            with lock:
                seen.requests.append(body)
                seen.keys.append(self.headers.get("Authorization"))
                seen.paths.append(self.path)
                status, reply = respond(body)
            self.answer(status, reply, headers)

    seen = ChatServer("")
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        seen.url = f"{url}/v1"
        yield seen
