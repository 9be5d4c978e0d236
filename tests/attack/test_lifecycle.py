"""Cases 55-58: who dies with whom, how many sessions fit, and a storm of everything at once."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seekling.env.sandbox import Sandbox
from seekling.errors import InfrastructureError
from tests.attack.arena import (
    FUNCTIONS,
    LIMITS,
    SANE_OUTPUT,
    SANE_PROGRAM,
    SECRETS,
    children_of,
    fork_server_pid,
    is_running,
    num_fds,
    opened,
    running,
    wait_until,
)

STUBBORN = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 0)
while True: pass
"""
TRAINER = """
import sys, threading, time
from seekling.config import SandboxConfig
from seekling.env.sandbox import Sandbox
sandbox = Sandbox(SandboxConfig(soft_limit_s=50, hard_limit_s=60), without={without!r})
for _ in range(2):
    session = sandbox.open({{}})
    threading.Thread(target=session.run, args=({program!r},), daemon=True).start()
idle = sandbox.open({{}})
idle.run("x = 1")
time.sleep(0.3)
print(sandbox.fork_server_pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with opened() as sandbox:
        yield sandbox


def family_of(pid: int) -> list[int]:
    family = [pid]
    for member in family:
        family += children_of(member)
    return family


@pytest.mark.parametrize("without", [(), ("landlock", "namespaces")], ids=["all layers", "only the required ones"])
def test_nothing_survives_when_the_trainer_is_killed(without: tuple[str, ...]):
    script = TRAINER.format(program=STUBBORN, without=without)
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    line = trainer.stdout.readline()
    family = family_of(int(line))
    assert len(family) >= 4, f"a fork server and three programs were expected: {family}"
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    wait_until(lambda: not any(is_running(pid) for pid in family), "something survived the trainer")


@pytest.mark.parametrize("which", ["the process that was started", "the process that forks"])
def test_a_killed_fork_server_takes_its_programs_along_and_is_replaced(
    sandbox: Sandbox, which: str, caplog: pytest.LogCaptureFixture
):
    busy, idle = sandbox.open(FUNCTIONS), sandbox.open(FUNCTIONS)
    assert idle.run("x = 1").outcome == "ok"
    thread, results = running(busy, STUBBORN)
    family = family_of(sandbox.fork_server_pid)
    with caplog.at_level(logging.WARNING, logger="seekling.sandbox"):
        os.kill(sandbox.fork_server_pid if which.endswith("started") else fork_server_pid(sandbox), signal.SIGKILL)
        thread.join(timeout=60)
        assert isinstance(results[0], InfrastructureError), "the episode must end as an infrastructure failure"
        with pytest.raises(InfrastructureError):
            idle.run("print(x)")
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1, lines
    assert "the sandbox's fork server (process" in lines[0]
    assert "2 open session(s) are lost and end as infrastructure failures; starting another one" in lines[0]
    wait_until(lambda: not any(is_running(pid) for pid in family), "something survived the fork server")
    fresh = sandbox.open(FUNCTIONS)
    assert fresh.run(SANE_PROGRAM).stdout == SANE_OUTPUT
    for session in (busy, idle, fresh):
        session.close()


def test_a_sandbox_whose_fork_server_died_while_idle_opens_the_next_session(sandbox: Sandbox):
    family = family_of(sandbox.fork_server_pid)
    os.kill(sandbox.fork_server_pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in family), "it is alive")
    session = sandbox.open(FUNCTIONS)
    assert session.run(SANE_PROGRAM).stdout == SANE_OUTPUT
    session.close()


def test_a_failing_tool_server_ends_the_program_and_reaches_the_trainer(sandbox: Sandbox):
    def search_pages(query: str) -> str:
        raise InfrastructureError("the search server is down")

    session = sandbox.open({"search_pages": search_pages})
    with pytest.raises(InfrastructureError, match="the search server is down"):
        session.run("try: search_pages('x')\nexcept Exception: pass\nwhile True: pass")
    wait_until(lambda: not children_of(fork_server_pid(sandbox)), "the program went on")
    session.close()


def test_a_hundred_sessions_are_open_at_once_and_cost_little(sandbox: Sandbox):
    before = num_fds()
    sessions = [sandbox.open(FUNCTIONS) for _ in range(100)]
    for number, session in enumerate(sessions):
        assert session.run(f"x = {number}").outcome == "ok"
    assert [session.run("print(x)").stdout for session in sessions] == [f"{number}\n" for number in range(100)]
    if os.geteuid() == 0:  # nobody else may look at these processes
        pids = children_of(fork_server_pid(sandbox))
        assert len(pids) == 100
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
        pss = [int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:")]
        assert sum(pss) / 100 <= 3 * 1024, f"{sum(pss) / 100:.0f} kB a session"
    for session in sessions:
        session.close()
        session.close()
    assert num_fds() == before
    wait_until(lambda: not children_of(fork_server_pid(sandbox)), "sessions are left")


def test_closing_a_session_ends_the_program_that_runs_in_it(sandbox: Sandbox):
    session = sandbox.open(FUNCTIONS)
    thread, ends = running(session, STUBBORN)
    session.close()
    thread.join(timeout=60)
    assert isinstance(ends[0], InfrastructureError)
    wait_until(lambda: not children_of(fork_server_pid(sandbox)), "the program went on")
    with pytest.raises(InfrastructureError, match="closed"):
        session.run("1")


def test_a_process_that_cannot_be_confined_is_an_infrastructure_failure(sandbox: Sandbox):
    # No program can bring this about: it would have to end its process before it is sent to it.
    session = sandbox.open(FUNCTIONS)
    os.kill(fork_server_pid(sandbox), signal.SIGSTOP)
    orphan = sandbox.open(FUNCTIONS)
    timer = threading.Timer(0.2, os.kill, (sandbox.fork_server_pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(InfrastructureError):
        orphan.run("print(1)")
    timer.join()
    for each in (session, orphan):
        each.close()


def test_a_program_of_a_million_characters_is_not_run(sandbox: Sandbox):
    session = sandbox.open(FUNCTIONS)
    result = session.run("x = 1\n" * 200_000)
    assert (result.outcome, result.state_lost) == ("error", False)
    assert result.error_text == "The program of 1,200,000 characters was not run; at most 1,000,000 are allowed."
    session.close()


def test_a_closed_sandbox_leaves_nothing_and_opens_nothing():
    before, threads = num_fds(), threading.active_count()
    sandbox = Sandbox(LIMITS)
    session = sandbox.open(FUNCTIONS)
    session.run("x = 1")
    family = family_of(sandbox.fork_server_pid)
    sandbox.close()
    sandbox.close()
    wait_until(lambda: not any(is_running(pid) for pid in family), "processes are left")
    assert (num_fds(), threading.active_count()) == (before, threads)
    with pytest.raises(InfrastructureError):
        sandbox.open(FUNCTIONS)


HOSTILE = [
    "while True: pass",
    "import time\ntime.sleep(60)",
    STUBBORN,
    "x = []\nwhile True: x.append(bytes(1_000_000))",
    "print('x' * 6_000_000)",
    "import os\nfor i in range(1000):\n    try: os.fork()\n    except OSError: pass",
    "import os\nos._exit(1)",
    "import os\nos.kill(-1, 9)",
    "import ctypes\nctypes.string_at(0)",
    "import os\nos.write(3, b'\\xff' * 10_000)",
    "import os\nos.close(3)",
    "while True:\n    try: search_pages('x')\n    except RuntimeError: pass",
    "import builtins\nbuiltins.print = builtins.len = None\nsearch_pages = None",
    "import threading, time\nthreading.stack_size(65536)\n"
    "for i in range(500): threading.Thread(target=lambda: time.sleep(9)).start()",
    "raise ValueError('z' * 3_000_000)",
    "print(open('/etc/passwd').read())",
]
BENIGN = [
    (
        "print([search_pages(str({n}))[0]['title'] for _ in range(3)])",
        "['Page of {n}', 'Page of {n}', 'Page of {n}']\n",
    ),
    ("from collections import Counter\nprint(Counter('a' * {n} + 'bb').most_common())", None),
    ("import re\nprint(re.findall(r'\\d+', 'x{n}y{n}'))", "['{n}', '{n}']\n"),
    (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p:\n"
        "    print([r[0]['title'] for r in p.map(search_pages, ['{n}', 'b'])])",
        "['Page of {n}', 'Page of b']\n",
    ),
    ("try:\n    read_section('{n}')\nexcept KeyError as e:\n    print('caught', e)", "caught '{n}'\n"),
]


def test_a_storm_of_hostile_and_benign_programs_gives_exact_benign_outputs():
    # A generous limit by the clock: 32 programs share the cores, and a benign one must not look endless because of it.
    limits = LIMITS.model_copy(update={"wall_limit_s": 20.0})
    dice = random.Random(0)
    jobs: list[tuple[str, str | None]] = [(program, None) for program in HOSTILE] * 2
    for n in range(64):
        program, expected = BENIGN[n % len(BENIGN)]
        if expected is None:
            expected = f"[('a', {n}), ('b', 2)]\n" if n >= 2 else f"[('b', 2), ('a', {n})]\n" if n else "[('b', 2)]\n"
        jobs.append((program.replace("{n}", str(n)), expected.replace("{n}", str(n))))
    dice.shuffle(jobs)
    with Sandbox(limits) as sandbox:

        def run(job: tuple[str, str | None]) -> str:
            session = sandbox.open(FUNCTIONS)
            result = session.run(job[0])
            session.close()
            said = result.stdout + result.error_text
            if any(secret in said for secret in SECRETS):
                return f"leak: {said}"
            if job[1] is not None and (result.outcome, result.stdout) != ("ok", job[1]):
                return f"{job[0]!r} gave {result}"
            return ""

        with ThreadPoolExecutor(32) as pool:
            problems = [problem for problem in pool.map(run, jobs) if problem]
    assert not problems
