"""Cases 16-21: a program cannot flood what reads its output."""

from __future__ import annotations

from tests.attack.arena import FUNCTIONS, LIMITS, Arena


def test_millions_of_prints_are_cut(arena: Arena):
    result = arena.attack("for i in range(3_000_000):\n    print(i)")
    assert (result.outcome, result.truncated, result.state_lost) == ("output_limit", True, False)
    assert result.stdout.startswith("0\n1\n2\n")
    assert "OutputLimitExceeded: the output was cut after 20000 characters" in result.error_text


def test_one_huge_print_is_cut(arena: Arena):
    result = arena.attack("print('x' * 60_000_000)")
    assert result.outcome in ("output_limit", "memory", "timeout")
    result = arena.attack("print('x' * 6_000_000)")
    assert (result.outcome, result.truncated) == ("output_limit", True)
    assert set(result.stdout) == {"x"}
    assert len(result.stdout) + len(result.error_text) == LIMITS.output_chars


def test_output_of_exactly_the_cap_is_whole(arena: Arena):
    result = arena.attack("print('x' * 19_999)")
    assert (result.outcome, result.truncated, len(result.stdout)) == ("ok", False, 20_000)


def test_a_huge_exception_message_keeps_both_of_its_ends(arena: Arena):
    result = arena.attack("raise ValueError('begin' + 'z' * 6_000_000 + 'end')")
    assert (result.outcome, result.truncated) == ("error", True)
    assert "ValueError: beginzzz" in result.error_text
    assert result.error_text.endswith("zzzend")
    assert len(result.error_text) <= 4000


def test_surrogates_nul_and_terminal_escapes_come_out_harmless(arena: Arena):
    result = arena.attack(r"print('bad \ud800 nul \x00 ansi \x1b[31m bell \x07 tab \t csi \x9b')")
    assert result.outcome == "ok"
    assert result.stdout == "bad ? nul \ufffd ansi \ufffd[31m bell \ufffd tab \t csi \ufffd\n"


def test_surrogates_in_arguments_and_errors_come_out_harmless(arena: Arena):
    result = arena.attack(r"raise ValueError(search_pages('\ud800')[0]['title'] + '\udfff\x1b')")
    assert result.error_text.endswith("ValueError: Page of ??\ufffd")


def test_a_print_flood_in_finally_is_stopped(arena: Arena):
    result = arena.attack(
        "def flood():\n    try:\n        while True: print('x' * 1000)\n"
        "    finally:\n        while True: print('y' * 1000)\nflood()"
    )
    assert (result.outcome, result.truncated) == ("output_limit", True)


def test_a_print_flood_that_catches_everything_is_killed(arena: Arena):
    result = arena.attack(
        "def flood():\n    while True: print('x' * 1000)\nwhile True:\n    try: flood()\n    except BaseException: pass"
    )
    assert (result.outcome, result.truncated) == ("timeout", True)


def test_writing_to_the_descriptors_of_the_standard_streams_reaches_nobody(arena: Arena, capfd):
    session = arena.sandbox.open(FUNCTIONS)
    result = arena.run(session, "import os\nfor fd in (1, 2):\n    os.write(fd, b'raw')\nprint('said')")
    session.close()
    assert (result.outcome, result.stdout) == ("ok", "said\n")
    assert "raw" not in "".join(capfd.readouterr())
