"""The agent's server as curl, the real program, meets it: whole, streamed, refused, measured, and by MCP."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from seekling.serve.keys import Keys, add_key
from tests.patience import FAILS_AFTER_S
from tests.serve.serving import Village, serve_village

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="this machine has no curl")

ASKED = {"model": "village", "messages": [{"role": "user", "content": "When was Alder Mill built?"}]}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "curl", "version": "8"}},
}


class Curl:
    """Calls of curl, all with one key."""

    def __init__(self, village: Village, key: str) -> None:
        self._village, self._key = village, key

    def __call__(self, path: str, body: object = None, *words: str, key: str | None = None) -> tuple[int, str]:
        """Status and body of a reply."""
        said = ["-H", f"Authorization: Bearer {self._key if key is None else key}", "-w", "\n%{http_code}", *words]
        if body is not None:
            said += ["--json", json.dumps(body)]
        command = ["curl", "-sS", "--max-time", str(FAILS_AFTER_S), f"{self._village.url}{path}", *said]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text


@pytest.fixture(scope="module")
def curl(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Curl]:
    folder = tmp_path_factory.mktemp("curled")
    key = add_key(folder / "keys.json", "alice")
    with serve_village(folder, tiny_model_dir, keys=Keys(folder / "keys.json")) as village:
        yield Curl(village, key)


def test_a_completion(curl: Curl):
    status, raw = curl("/v1/chat/completions", ASKED)
    message = json.loads(raw)["choices"][0]["message"]
    assert (status, message["content"]) == (200, "1612")
    assert "It was built in 1612" in message["annotations"][0]["quote"]


def test_the_words_of_the_documentation(curl: Curl):
    # Without a content type of JSON: curl -d sends it as a form's.
    status, raw = curl("/v1/chat/completions", None, "-d", json.dumps(ASKED))
    assert (status, json.loads(raw)["choices"][0]["message"]["content"]) == (200, "1612")


def test_a_stream(curl: Curl):
    status, raw = curl("/v1/chat/completions", {**ASKED, "stream": True}, "-N")
    *events, done, nothing = raw.split("\n\n")
    assert (status, done, nothing) == (200, "data: [DONE]", "")
    said = [json.loads(each.removeprefix("data: "))["choices"][0]["delta"] for each in events]
    assert said[0]["role"] == "assistant"
    assert "search: When was Alder Mill built?" in said[1]["reasoning_content"]
    assert "".join(each.get("content", "") for each in said) == "1612"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/mcp"])
def test_a_wrong_key(curl: Curl, path: str):
    status, raw = curl(path, ASKED, key="wrong")
    assert (status, json.loads(raw)["error"]["code"]) == (401, "invalid_api_key")


def test_the_figures(curl: Curl):
    curl("/v1/chat/completions", ASKED)
    status, raw = curl("/metrics")
    assert status == 200
    assert 'seekling_questions_total{outcome="found"}' in raw
    assert 'seekling_requests_total{route="/v1/chat/completions",status="200"}' in raw
    assert curl("/metrics", key="wrong")[0] == 401


def test_mcp_begins(curl: Curl):
    status, raw = curl("/mcp", INITIALIZE, "-H", "Accept: application/json, text/event-stream")
    data = next((line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")), raw)
    reply = json.loads(data)
    assert (status, reply["id"], reply["result"]["serverInfo"]["name"]) == (200, 1, "seekling")
    assert "tools" in reply["result"]["capabilities"]
