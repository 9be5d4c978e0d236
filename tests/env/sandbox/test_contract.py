"""What the sandbox promises to those who run programs in it."""

from __future__ import annotations

import time

import pytest

from seekling.env.sandbox import Result, Sandbox
from seekling.errors import InfrastructureError, ToolError
from tests.env.sandbox.conftest import opened


def search_pages(query: str) -> list[dict[str, str]]:
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
