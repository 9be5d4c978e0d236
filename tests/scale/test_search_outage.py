"""The search server of a run on Ray is killed, and is away for 20 seconds: the run waits, and learns the same.

SEEKLING_KILLS=10 pytest -m long tests/scale/test_search_outage.py does so at ten random points, in ten runs.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import urllib3

from seekling.config import Recipe
from seekling.pipeline.stages import run_recipe
from tests.patience import wait_until
from tests.pipeline.killing import start_command
from tests.pipeline.runs import QuietReporter
from tests.scale.runs import assert_balanced, assert_same_rl, go_on, scaled
from tests.scale.strikes import POINTS, wait_for_group

pytest.importorskip("ray")

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]  # of Ray's own files and sockets

AWAY_S = 20.0


class Server:
    """A search server in a process of its own, always at the same address."""

    def __init__(self, index: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._index = index
        self._process: BaseProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = start_command(["serve", "--search-only", self._index, "--port", self.port])
        wait_until(self._answers)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _answers(self) -> bool:
        assert self._process.is_alive(), "the server ended"
        try:
            return urllib3.request("GET", f"{self.url}/health", retries=False, timeout=1.0).status == 200
        except urllib3.exceptions.HTTPError:
            return False


@pytest.fixture(scope="module")
def server(begun):
    server = Server(begun[1] / "index")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def searching(begun, server, tmp_path_factory) -> tuple[Recipe, Path]:
    """A run at the beginning of its RL that searches at the server."""
    retrieval = begun[0].retrieval.model_copy(update={"url": server.url})
    recipe = begun[0].model_copy(update={"retrieval": retrieval})
    run = tmp_path_factory.mktemp("runs") / "until rl"
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, run, QuietReporter("rl", 1))
    return recipe, run


@pytest.fixture(scope="module")
def undisturbed(searching, tmp_path_factory) -> Path:
    """The run that all others must be like, in one process."""
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    go_on(*searching, folder)
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_a_search_server_that_is_away_for_20_seconds_costs_nothing_but_the_wait(
    server, searching, undisturbed, tmp_path, point
):
    recipe, run = scaled(searching[0], engine="ray", num_samplers=1), tmp_path / "run"
    dice, is_over, away_s = random.Random(point), threading.Event(), []

    def strike() -> None:
        wait_for_group(run, dice.randint(1, 8), dice, is_over.is_set)
        server.kill()
        began = time.monotonic()
        is_over.wait(AWAY_S)
        away_s.append(time.monotonic() - began)
        server.start()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        go_on(recipe, searching[1], run)
    finally:
        is_over.set()
        thread.join()
    assert away_s[0] >= AWAY_S, "the run was over before the server was back: it did not search"
    assert_same_rl(run, undisturbed)
    assert assert_balanced(run, recipe) == []
