"""Cases 43-51: a program that speaks to the host by itself, or wears it out with calls."""

from __future__ import annotations

import pytest

from seekling.env.sandbox import OUTCOMES
from tests.attack.arena import FUNCTIONS, Arena, Attack, attacks

RAW = """
import json, os, time
def raw(data):
    view = memoryview(data)
    while view:
        view = view[os.write(3, view):]
def send(value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    raw(len(body).to_bytes(4, "little") + body)
"""


DEEP = 'b\'{"op":"call","name":"search_pages","kwargs":{},"args":\' + b"[" * 900 + b"]" * 900 + b"}"'
IGNORING = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
BOMBS = ("b'[' * 2_000_000", "b'[' * 500_000", "b'9' * 1_000_000", "b'{\"op\":' * 100_000")
NOT_JSON = ("{1, 2}", "object()", "b'bytes'", "lambda: 1", "open")


@attacks(
    Attack("a frame of two gigabytes is refused by its length",
           RAW + "raw((0x7fffffff).to_bytes(4, 'little') + b'x' * 1000)\nwhile True: pass",
           "protocol", error="a frame of 2,147,483,647 bytes", state_lost=True),
    Attack("a frame that never ends runs into the time limit",
           RAW + IGNORING + "raw(b'\\x10\\x00\\x00\\x00{')\nwhile True: pass", "timeout", state_lost=True),
    *(Attack(f"a JSON bomb is refused: {each}", RAW + f"send({each})\nwhile True: pass", "protocol", state_lost=True)
      for each in BOMBS),
    Attack("output frames beyond the cap are thrown away",
           RAW + "while True:\n    send({'op': 'out', 'text': 'x' * 10_000})", "output_limit", state_lost=True,
           truncated=True),
    Attack("a huge argument is refused in words", "search_pages('x' * 5_000_000)", "error",
           error="ValueError: search_pages() got arguments of 5,"),
    Attack("a deep argument is refused in words",
           "x = []\nfor i in range(100_000):\n    x = [x]\nsearch_pages(x)", "error", error="RecursionError"),
    Attack("a deep argument sent raw is refused", RAW + f"send({DEEP})\nwhile True: pass", "protocol timeout"),
    *(Attack(f"not JSON: {each}", f"search_pages({each})", "error",
             error="TypeError: search_pages() takes None, bool, int, float, str, list, tuple and dict")
      for each in NOT_JSON),
    Attack("too many calls are an error", "for i in range(1_000_000):\n    search_pages(str(i))", "error",
           error="RuntimeError: more than 50 calls of provided functions in one program"),
    Attack("a program that does not stop calling is killed",
           "while True:\n    try: search_pages('x')\n    except RuntimeError: pass", "protocol", state_lost=True),
    Attack("a program that closes its channel harms only itself", "import os\nos.close(3)\nprint('x')",
           "crashed timeout", state_lost=True),
    Attack("host errors are caught by their types", """
for kind, cls in (("value", ValueError), ("type", TypeError), ("tool", ToolError), ("tool", ValueError)):
    try:
        boom(kind)
    except cls as e:
        print(type(e).__name__, e)
""", stdout="ValueError boom value\nTypeError boom type\nToolError boom tool\nToolError boom tool\n"),
    Attack("concurrent calls from threads get their own answers", """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    titles = list(pool.map(lambda i: search_pages(str(i))[0]["title"], range(40)))
print(titles == [f"Page of {i}" for i in range(40)])
""", stdout="True\n"),
)  # fmt: skip
def test_no_program_deceives_or_wears_out_the_host(arena: Arena, case: Attack):
    arena.check(case)


@pytest.mark.parametrize(
    "frame",
    [
        {"op": "exec", "cmd": "touch /tmp/pwned"},
        {"op": ["call"]},
        {"op": "call", "name": ["unhashable"], "args": [], "kwargs": {}},
        {"op": "call", "name": "search_pages", "args": 5, "kwargs": None},
        {"op": "call", "name": "search_pages", "args": {"x": 1}, "kwargs": [1, 2]},
        {"op": "call", "name": "search_pages"},
        {"op": "call", "name": "x" * 10_000, "args": [], "kwargs": {}},
        {"op": "out", "text": 5},
        {"op": "done", "outcome": "ok", "error": None},
        {"op": "done", "outcome": "crashed", "error": ""},
        {"op": "done", "outcome": "ok", "error": "", "more": 1},
        {"op": "exit", "status": -9, "cpu_s": 0},
        {"op": "ready", "cpu_s": 0},
        {"op": "ready", "cpu_s": -1},
        {"op": "ready", "cpu_s": True},
        {"op": "ready", "cpu_s": 10**400},
        {"op": "ready", "cpu_s": float("nan")},
        [1, 2, 3],
        "text",
        None,
    ],
    ids=lambda frame: str(frame)[:60],
)
def test_a_malformed_frame_ends_the_program(arena: Arena, frame: object):
    result = arena.attack(RAW + f"nan = float('nan')\nsend({frame!r})\nwhile True: pass")
    assert (result.outcome, result.state_lost) == ("protocol", True)
    assert result.error_text.startswith("Killed: the program ")


@pytest.mark.parametrize("name", ["__import__", "__class__", "open", "search_pages.__globals__", ""])
def test_only_the_provided_functions_can_be_called(arena: Arena, name: str):
    program = f"""
call = search_pages.__closure__[0].cell_contents
print(call({name!r}, ["os"], {{}}))
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout) == (
        "ok",
        str({"error": "NameError", "text": f"there is no function {name!r} here"}) + "\n",
    )


@pytest.mark.parametrize(
    "frame",
    [{"op": "done", "outcome": "ok", "error": ""}, {"op": "done", "outcome": "timeout", "error": "e" * 500_000}],
    ids=lambda frame: str(frame)[:60],
)
def test_a_forged_ending_deceives_only_the_forger(arena: Arena, frame: object):
    session = arena.sandbox.open(FUNCTIONS)
    first = arena.run(session, RAW + f"send({frame!r})\nwhile True: pass")
    second = arena.run(session, "print(search_pages('x'))")
    session.close()
    assert {first.outcome, second.outcome} <= set(OUTCOMES)
    assert first.cpu_s < 100
    arena.check_surroundings()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("boom('value')", "ValueError: boom value"),
        ("boom('tool')", "ToolError: boom tool"),
        ("boom('custom')", "RuntimeError: _CustomError: boom custom"),
        ("read_section('nope:1')", "KeyError: 'nope:1'"),
        ("huge()", "RuntimeError: huge() returned something that cannot be passed on: 20,0"),
        ("not_json()", "RuntimeError: not_json() returned something that cannot be passed on: Object of type object"),
        ("search_pages()", "TypeError: search_pages() missing 1 required positional argument: 'query'"),
        ("search_pages(q='a')", "TypeError: search_pages() got an unexpected keyword argument 'q'"),
    ],
)
def test_a_failing_host_function_is_an_exception_inside_the_program(arena: Arena, call: str, message: str):
    result = arena.attack(call)
    assert result.outcome == "error"
    assert message in result.error_text.splitlines()[-1]
    assert 'File "<program 1>", line 1, in <module>' in result.error_text


def test_a_call_from_a_thread_after_the_end_is_refused(arena: Arena):
    session = arena.sandbox.open(FUNCTIONS)
    program = """
import threading, time
errors = []
def late():
    time.sleep(0.05)
    try:
        print(search_pages("x"))
    except RuntimeError as e:
        errors.append(str(e))
threading.Thread(target=late).start()
"""
    arena.run(session, program)
    result = arena.run(session, "time.sleep(0.1)\nprint('second')")
    session.close()
    assert result.outcome == "ok"
    assert result.stdout.endswith("second\n")
    arena.check_surroundings()
