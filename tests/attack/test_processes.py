"""Cases 22-27: a program cannot make, signal or outlive processes."""

from __future__ import annotations

import time

import pytest

from tests.attack.arena import FUNCTIONS, Arena


def test_forking_is_refused(arena: Arena):
    program = """
import os
for i in range(100):
    try:
        os.fork()
        print("forked")
    except OSError as e:
        if i == 0:
            print(i, e)
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "0 [Errno 1] Operation not permitted\n")


@pytest.mark.parametrize(
    "call",
    [
        "subprocess.run(['/bin/sh', '-c', 'touch /tmp/pwned'])",
        "subprocess.check_output('id', shell=True)",
        "os.popen('touch /tmp/pwned').read()",
        "os.posix_spawn('/bin/sh', ['sh', '-c', 'touch /tmp/pwned'], {})",
        "os.execv('/bin/sh', ['sh', '-c', 'touch /tmp/pwned'])",
        "__import__('pty').fork()",
        "__import__('multiprocessing').Process(target=print).start()",
    ],
)
def test_starting_another_program_is_refused(arena: Arena, call: str):
    result = arena.attack(f"import os, subprocess\nprint('got', {call})")
    assert (result.outcome, result.stdout) == ("error", "")


def test_os_system_runs_nothing(arena: Arena):
    result = arena.attack("import os\nprint(os.system('touch /tmp/pwned') != 0)")
    assert (result.outcome, result.stdout) == ("ok", "True\n")


@pytest.mark.parametrize("target", ["os.getppid()", "-1", "1", "0", "2"])
@pytest.mark.parametrize("number", ["9", "19"])
def test_no_process_can_be_signalled(arena: Arena, target: str, number: str):
    result = arena.attack(f"import os\ntry:\n    os.kill({target}, {number})\nexcept OSError as e: print(e)")
    assert (result.outcome, result.stdout) == ("ok", "[Errno 1] Operation not permitted\n")


def test_no_thread_or_group_can_be_signalled_by_another_road(arena: Arena):
    program = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(234, os.getppid(), os.getppid(), 9), ctypes.get_errno())
print(libc.syscall(200, os.getppid(), 9), ctypes.get_errno())
print(libc.syscall(129, os.getppid(), 9, 0), ctypes.get_errno())
for call in (lambda: os.killpg(0, 9), lambda: signal.pidfd_send_signal(3, 9), lambda: os.pidfd_open(os.getppid())):
    try:
        print(call())
    except OSError as e: print(e.errno)
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "-1 1\n-1 1\n-1 1\n1\n1\n1\n")


def test_threads_left_spinning_do_not_outlive_the_session(arena: Arena):
    program = """
import threading
def spin():
    while True:
        pass
for i in range(3):
    threading.Thread(target=spin, daemon=bool(i % 2)).start()
print('main done')
"""
    result = arena.attack(program)
    assert result.outcome in ("ok", "timeout")


def test_threads_left_behind_use_no_processor_between_programs(arena: Arena):
    session = arena.sandbox.open(FUNCTIONS)
    program = """
import threading, time
n = 0
def spin():
    global n
    while True:
        n += 1
        time.sleep(0.0001)
threading.Thread(target=spin).start()
"""
    arena.run(session, program)
    first = arena.run(session, "print(n)").stdout
    time.sleep(0.3)
    second = arena.run(session, "print(n)").stdout
    session.close()
    assert int(second) - int(first) < 200, "it went on while no program ran"
    arena.check_surroundings()


def test_a_thousand_threads_harm_only_their_program(arena: Arena):
    program = """
import threading
threading.stack_size(64 * 1024)
lock = threading.Lock()
lock.acquire()
n = 0
try:
    while True:
        threading.Thread(target=lock.acquire, daemon=True).start()
        n += 1
except (RuntimeError, MemoryError) as e:
    print(n, e)
"""
    result = arena.attack(program)
    assert result.outcome in ("ok", "timeout")
    if result.outcome == "ok":
        assert int(result.stdout.split()[0]) < 1000


def test_os_exit_loses_the_variables_and_says_so(arena: Arena):
    result = arena.attack("import os\nprint('out')\nos._exit(3)")
    assert (result.outcome, result.stdout, result.state_lost) == ("crashed", "out\n", True)
    assert result.error_text == "The program ended its own interpreter (exit status 3). Its variables are lost."


def test_sys_exit_zero_is_success(arena: Arena):
    result = arena.attack("import sys\nprint('bye')\nsys.exit(0)")
    assert (result.outcome, result.stdout, result.error_text) == ("ok", "bye\n", "")


def test_sys_exit_one_is_an_error(arena: Arena):
    result = arena.attack("import sys\nsys.exit(1)")
    assert (result.outcome, result.state_lost) == ("error", False)
    assert result.error_text.endswith("SystemExit: 1")


@pytest.mark.parametrize(
    ("program", "signal_name"),
    [
        ("import os\nos.abort()", ""),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        (
            "import types\ndef g(): pass\nc = g.__code__.replace(co_code=bytes([100, 255, 83, 0]) * 50, co_consts=())\n"
            "types.FunctionType(c, {})()",
            "",
        ),
    ],
    ids=["abort", "null pointer", "bad bytecode"],
)
def test_a_crash_harms_only_its_program(arena: Arena, program: str, signal_name: str):
    result = arena.attack(program)
    assert result.outcome in ("crashed", "error", "ok", "timeout", "memory")
    assert signal_name in result.error_text
