"""Cases 1-21 and 35-37: time, memory, output and network, however busy the machine is or is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seekling.env.sandbox import Sandbox
from tests.attack.arena import FUNCTIONS, LIMITS, Arena, Attack, attacks, opened

# A function of its own: the interpreter raises what a signal handler raises at the loop's jump back, which is outside
# of a try block around the loop, but inside of one around the call.
SPIN = "def spin():\n    while True: pass\n"
IGNORING = "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
IGNORING += "    except (OSError, ValueError): pass\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass"


@attacks(
    Attack("an endless loop ends with a traceback that names its line", "print('before')\nwhile True:\n    x = 1",
           "timeout", "before\n", 'File "<program 1>", line', state_lost=False),
    Attack("and says that variables are kept", "while True: pass", "timeout",
           error="TimeLimitExceeded: stopped after 0.25 s of processor time; variables assigned so far"),
    Attack("a loop that catches everything is killed",
           f"{SPIN}while True:\n    try: spin()\n    except BaseException: pass", "timeout",
           error="Killed after 0.6 s of processor time: the program did not stop", state_lost=True),
    Attack("a short sleep is no timeout", "import time\ntime.sleep(0.8)\nprint('awake')", stdout="awake\n"),
    Attack("threads that compute while the program waits for them are stopped",
           f"{SPIN}import threading\nt = threading.Thread(target=spin, daemon=True)\nt.start()\nt.join()",
           "timeout", error="t.join()", state_lost=False),
    Attack("a regular expression that backtracks forever is stopped",
           "import re\nprint(re.match(r'(a+)+$', 'a' * 40 + 'b'))\nprint('finished')", "timeout", ""),
    Attack("one endless call of C code is killed and what was printed before is kept",
           "print('before')\nsum(range(10**12))\nprint('after')", "timeout", "before\n"),
    Attack("a huge power is stopped", "print(7 ** 10 ** 8)", "timeout"),
    Attack("ignoring signals and clearing the timer does not help", IGNORING, "timeout", state_lost=True),
    Attack("an exception whose str takes forever is stopped",
           "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E()", "timeout", error="E"),
    Attack("an exception whose repr takes forever is stopped",
           "class E(Exception):\n    def __repr__(self):\n        while True: pass\nraise KeyError(E())",
           "timeout", error="E"),
    Attack("a destructor that loops ends with its session",
           "class D:\n    def __del__(self):\n        while True: pass\nd = D()\nprint('made')",
           "ok error timeout crashed protocol"),
    Attack("a destructor that loops during a program is stopped",
           f"{SPIN}class D:\n    def __del__(self):\n        while True:\n            try: spin()\n"
           "            except BaseException: pass\nd = D()\ndel d", "timeout"),
    Attack("an exit handler that loops is never run",
           "import atexit\n@atexit.register\ndef f():\n    while True: pass\nprint('made')", stdout="made\n"),
    Attack("time inside a host function does not count", "print(slow(0.8))", stdout="slept\n"),
    Attack("nor inside a coroutine function", "print(slow_async(0.8))", stdout="slept\n"),
    Attack("nor inside one that a thread calls", "from concurrent.futures import ThreadPoolExecutor\n"
           "with ThreadPoolExecutor(2) as pool: print(list(pool.map(slow, [0.4, 0.4])))",
           stdout="['slept', 'slept']\n"),
)  # fmt: skip
def test_no_program_runs_for_longer_than_it_may(arena: Arena, case: Attack):
    result = arena.check(case)
    if "stopped after" in result.error_text:
        assert result.cpu_s >= LIMITS.soft_limit_s


@pytest.fixture(scope="module")
def impatient() -> Iterator[Sandbox]:
    """Only for programs that sleep: a busy machine could keep any other from getting done in this time."""
    with opened(wall_limit_s=0.5) as sandbox:
        yield sandbox


def test_a_program_that_sleeps_is_stopped_by_the_clock_and_told_so_and_killed_if_it_sleeps_on(impatient: Sandbox):
    session = impatient.open(FUNCTIONS)
    result = session.run("import time\nprint('zzz')\ntime.sleep(3600)")
    assert (result.outcome, result.stdout, result.state_lost) == ("timeout", "zzz\n", False)
    assert "time.sleep(3600)" in result.error_text
    assert "TimeLimitExceeded: stopped after 0.5 s by the clock, sleeping included" in result.error_text
    assert result.wall_s >= 0.5
    assert result.cpu_s < 0.25
    result = session.run("import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(3600)")
    session.close()
    assert (result.outcome, result.state_lost) == ("timeout", True)
    assert "s by the clock, sleeping included: the program did not stop at its time limit." in result.error_text


HUGE = "b = bytearray(3_000_000_000)"
FILL = "x = []\ntry:\n    while True: x.append(bytes(1_000_000))\nexcept MemoryError: pass\n"


@attacks(
    Attack("a growing list ends in a MemoryError", "x = []\nwhile True:\n    x.append(bytes(5_000_000))",
           "memory", error="line 3", state_lost=False),
    Attack("many small objects end in one or in time", "x = []\nwhile True:\n    x.append([None] * 100)",
           "memory timeout"),
    Attack("one huge allocation is a MemoryError", f"{HUGE}\nprint('got', len(b))", "memory", "", "MemoryError"),
    Attack("deep nesting that overflows the stack harms only itself", "x = []\nfor i in range(500_000):\n    x = [x]\n"
           "import sys\nsys.setrecursionlimit(10**9)\nprint(len(repr(x)))", "crashed error memory timeout"),
    Attack("a boundless recursion limit harms only itself", "import sys\nsys.setrecursionlimit(10**9)\n"
           "def f(n):\n    return f(n + 1) + 1\nf(0)", "crashed memory timeout"),
    Attack("deep recursion is an ordinary RecursionError", "def f(n):\n    return f(n + 1) + 1\nprint(f(0))", "error",
           error="RecursionError: maximum recursion depth exceeded", state_lost=False),
    Attack("whose repeated lines are counted", "def f(n):\n    return f(n + 1) + 1\nprint(f(0))", "error",
           error="[Previous line repeated"),
    Attack("source of 5000 parentheses harms only itself", f"x = {'(' * 5000}{')' * 5000}", "error memory crashed"),
    Attack("nor do open brackets", f"x = {'[' * 100_000}", "error memory crashed"),
    Attack("nor do signs", f"x = {'-' * 100_000}1", "error memory crashed"),
)  # fmt: skip
def test_no_program_takes_more_memory_than_it_may(arena: Arena, case: Attack):
    arena.check(case)


def test_a_session_works_on_after_a_memory_error_and_when_its_memory_is_full(arena: Arena):
    result = arena.attack(f"keep = 7\n{HUGE}", "print(keep)")
    assert (result.outcome, result.stdout) == ("ok", "7\n")
    result = arena.attack(f"{FILL}y = []\nwhile True: y.append(object())", "print(len(x) > 50)")
    assert result.outcome in ("ok", "memory", "timeout")


@attacks(
    Attack("millions of prints are cut", "for i in range(3_000_000):\n    print(i)", "output_limit",
           error="OutputLimitExceeded: the output was cut after 20000 characters", state_lost=False, truncated=True),
    Attack("one print of 60 MB ends", "print('x' * 60_000_000)", "output_limit memory timeout"),
    Attack("one huge print is cut", "print('x' * 6_000_000)", "output_limit", truncated=True),
    Attack("output of exactly the cap is whole", "print('x' * 19_999)", stdout="x" * 19_999 + "\n", truncated=False),
    Attack("a huge exception message keeps its beginning", "raise ValueError('begin' + 'z' * 6_000_000 + 'end')",
           "error", error="ValueError: beginzzz", truncated=True),
    Attack("and its end", "raise ValueError('begin' + 'z' * 6_000_000 + 'end')", "error", error="zzzend"),
    Attack("surrogates, NUL and terminal escapes come out harmless",
           r"print('bad \ud800 nul \x00 ansi \x1b[31m bell \x07 tab \t csi \x9b')",
           stdout="bad ? nul \ufffd ansi \ufffd[31m bell \ufffd tab \t csi \ufffd\n"),
    Attack("in arguments and errors, too", r"raise ValueError(search_pages('\ud800')[0]['title'] + '\udfff\x1b')",
           "error", error="ValueError: Page of ??\ufffd"),
    Attack("a print flood in finally is stopped", "def flood():\n    try:\n        while True: print('x' * 1000)\n"
           "    finally:\n        while True: print('y' * 1000)\nflood()", "output_limit", truncated=True),
    Attack("a print flood that catches everything is killed", "def flood():\n    while True: print('x' * 1000)\n"
           "while True:\n    try: flood()\n    except BaseException: pass", "timeout", truncated=True),
)  # fmt: skip
def test_no_program_floods_what_reads_its_output(arena: Arena, case: Attack):
    result = arena.check(case)
    if result.outcome == "error":
        assert len(result.error_text) <= 4000


def test_writing_to_the_descriptors_of_the_standard_streams_reaches_nobody(arena: Arena, capfd):
    session = arena.sandbox.open(FUNCTIONS)  # not `attack`: capfd opens descriptors of its own
    result = arena.run(session, "import os\nfor fd in (1, 2):\n    os.write(fd, b'raw')\nprint('said')")
    session.close()
    assert (result.outcome, result.stdout) == ("ok", "said\n")
    assert "raw" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "make",
    [
        "create_connection(('127.0.0.1', {port}), 1)",
        "socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))",
        "socket(socket.AF_INET6, socket.SOCK_STREAM)",
        "socket(socket.AF_UNIX, socket.SOCK_STREAM)",
        "socket(socket.AF_UNIX).bind('\\0abstract')",
        "socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socketpair()",
        "socket(fileno=3).sendmsg([b'x'])",
        "socket(fileno=3).getpeername()",
        "getaddrinfo('localhost', 80)",
    ],
)
def test_no_program_reaches_a_network(arena: Arena, make: str):
    outcomes = "error crashed" if "getaddrinfo" in make else "error"
    arena.check(Attack(make, f"import socket\nprint(socket.{make})", outcomes, ""))
