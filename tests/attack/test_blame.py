"""What is not a program's doing is raised as an infrastructure failure, and a program cannot pretend that it was."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from seekling.env.sandbox import Sandbox
from seekling.errors import InfrastructureError
from tests.attack.arena import (
    FUNCTIONS,
    SANE_OUTPUT,
    SANE_PROGRAM,
    Arena,
    children_of,
    fork_server_pid,
    opened,
    running,
    wait_until,
)  # fmt: skip


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with opened(wall_limit_s=60.0) as sandbox:
        yield sandbox


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_the_machine_kills_for_memory_is_not_to_blame(sandbox: Sandbox, number: signal.Signals):
    session = sandbox.open(FUNCTIONS)
    thread, outcome = running(session, "import time\nprint('begun')\ntime.sleep(50)")
    server = fork_server_pid(sandbox)
    wait_until(lambda: len(children_of(server)) == 1, "no program")
    time.sleep(0.2)
    os.kill(children_of(server)[0], number)
    thread.join(timeout=60)
    assert isinstance(outcome[0], InfrastructureError), outcome
    assert f"ended by a {number.name} that neither the program nor one of its limits explains" in str(outcome[0])
    assert session.run(SANE_PROGRAM).stdout == SANE_OUTPUT, "the session goes on in a new process"
    session.close()


def test_a_process_that_is_killed_between_programs_is_no_mistake_of_the_next(sandbox: Sandbox):
    session = sandbox.open(FUNCTIONS)
    session.run("x = 1")
    server = fork_server_pid(sandbox)
    os.kill(children_of(server)[0], signal.SIGKILL)
    wait_until(lambda: not children_of(server), "it lives")
    with pytest.raises(InfrastructureError, match="the machine ran out of memory"):
        session.run("print(x)")
    session.close()


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.kill(os.getpid(), 9)",
        "import signal\nsignal.raise_signal(9)",
        "import signal\nsignal.raise_signal(15)",
        "import ctypes, os\nprint(ctypes.CDLL(None).syscall(62, os.getpid(), 9))",
        'import os\nframe = b\'{"op": "exit", "status": -9, "cpu_s": 0}\'\n'
        "os.write(3, len(frame).to_bytes(4, 'little') + frame)\nos._exit(0)",
        'import os\nframe = b\'{"status": -9, "cpu_s": 0}\'\nfor fd in range(32):\n'
        "    try: os.write(fd, frame)\n    except OSError: pass\nos._exit(0)",
        "import os\nos.write(3, b'\\xff\\x00\\x00\\x00{')\nos._exit(9)",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_DFL)\nwhile True: pass",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.signal(signal.SIGALRM, signal.SIG_DFL)\n"
        "while True: pass",
        "import os\nos.close(3)\nwhile True: pass",
    ],
)
def test_no_program_can_make_its_own_end_look_like_the_machines(arena: Arena, program: str):
    result = arena.attack(program)  # an InfrastructureError would be raised here
    assert result.outcome in ("ok", "error", "timeout", "crashed", "protocol")


def test_the_kernels_own_limit_of_processor_time_speaks_before_it_kills(arena: Arena):
    result = arena.attack(
        "import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_CPU)\nprint(soft, hard - soft)"
    )
    assert result.stdout == "120 5\n"


@pytest.mark.parametrize("pause", range(1, 9))
def test_closing_a_session_signals_no_process_but_its_own(sandbox: Sandbox, pause: int):
    # `close` is held at one of its first lines while its session's process ends by itself in another thread and another
    # session starts: the descriptor of the one has then become that of the other.
    is_running, may_end, is_held, go_on = (threading.Event() for _ in range(4))

    def wait() -> None:
        is_running.set()
        may_end.wait(60)

    def run() -> None:
        with contextlib.suppress(InfrastructureError):
            dying.run("wait()\nimport os\nos._exit(1)")

    lines = 0

    def hold(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if "/env/sandbox/" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if lines == pause and not is_held.is_set():
            is_held.set()
            go_on.wait(3)  # not for ever: where it holds a lock, the process's owner waits for it
        return hold

    def close() -> None:
        sys.settrace(hold)
        dying.close()
        is_held.set()

    dying = sandbox.open({"wait": wait})
    runner, closer = threading.Thread(target=run), threading.Thread(target=close)
    runner.start()
    is_running.wait(60)
    closer.start()
    is_held.wait(60)
    may_end.set()
    runner.join(1)
    other = sandbox.open(FUNCTIONS)
    other.run("x = 1")
    go_on.set()
    for thread in (closer, runner):
        thread.join(60)
    result = other.run("print(x)")
    other.close()
    assert (result.outcome, result.stdout) == ("ok", "1\n")
