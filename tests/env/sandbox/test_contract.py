"""What the sandbox promises to those who run programs in it, and the text that a model learns from, word for word."""

from __future__ import annotations

import re
import time

import pytest

from seekling.env.sandbox import Result, Sandbox
from seekling.errors import InfrastructureError, ToolError
from tests.env.sandbox.conftest import opened


def search_pages(query: str) -> list[dict[str, str]]:
    if not isinstance(query, str):
        raise ToolError(f"query must be text, not {type(query).__name__}")
    if not query:
        raise ToolError("an empty query finds nothing")
    return [{"page_id": "p1", "title": f"Page of {query}"}]


def read_section(section_id: str) -> str:
    raise KeyError(section_id)


async def view_sections(page_id: str) -> list[str]:
    return [f"{page_id}:full"]


FUNCTIONS = {"search_pages": search_pages, "read_section": read_section, "view_sections": view_sections}


def run(sandbox: Sandbox, *programs: str) -> Result:
    session = sandbox.open(FUNCTIONS)
    for program in programs:
        result = session.run(program)
    session.close()
    return result


def test_a_program_prints_and_calls(sandbox: Sandbox):
    result = run(sandbox, "for page in search_pages('moon'):\n    print(page['title'], view_sections(page['page_id']))")
    assert (result.outcome, result.stdout, result.error_text) == ("ok", "Page of moon ['p1:full']\n", "")
    assert (result.host_calls, result.truncated, result.state_lost) == (2, False, False)
    assert 0 <= result.cpu_s < 0.5


MANY = "for i in range(15):\n    search_pages('x')"


@pytest.mark.parametrize(
    ("programs", "outcome", "stdout", "error"),
    [
        # Tracebacks number the programs of a session.
        (["def f():\n    return 1 / 0", "1", "\nf()"], "error", "", '  File "<program 3>", line 2, in <module>'),
        (["def f():\n    return 1 / 0", "1", "\nf()"], "error", "", '  File "<program 1>", line 2, in f'),
        # Mistakes are named; a program with a syntax error does not run.
        (["print('before')\nfor x in range(3)\n    print(x)"], "error", "", "SyntaxError: "),
        (["print('before')\nfor x in range(3)\n    print(x)"], "error", "", 'File "<program 1>", line 2'),
        # Calls are counted per program.
        ([MANY, MANY, MANY], "ok", "", ""),
    ],
)
def test_what_comes_of_programs(sandbox: Sandbox, programs: list[str], outcome: str, stdout: str, error: str):
    result = run(sandbox, *programs)
    assert (result.outcome, result.stdout) == (outcome, stdout)
    assert error in result.error_text
    assert result.host_calls == 15 or programs[0] != MANY


def test_a_search_server_that_is_too_slow_is_an_infrastructure_failure():
    def search_pages(query: str) -> str:
        time.sleep(0.3)
        return query

    program = "n = 0\nfor i in range(10):\n    try: n += len(search_pages('x'))\n    except Exception: pass"
    with opened(max_host_s=0.5) as sandbox:
        session = sandbox.open({"search_pages": search_pages})
        with pytest.raises(
            InfrastructureError, match=r"took \d.* s in one program, more than env.sandbox.max_host_s = 0.5"
        ):
            session.run(program)
        result = session.run("print(search_pages('x'))")  # each program has its own time
        session.close()
    assert (result.outcome, result.stdout) == ("ok", "x\n")


def test_the_same_program_twice_prints_the_same_random_numbers(sandbox: Sandbox):
    program = "import random\nprint(random.random(), random.randint(1, 10**9), hash('x'))"
    assert run(sandbox, program).stdout == run(sandbox, program).stdout


def error_of(sandbox: Sandbox, program: str) -> str:
    result = run(sandbox, program)
    assert result.outcome == "error"
    # The marks below a source line differ from one version of Python to the next.
    return re.sub(r"(?m)^ +[~^]+\n", "", result.error_text)


WHOLE = [
    (
        "def show(r):\n    return r['name']\nfor r in [{}]:\n    print(show(r))",
        'Traceback (most recent call last):\n  File "<program 1>", line 4, in <module>\n    print(show(r))\n'
        "  File \"<program 1>\", line 2, in show\n    return r['name']\nKeyError: 'name'",
    ),
    (
        "x = 1\nsearch_pages(x)",
        'Traceback (most recent call last):\n  File "<program 1>", line 2, in <module>\n    search_pages(x)\n'
        "ToolError: query must be text, not int",
    ),
    (
        "for r in search_pages('x')\n    print(r)",
        "  File \"<program 1>\", line 1\n    for r in search_pages('x')\nSyntaxError: expected ':'",
    ),
]


@pytest.mark.parametrize(("program", "text"), WHOLE)
def test_a_mistake_shows_the_programs_own_lines_and_none_of_our_frames(sandbox: Sandbox, program: str, text: str):
    assert error_of(sandbox, program) == text


@pytest.mark.parametrize(
    ("program", "part"),
    [
        ("for x in [1]:\nprint(x)", "IndentationError: expected an indented block after 'for' statement on line 1"),
        ("x = input('query? ')", "EOFError: EOF when reading a line"),
        ("import json\njson.loads('{')", '  File "json/decoder.py", line'),
    ],
)
def test_other_mistakes_are_named_with_short_paths(sandbox: Sandbox, program: str, part: str):
    text = error_of(sandbox, program)
    assert part in text
    assert "/lib" not in text


def test_an_exception_of_the_programs_own_and_its_cause_are_shown(sandbox: Sandbox):
    text = error_of(
        sandbox,
        "class NotFound(Exception):\n    pass\ntry:\n    search_pages(5)\n"
        "except ToolError as e:\n    raise NotFound('no') from e",
    )
    assert text.startswith("Traceback (most recent call last):\n")
    assert "ToolError: query must be text, not int" in text
    assert "The above exception was the direct cause of the following exception:" in text
    assert text.endswith("NotFound: no")
    assert "channel" not in text
    assert "runner" not in text


def test_warnings_and_standard_error_come_out_as_output(sandbox: Sandbox):
    session = sandbox.open({})
    result = session.run("import sys\nprint('to stderr', file=sys.stderr)\nsys.stdout.write('to stdout\\n')")
    session.close()
    assert result.stdout == "to stderr\nto stdout\n"
