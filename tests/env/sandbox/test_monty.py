"""What only the portable back end has: workers of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from seekling.env.sandbox.monty import MontySession
from seekling.errors import InfrastructureError
from tests.env.sandbox.conftest import opened


@pytest.mark.skipif(sys.platform != "linux", reason="ends a process as Linux does when memory is short")
def test_a_worker_that_the_machine_kills_for_memory_is_not_to_blame():
    with opened("monty") as sandbox:
        pids: list[int] = []

        def kill() -> str:
            threading.Timer(0.1, os.kill, (pids[0], signal.SIGKILL)).start()
            return "soon"

        session = sandbox.open({"kill": kill})
        assert isinstance(session, MontySession)
        session.run("1")
        assert session._worker is not None
        pids.append(session._worker.worker_pid or 0)
        with pytest.raises(InfrastructureError, match="SIGKILL"):
            session.run("kill()\nwhile True:\n    pass")
        assert session.run("print(1)").stdout == "1\n"
        session.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is counted what a worker computes")
def test_a_worker_that_is_stopped_as_its_program_ends_is_not_used_again():
    class Ending:
        """A program that ends just after the watcher has found its time over."""

        def feed_run(self, code: str, **_: object) -> None:
            assert is_killed.wait(60)

        def __exit__(self, *_: object) -> None:
            is_given_back.set()

    class Computing:
        def __init__(self) -> None:
            self.used_s = 0.0

        def cpu_s(self) -> float:
            self.used_s += 1.0
            return self.used_s

        def signal(self, number: signal.Signals) -> None:
            is_killed.set()

        def close(self) -> None:
            pass

    is_killed, is_given_back = threading.Event(), threading.Event()
    with opened("monty") as sandbox:
        session = sandbox.open({})
        assert isinstance(session, MontySession)
        session._worker, session._process = Ending(), Computing()  # type: ignore[assignment]
        result = session.run("1")
        assert (result.outcome, result.state_lost) == ("timeout", True)
        assert is_given_back.is_set()
        assert session.run("print(1)").stdout == "1\n"
        session.close()
