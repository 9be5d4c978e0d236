"""The text that a model learns from: each ordinary mistake, word for word."""

from __future__ import annotations

import re

import pytest

from seekling.env.sandbox import Sandbox
from seekling.errors import ToolError


def search_pages(query: str) -> list[str]:
    if not isinstance(query, str):
        raise ToolError(f"query must be text, not {type(query).__name__}")
    return [query]


def error_of(sandbox: Sandbox, program: str) -> str:
    session = sandbox.open({"search_pages": search_pages})
    result = session.run(program)
    session.close()
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
