"""Dockerfile and compose.yaml, as far as can be held without an engine: their commands run, as they are written."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import seekling
from tests.app_server import SEEKLING, serving

ROOT = Path(seekling.__file__).parents[2]
if not (ROOT / "compose.yaml").is_file():
    pytest.skip("an installed package: no repository with a compose.yaml", allow_module_level=True)
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def instructions():
    """Name and words of every instruction of the Dockerfile, in order."""
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def interpolated(text, environment):
    """As compose does it, for the two forms that the file uses."""

    def value(match):
        name, form, word = match.groups()
        found = environment.get(name, "")
        return (found or word) if form == ":-" else (word if found else "")

    done = re.sub(r"\$\{(\w+)(:[-+])([^}]*)\}", value, text)
    assert "$" not in done, done
    return done


def command_of(service, **environment):
    """The words behind `seekling`, which is the image's entry point."""
    return shlex.split(interpolated(COMPOSE["services"][service]["command"], environment))


def started(words, folder, **environment):
    """What the container runs, in its working folder, on a free port instead of 8000."""
    command, *words = ["0" if word == "8000" else word for word in words]
    assert command == "serve"
    return serving(*words, folder=folder, **environment)


@pytest.fixture
def folder(trained_run, tmp_path):
    """What is mounted at /data."""
    shutil.copytree(trained_run, tmp_path / "runs" / "demo")
    return tmp_path


def health_check(url):
    """The image's own, against another port."""
    port = url.rpartition(":")[2]
    check = next(words for name, words in instructions() if name == "HEALTHCHECK")
    python, *words = json.loads(check.partition("CMD")[2])
    assert python == "python"
    words = [word.replace(":8000/", f":{port}/") for word in words]
    return subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode


def test_the_agents_command_starts_with_a_key_from_the_environment_and_is_healthy(folder):
    key = {"SEEKLING_KEY": "k" * 32}
    with started(command_of("agent", **key), folder, **key) as server:
        assert health_check(server.url) == 0
    assert health_check(server.url) != 0


def test_without_any_key_the_agent_refuses_and_with_a_file_of_keys_it_starts(folder):
    with pytest.raises(AssertionError, match="there is no key"), started(command_of("agent"), folder):
        pass
    subprocess.run([*SEEKLING, "serve", "--add-key", "runs/demo", "alice"], cwd=folder, check=True, capture_output=True)
    with started(command_of("agent"), folder) as server:
        assert health_check(server.url) == 0


def test_the_search_servers_command_starts_and_is_healthy(folder):
    with started(command_of("search"), folder) as server:
        assert health_check(server.url) == 0


def test_what_the_dockerfile_copies_is_there_and_not_ignored():
    ignored, *kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored == "*"
    kept = [line.removeprefix("!") for line in kept if line.startswith("!")]
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY" and not words.startswith("--from")]
    assert len(copied) == 3
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists(), source
        assert source.removesuffix("/.") in kept, source


def test_containers_are_nobody_and_reach_no_further_than_they_must():
    users = [words for name, words in instructions() if name == "USER"]
    assert users == ["1000:1000"]
    assert [name for name, _ in instructions()].index("USER") < [name for name, _ in instructions()].index("ENTRYPOINT")
    for service in COMPOSE["services"].values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "ports" not in COMPOSE["services"]["search"]  # it has no keys
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.search(r"'\.\[(.*?)\]'", " ".join(words for name, words in instructions() if name == "RUN"))[1]
    for extra in wanted.split(","):
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
