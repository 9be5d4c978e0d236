"""A model hub on localhost: the calls that `create_repo` and `upload_folder` make without Xet, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

import yaml

from tests.app_server import JsonHandler, running

TOKEN = "hf_" + "a" * 34
OWNER = "amy"
_LARGE = (".safetensors", ".gguf")


@dataclass
class HubServer:
    """What a test sees of the hub."""

    url: str
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """By repository and path: what was committed."""
    private: dict[str, bool] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their SHA-256."""


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serve until the test is over. Who has `TOKEN` may write what belongs to `OWNER`."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.answer(404, {"error": "Not Found"})

        def do_PUT(self) -> None:
            body = self.body()
            oid = self.path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == oid
            hub.objects[oid] = body
            self.answer(200, {})

        def do_POST(self) -> None:
            body = self.body()
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                return self.answer(401, {"error": "Invalid credentials in Authorization header"})
            if self.path == "/api/repos/create":
                return self.create(json.loads(body))
            if self.path == "/api/validate-yaml":
                metadata = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
                return self.answer(200 if isinstance(metadata, dict) else 400, {"errors": [], "warnings": []})
            for name in hub.files:
                if self.path == f"/api/models/{name}/preupload/main":
                    return self.answer(200, {"files": [self.mode(each["path"]) for each in json.loads(body)["files"]]})
                if self.path == f"/{name}.git/info/lfs/objects/batch":
                    wanted = json.loads(body)["objects"]
                    return self.answer(200, {"transfer": "basic", "objects": [self.action(each) for each in wanted]})
                if self.path == f"/api/models/{name}/commit/main":
                    return self.commit(name, [json.loads(line) for line in body.splitlines()])
            return self.answer(404, {"error": "Repository not found"})

        def create(self, asked: dict) -> None:
            name = f"{asked['organization']}/{asked['name']}"
            if asked["organization"] != OWNER:
                status = 404 if asked["organization"] == "nobody" else 403
                return self.answer(status, {"error": "You don't have the rights to create a model there"})
            is_new = name not in hub.files
            hub.files.setdefault(name, {})
            hub.private.setdefault(name, asked.get("visibility") == "private")
            return self.answer(200 if is_new else 409, {"url": f"{hub.url}/{name}"})

        def mode(self, path: str) -> dict:
            return {"path": path, "uploadMode": "lfs" if path.endswith(_LARGE) else "regular", "shouldIgnore": False}

        def action(self, wanted: dict) -> dict:
            return {**wanted, "actions": {"upload": {"href": f"{hub.url}/lfs/{wanted['oid']}", "header": {}}}}

        def commit(self, name: str, lines: list[dict]) -> None:
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    hub.files[name][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[name][value["path"]] = hub.objects[value["oid"]]
            oid = hashlib.sha1(json.dumps(lines).encode()).hexdigest()
            self.answer(200, {"commitUrl": f"{hub.url}/{name}/commit/{oid}", "commitOid": oid, "success": True})

    hub = HubServer("")
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as hub.url:
        yield hub
