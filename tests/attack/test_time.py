"""Cases 1-9: a program cannot run for longer than it may, however busy the machine is or is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seekling.env.sandbox.pool import ZygoteSandbox
from seekling.errors import SandboxError
from tests.attack.arena import FUNCTIONS, LIMITS, Arena

# A function of its own: the interpreter raises what a signal handler raises at the loop's jump back, which is outside
# of a try block around the loop, but inside of one around the call.
SPIN = "def spin():\n    while True: pass\n"


def test_an_endless_loop_ends_with_a_traceback_that_names_its_line(arena: Arena):
    result = arena.attack("print('before')\nx = 1\nwhile True:\n    pass")
    assert (result.outcome, result.stdout, result.state_lost) == ("timeout", "before\n", False)
    assert 'File "<program 1>", line 3' in result.error_text or 'File "<program 1>", line 4' in result.error_text
    assert "TimeLimitExceeded: stopped after 0.25 s of processor time; variables assigned so far" in result.error_text
    assert result.cpu_s >= 0.25


def test_a_loop_that_catches_everything_is_killed(arena: Arena):
    result = arena.attack(f"{SPIN}while True:\n    try: spin()\n    except BaseException: pass")
    assert (result.outcome, result.state_lost) == ("timeout", True)
    assert result.error_text.startswith("Killed after 0.6 s of processor time: the program did not stop")
    assert result.cpu_s >= 0.6


@pytest.fixture(scope="module")
def impatient() -> Iterator[ZygoteSandbox]:
    """Only for programs that sleep: a busy machine could keep any other from getting done in this time."""
    try:
        sandbox = ZygoteSandbox(LIMITS.model_copy(update={"wall_limit_s": 0.5}))
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    with sandbox:
        yield sandbox


def test_a_program_that_sleeps_is_stopped_by_the_clock_and_told_so(impatient: ZygoteSandbox):
    session = impatient.open(FUNCTIONS)
    result = session.run("import time\nprint('zzz')\ntime.sleep(3600)")
    session.close()
    assert (result.outcome, result.stdout, result.state_lost) == ("timeout", "zzz\n", False)
    assert "time.sleep(3600)" in result.error_text
    assert "TimeLimitExceeded: stopped after 0.5 s by the clock, sleeping included" in result.error_text
    assert result.wall_s >= 0.5
    assert result.cpu_s < 0.25


def test_a_program_that_sleeps_on_is_killed(impatient: ZygoteSandbox):
    session = impatient.open(FUNCTIONS)
    result = session.run("import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(3600)")
    session.close()
    assert (result.outcome, result.state_lost) == ("timeout", True)
    assert "s by the clock, sleeping included: the program did not stop at its time limit." in result.error_text


def test_a_short_sleep_is_no_time_out(arena: Arena):
    result = arena.attack("import time\ntime.sleep(0.8)\nprint('awake')")  # longer than the limits of processor time
    assert (result.outcome, result.stdout) == ("ok", "awake\n")


def test_threads_that_compute_while_the_program_waits_for_them_are_stopped(arena: Arena):
    program = f"{SPIN}import threading\nt = threading.Thread(target=spin, daemon=True)\nt.start()\nt.join()"
    result = arena.attack(program)
    assert (result.outcome, result.state_lost) == ("timeout", False)
    assert "t.join()" in result.error_text


def test_a_regular_expression_that_backtracks_forever_is_stopped(arena: Arena):
    result = arena.attack("import re\nprint(re.match(r'(a+)+$', 'a' * 40 + 'b'))\nprint('finished')")
    assert (result.outcome, result.stdout) == ("timeout", "")


def test_one_endless_call_of_c_code_is_killed_and_what_was_printed_before_is_kept(arena: Arena):
    result = arena.attack("print('before')\nsum(range(10**12))\nprint('after')")
    assert (result.outcome, result.stdout) == ("timeout", "before\n")


def test_a_huge_power_is_stopped(arena: Arena):
    assert arena.attack("print(7 ** 10 ** 8)").outcome == "timeout"


def test_ignoring_signals_and_clearing_the_timer_does_not_help(arena: Arena):
    program = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
while True:
    pass
"""
    result = arena.attack(program)
    assert (result.outcome, result.state_lost) == ("timeout", True)


@pytest.mark.parametrize(("method", "error"), [("__str__", "E()"), ("__repr__", "KeyError(E())")])
def test_an_exception_whose_message_takes_forever_is_stopped(arena: Arena, method: str, error: str):
    result = arena.attack(f"class E(Exception):\n    def {method}(self):\n        while True: pass\nraise {error}")
    assert result.outcome == "timeout"
    assert "E" in result.error_text


def test_a_destructor_that_loops_ends_with_its_session(arena: Arena):
    arena.attack("class D:\n    def __del__(self):\n        while True: pass\nd = D()\nprint('made')")


def test_a_destructor_that_loops_during_a_program_is_stopped(arena: Arena):
    result = arena.attack(
        f"{SPIN}class D:\n    def __del__(self):\n        while True:\n            try: spin()\n"
        "            except BaseException: pass\nd = D()\ndel d"
    )
    assert result.outcome == "timeout"


def test_an_exit_handler_that_loops_is_never_run(arena: Arena):
    result = arena.attack("import atexit\n@atexit.register\ndef f():\n    while True: pass\nprint('made')")
    assert (result.outcome, result.stdout) == ("ok", "made\n")


@pytest.mark.parametrize("function", ["slow", "slow_async"])
def test_time_inside_a_host_function_does_not_count(arena: Arena, function: str):
    result = arena.attack(f"print({function}(0.8))")
    assert (result.outcome, result.stdout) == ("ok", "slept\n")


def test_time_inside_a_host_function_called_by_a_thread_does_not_count(arena: Arena):
    program = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(slow, [0.4, 0.4])))
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == ("ok", "['slept', 'slept']\n")
