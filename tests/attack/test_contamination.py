"""Cases 52-54: no program changes what another one sees; the contract of all back ends has more of these."""

from __future__ import annotations

from tests.attack.arena import FUNCTIONS, Arena


def test_a_patched_interpreter_is_gone_with_its_session(arena: Arena):
    program = """
import builtins, json, re, random, sys, string
for module in (builtins, json, re, string, sys):
    for name in list(vars(module)):
        if name not in ("__name__", "__dict__", "exit", "setattr", "modules"):
            try: builtins_setattr(module, name, None)
            except NameError: setattr(module, name, None)
            except Exception: pass
"""
    arena.attack(program)
    result = arena.attack(
        "import json, re\nprint(json.dumps([1]), re.escape('.'), len('abc'), search_pages('x')[0]['page_id'])"
    )
    assert (result.outcome, result.stdout) == ("ok", "[1] \\. 3 p1\n")


def test_a_program_that_breaks_its_own_runner_is_noticed(arena: Arena):
    result = arena.attack("import builtins\nbuiltins.len = builtins.str = builtins.isinstance = None")
    assert result.outcome in ("ok", "error", "crashed")


def test_streams_functions_and_recursion_limit_are_restored_for_the_next_program(arena: Arena):
    result = arena.attack(
        "import sys\nsys.stdout = sys.stderr = None\nsys.setrecursionlimit(50)\ndel search_pages",
        "def f(n):\n    return n and f(n - 1)\nprint(f(200), search_pages('x')[0]['title'])",
    )
    assert (result.outcome, result.stdout) == ("ok", "0 Page of x\n")


def test_variables_survive_errors_and_soft_timeouts(arena: Arena):
    session = arena.sandbox.open(FUNCTIONS)
    arena.run(session, "x = 1\ndef double(n):\n    return 2 * n")
    assert arena.run(session, "x = 2\n1 / 0").outcome == "error"
    assert arena.run(session, "x = 3\nwhile True: pass").outcome == "timeout"
    result = arena.run(session, "print(x, double(x))")
    session.close()
    assert (result.stdout, result.state_lost) == ("3 6\n", False)
    arena.check_surroundings()


def test_variables_lost_in_a_kill_are_reported_lost_and_the_session_goes_on(arena: Arena):
    session = arena.sandbox.open(FUNCTIONS)
    arena.run(session, "x = 1")
    killed = arena.run(session, "import os\nos._exit(0)")
    after = arena.run(session, "print('x' in globals(), search_pages('x')[0]['page_id'])")
    session.close()
    assert killed.state_lost
    assert killed.error_text.endswith("Its variables are lost.")
    assert (after.outcome, after.stdout, after.state_lost) == ("ok", "False p1\n", False)
    arena.check_surroundings()
