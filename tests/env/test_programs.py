"""Programs of the code protocol: what a model is told about them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from seekling.env.programs import PROGRAMS_AT_ONCE, ProgramRunner, redefined_names
from seekling.env.sandbox import Result
from seekling.env.tools import tool_from_function
from tests.env.fakes import QUESTION, FakeLibrary, ScriptedSandbox, make_env, program_result
from tests.patience import FAILS_AFTER_S

REDEFINED = "Your program redefined search_pages, which is provided. Call it, do not define it."
PROVIDED = ("search_pages", "view_sections", "read_section")


def block(program: str) -> str:
    return f"```python\n{program}\n```\n"


def told(*results: Result, program: str = "x = 1", **settings: object) -> str:
    session = make_env(protocol="code", sandbox=ScriptedSandbox(results), **settings).start(QUESTION)
    return session.step(block(program), finish="stop").turn.observation


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("def search_pages(query):\n    return []", ["search_pages"]),
        ("async def search_pages(query): pass", ["search_pages"]),
        ("class search_pages: pass", ["search_pages"]),
        ("search_pages = view_sections = None", ["search_pages", "view_sections"]),
        ("search_pages: int = 3", ["search_pages"]),
        ("search_pages += 1", ["search_pages"]),
        ("from wiki import search_pages", ["search_pages"]),
        ("import wiki as read_section", ["read_section"]),
        ("import search_pages.client", ["search_pages"]),
        ("for search_pages in []: pass", ["search_pages"]),
        ("with open('x') as (a, read_section): pass", ["read_section"]),
        ("if True:\n    try:\n        pass\n    except ValueError as read_section:\n        pass", ["read_section"]),
        ("match 1:\n    case search_pages: pass", ["search_pages"]),
        ("match {}:\n    case {'a': [*search_pages], **read_section}: pass", ["search_pages", "read_section"]),
        ("print(search_pages := 1)", ["search_pages"]),
        ("[(search_pages := x) for x in []]", ["search_pages"]),
        ("del search_pages", ["search_pages"]),
        ("print(search_pages('x'))", []),
        ("def helper(search_pages):\n    search_pages = 1", []),
        ("[search_pages for search_pages in []]", []),
        ("lambda search_pages: 1", []),
        ("pages.search_pages = 1", []),
        ("not Python at all", []),
        ("-" * 50_000 + "1", []),
        ("a" + ".a" * 50_000, []),
        ("x = '\\d'", []),
    ],
)
def test_redefinitions_of_provided_functions_are_found(program, names):
    assert redefined_names(program, PROVIDED) == names


def test_of_a_long_traceback_the_end_survives():
    error = "Traceback\n" + "  File somewhere, line 1\n" * 50 + "KeyError: 'page'"
    observation = told(program_result("", error, "error"), observation_tokens=20)
    assert (observation[:11], observation[-16:]) == ("Error:\n... ", "KeyError: 'page'")


def test_output_that_the_sandbox_cut_counts_as_truncated():
    sandbox = ScriptedSandbox([program_result("x", "", "output_limit", truncated=True)])
    session = make_env(protocol="code", sandbox=sandbox).start(QUESTION)
    assert session.step(block("print('x' * 10**9)"), finish="stop").turn.is_observation_truncated


def test_variables_last_from_turn_to_turn_and_provided_functions_come_back():
    session = make_env(protocol="code").start(QUESTION)
    session.step(block("found = search_pages('Aln')\nsearch_pages = None"), finish="stop")
    turn = session.step(block("print(found[0]['title'], search_pages('Fowey')[0]['title'])"), finish="stop").turn
    assert turn.observation == "Output:\nAlnwick Harbour of Fowey"


def test_every_call_of_a_program_is_recorded_failed_ones_too():
    session = make_env(protocol="code", max_turns=9).start(QUESTION)
    program = (
        "for page in search_pages(query='Alnwick born'):\n"
        "    print(read_section(page['page_id'] + ':full'))\n"
        "print(view_sections('atlantis'))"
    )
    turn = session.step(block(program), finish="stop").turn
    assert [(call.name, call.document_ids) for call in turn.calls] == [
        ("search_pages", ("maud_trethewey", "alnwick")),
        ("read_section", ("maud_trethewey",)),
        ("read_section", ("alnwick",)),
        ("view_sections", ()),
    ]
    assert turn.calls[3].error == "ToolError: there is no page 'atlantis'"
    assert "there is no page 'atlantis'" in turn.observation


def river_length(river: str, unit: str = "km") -> str:
    """Length of a river."""
    if river != "Aln":
        raise ValueError(f"unknown river {river}")
    return f"40 {unit}"


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        ("x = 1", ["printed nothing"]),
        ("I will look for the harbour now.", ["SyntaxError", "not valid Python"]),
        ("read_section('atlantis:history')", ["ToolError", "there is no section 'atlantis:history'"]),
        ("search_pages()", ["ToolError", "query is missing"]),
        ("print(river_length('Tweed'))", ["ValueError: unknown river Tweed", "line 1"]),
        (
            "def search_pages(q):\n    return q\nprint(search_pages('me'))",
            ["Output:\nme", REDEFINED],
        ),
        ("import os\nos._exit(3)", ["define again what you need"]),
    ],
)
def test_what_went_wrong_in_a_program_is_told(program, parts):
    with make_env(protocol="code", user_tools=[tool_from_function(river_length)]).start(QUESTION) as session:
        result = session.step(block(program), finish="stop")
        assert not result.is_over
        for part in parts:
            assert part in result.turn.observation


def test_a_program_can_catch_a_tools_error_by_its_type_and_pass_arguments_as_python_does():
    session = make_env(protocol="code", user_tools=[tool_from_function(river_length)], max_turns=9).start(QUESTION)
    program = (
        "try:\n    river_length('Po')\nexcept ValueError as error:\n    print(error)\n"
        "print(river_length('Aln', unit='m'))"
    )
    assert session.step(block(program), finish="stop").turn.observation == "Output:\nunknown river Po\n40 m"
    for call, error in [
        ("river_length('Aln', 'm', 'x')", "river_length takes river, unit, got 3 arguments"),
        ("river_length('Aln', river='Po')", "river_length got river twice"),
        ("river_length(unit='m')", "river is missing"),
    ]:
        assert error in session.step(block(call), finish="stop").turn.observation


def test_searches_are_counted_inside_programs():
    library = FakeLibrary()
    session = make_env(protocol="code", library=library, max_searches=2).start(QUESTION)
    turn = session.step(block("for _ in range(9):\n    print(len(search_pages('Aln')))"), finish="stop").turn
    assert len(library.queries) == 2
    assert "No searches are left: all 2 are used." in turn.observation


class CountingSandbox:
    """Every program takes a moment, and calls a function in the middle of it."""

    def __init__(self) -> None:
        self.lock, self.running, self.most, self.calls = threading.Lock(), 0, 0, threading.Barrier(PROGRAMS_AT_ONCE + 1)

    def open(self, functions):
        self._call = functions["look"]
        return self

    def run(self, program):
        for part in range(2):
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            time.sleep(0.01)
            with self.lock:
                self.running -= 1
            if part == 0:
                self._call("x")
        return program_result()

    def look(self, word: str) -> str:
        """Look it up."""
        self.calls.wait(FAILS_AFTER_S)
        return word


def test_programs_leave_processors_to_decoding_but_may_all_wait_for_a_tool():
    """Their time limits are by the clock: with one for each of 64 episodes at once, honest ones would be stopped."""
    sandbox = CountingSandbox()
    tools = {"look": tool_from_function(sandbox.look)}
    num_runners = 4 * sandbox.calls.parties
    runners = [ProgramRunner(sandbox, tools, lambda name, arguments: "") for _ in range(num_runners)]
    with ThreadPoolExecutor(len(runners)) as pool:
        list(pool.map(lambda runner: runner.run("look('x')"), runners))
    assert 1 <= sandbox.most <= PROGRAMS_AT_ONCE
    assert not sandbox.calls.broken  # a call waits until more programs than that are in one
