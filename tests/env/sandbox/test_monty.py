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
