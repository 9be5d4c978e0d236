"""Cases 43-51: a program that speaks to the host by itself, or wears it out with calls."""

from __future__ import annotations

import pytest

from seekling.env.sandbox import OUTCOMES
from tests.attack.arena import FUNCTIONS, Arena

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


def test_a_frame_of_two_gigabytes_is_refused_by_its_length(arena: Arena):
    result = arena.attack(RAW + "raw((0x7fffffff).to_bytes(4, 'little') + b'x' * 1000)\nwhile True: pass")
    assert (result.outcome, result.state_lost) == ("protocol", True)
    assert "a frame of 2,147,483,647 bytes" in result.error_text


def test_a_frame_that_never_ends_runs_into_the_time_limit(arena: Arena):
    result = arena.attack(
        RAW
        + "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        + "raw(b'\\x10\\x00\\x00\\x00{')\nwhile True: pass"
    )
    assert (result.outcome, result.state_lost) == ("timeout", True)


@pytest.mark.parametrize("body", ["b'[' * 2_000_000", "b'[' * 500_000", "b'9' * 1_000_000", "b'{\"op\":' * 100_000"])
def test_a_json_bomb_is_refused(arena: Arena, body: str):
    result = arena.attack(RAW + f"send({body})\nwhile True: pass")
    assert (result.outcome, result.state_lost) == ("protocol", True)


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
    [
        {"op": "done", "outcome": "ok", "error": ""},
        {"op": "done", "outcome": "timeout", "error": "e" * 500_000},
    ],
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


def test_output_frames_beyond_the_cap_are_thrown_away(arena: Arena):
    result = arena.attack(RAW + "while True:\n    send({'op': 'out', 'text': 'x' * 10_000})")
    assert (result.outcome, result.truncated, result.state_lost) == ("output_limit", True, True)


def test_a_huge_argument_is_refused_in_words(arena: Arena):
    result = arena.attack("search_pages('x' * 5_000_000)")
    assert result.outcome == "error"
    assert "ValueError: search_pages() got arguments of 5," in result.error_text


def test_a_deep_argument_is_refused_in_words(arena: Arena):
    result = arena.attack("x = []\nfor i in range(100_000):\n    x = [x]\nsearch_pages(x)")
    assert result.outcome == "error"
    assert "RecursionError" in result.error_text


def test_a_deep_argument_sent_raw_is_refused(arena: Arena):
    body = 'b\'{"op":"call","name":"search_pages","kwargs":{},"args":\' + b"[" * 900 + b"]" * 900 + b"}"'
    result = arena.attack(RAW + f"send({body})\nwhile True: pass")
    assert result.outcome in ("protocol", "timeout")


@pytest.mark.parametrize("argument", ["{1, 2}", "object()", "b'bytes'", "lambda: 1", "open"])
def test_an_argument_that_is_not_json_is_a_type_error(arena: Arena, argument: str):
    result = arena.attack(f"search_pages({argument})")
    assert result.outcome == "error"
    assert "TypeError: search_pages() takes None, bool, int, float, str, list, tuple and dict" in result.error_text


def test_too_many_calls_are_an_error(arena: Arena):
    result = arena.attack("for i in range(1_000_000):\n    search_pages(str(i))")
    assert (result.outcome, result.host_calls) == ("error", 51)
    assert result.error_text.endswith("RuntimeError: more than 50 calls of provided functions in one program")


def test_a_program_that_does_not_stop_calling_is_killed(arena: Arena):
    result = arena.attack("while True:\n    try: search_pages('x')\n    except RuntimeError: pass")
    assert (result.outcome, result.state_lost) == ("protocol", True)


def test_a_program_that_closes_its_channel_harms_only_itself(arena: Arena):
    result = arena.attack("import os\nos.close(3)\nprint('x')")
    assert result.outcome in ("crashed", "timeout")
    assert result.state_lost


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("boom('value')", "ValueError: boom value"),
        ("boom('tool')", "ToolError: boom tool"),
        ("boom('custom')", "RuntimeError: _CustomError: boom custom"),
        ("read_section('nope:1')", "KeyError: 'nope:1'"),
        ("huge()", "RuntimeError: huge() returned something that cannot be passed on: 20,0"),
        ("not_json()", "RuntimeError: not_json() returned something that cannot be passed on: Object of type object"),
        ("search_pages()", "TypeError: search_pages() missing a required argument: 'query'"),
        ("search_pages('a', 'b')", "TypeError: search_pages() too many positional arguments"),
        ("search_pages(q='a')", "TypeError: search_pages() missing a required argument: 'query'"),
    ],
)
def test_a_failing_host_function_is_an_exception_inside_the_program(arena: Arena, call: str, message: str):
    result = arena.attack(call)
    assert result.outcome == "error"
    assert message in result.error_text.splitlines()[-1]
    assert 'File "<program 1>", line 1, in <module>' in result.error_text


def test_host_errors_are_caught_by_their_types(arena: Arena):
    program = """
for kind, cls in (("value", ValueError), ("type", TypeError), ("tool", ToolError), ("tool", ValueError)):
    try:
        boom(kind)
    except cls as e:
        print("caught", type(e).__name__, e)
"""
    result = arena.attack(program)
    assert result.stdout.splitlines() == [
        "caught ValueError boom value",
        "caught TypeError boom type",
        "caught ToolError boom tool",
        "caught ToolError boom tool",
    ]


def test_concurrent_calls_from_threads_get_their_own_answers(arena: Arena):
    program = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    titles = list(pool.map(lambda i: search_pages(str(i))[0]["title"], range(40)))
print(titles == [f"Page of {i}" for i in range(40)])
"""
    result = arena.attack(program)
    assert (result.outcome, result.stdout, result.host_calls) == ("ok", "True\n", 40)


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
