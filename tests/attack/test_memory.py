"""Cases 10-15: a program cannot take more memory than it may, nor bring down more than itself."""

from __future__ import annotations

import pytest

from tests.attack.arena import Arena


def test_a_growing_list_ends_in_a_memory_error(arena: Arena):
    result = arena.attack("x = []\nwhile True:\n    x.append(bytes(5_000_000))")
    assert (result.outcome, result.state_lost) == ("memory", False)
    assert result.error_text.endswith("MemoryError")
    assert "line 3" in result.error_text


def test_many_small_objects_end_in_a_memory_error_or_in_time(arena: Arena):
    result = arena.attack("x = []\nwhile True:\n    x.append([None] * 100)")
    assert result.outcome in ("memory", "timeout")


def test_one_huge_allocation_is_a_memory_error(arena: Arena):
    result = arena.attack("b = bytearray(3_000_000_000)\nprint('got', len(b))")
    assert (result.outcome, result.stdout) == ("memory", "")


def test_a_session_works_on_after_a_memory_error(arena: Arena):
    result = arena.attack("keep = 7\nb = bytearray(3_000_000_000)", "print(keep)")
    assert (result.outcome, result.stdout) == ("ok", "7\n")


def test_a_session_whose_memory_is_full_still_answers(arena: Arena):
    fill = "x = []\ntry:\n    while True: x.append(bytes(1_000_000))\nexcept MemoryError: pass\ny = []\n"
    fill += "while True: y.append(object())"
    result = arena.attack(fill, "print(len(x) > 50)")
    assert result.outcome in ("ok", "memory", "timeout")


def test_deep_nesting_that_overflows_the_stack_harms_only_itself(arena: Arena):
    result = arena.attack(
        "x = []\nfor i in range(500_000):\n    x = [x]\nimport sys\nsys.setrecursionlimit(10**9)\nprint(len(repr(x)))"
    )
    assert result.outcome in ("crashed", "error", "memory", "timeout")


def test_a_boundless_recursion_limit_harms_only_itself(arena: Arena):
    result = arena.attack("import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return f(n + 1) + 1\nf(0)")
    assert result.outcome in ("crashed", "memory", "timeout")


def test_deep_recursion_is_an_ordinary_recursion_error(arena: Arena):
    result = arena.attack("def f(n):\n    return f(n + 1) + 1\nprint(f(0))")
    assert (result.outcome, result.state_lost) == ("error", False)
    assert "RecursionError: maximum recursion depth exceeded" in result.error_text
    assert "[Previous line repeated" in result.error_text


@pytest.mark.parametrize("source", ["'(' * 5000 + ')' * 5000", "'[' * 100_000", "'-' * 100_000 + '1'"])
def test_source_that_is_nested_too_deep_harms_only_itself(arena: Arena, source: str):
    program: str = eval(source)
    result = arena.attack(f"x = {program}")
    assert result.outcome in ("error", "memory", "crashed")
