"""Tools made of functions, their arguments, and what of them reaches the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from seekling.env.tools import (
    LIBRARY_TOOLS,
    all_tools,
    library_tools,
    load_tool,
    run_tool,
    tool_from_function,
)  # fmt: skip
from seekling.errors import ConfigError, ToolError
from seekling.types import ToolCall
from tests.env.fakes import FakeLibrary


def weather(
    town: str,
    days: int = 3,
    unit: Literal["celsius", "kelvin"] = "celsius",
    stations: list[str] | None = None,
    exact: bool = False,
) -> dict[str, object]:
    """Weather forecast for a town.

    More that only people read.

    Args:
        town: name of the town,
            with its country.
        days (int): how many days.

    Returns:
        The forecast.
    """
    return {"town": town, "days": days, "unit": unit, "stations": stations, "exact": exact}


WEATHER = tool_from_function(weather)


def test_a_function_becomes_a_tool_with_its_description_and_schema():
    assert (WEATHER.name, WEATHER.description) == ("weather", "Weather forecast for a town.")
    assert WEATHER.parameters == {
        "type": "object",
        "properties": {
            "town": {"type": "string", "description": "name of the town, with its country."},
            "days": {"type": "integer", "default": 3, "description": "how many days."},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
            "stations": {"type": ["array", "null"], "items": {"type": "string"}},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["town"],
    }
    assert json.loads(json.dumps(WEATHER.to_json()))["function"]["name"] == "weather"


def undocumented(word: str) -> str:
    return word


def untyped(word) -> str:
    """Look a word up."""
    return word


def oddly_typed(words: dict[str, str]) -> str:
    """Look words up."""
    return str(words)


def variadic(*words: str) -> str:
    """Look words up."""
    return str(words)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (undocumented, "tool 'undocumented' has no docstring"),
        (untyped, "parameter 'word' has no type hint; expected str, int"),
        (oddly_typed, r"parameter 'words': type dict\[str, str\] is not supported"),
        (variadic, "cannot be given by name"),
        (lambda word: word, "write it as a def"),
    ],
)
def test_a_function_that_makes_no_tool_is_refused_with_the_reason(function, problem):
    with pytest.raises(ConfigError, match=problem):
        tool_from_function(function)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "town is missing"),
        ({"town": "Fowey", "dys": 2}, "weather has no parameter dys; did you mean days?"),
        ({"town": "Fowey", "zzz": 2}, "weather has no parameter zzz; it takes town, days, unit, stations, exact"),
        ({"town": ["Fowey"]}, 'town must be str, got ["Fowey"]'),
        ({"town": "Fowey", "days": "two"}, 'days must be int, got "two"'),
        ({"town": "Fowey", "days": True}, "days must be int, got true"),
        ({"town": "Fowey", "days": float("inf")}, "days must be int, got Infinity"),
        ({"town": "Fowey", "unit": "miles"}, 'unit must be "celsius" or "kelvin", got "miles"'),
        ({"town": "Fowey", "exact": "maybe"}, 'exact must be bool, got "maybe"'),
        ("Fowey", "the arguments of weather must be a JSON object with town, days"),
    ],
)
def test_wrong_arguments_are_explained_to_the_model(arguments, error):
    outcome = run_tool(WEATHER, arguments)
    assert outcome.error.startswith("ToolError: ")
    assert error in outcome.error
    assert outcome.text == ""


def test_all_problems_of_a_call_are_told_at_once():
    error = run_tool(WEATHER, {"days": "two", "when": "now"}).error
    assert all(part in error for part in ("town is missing", "days must be int", "no parameter when"))


def test_arguments_that_are_only_written_differently_are_converted():
    arguments = {"town": 7, "days": "2", "stations": "north", "exact": "True"}
    converted = {"town": "7", "days": 2, "unit": "celsius", "stations": ["north"], "exact": True}
    assert run_tool(WEATHER, arguments).value == converted
    assert run_tool(WEATHER, {"town": "Fowey", "days": 2.0, "stations": None}).error == ""


def broken(word: str) -> str:
    """Fail in a way of its own."""
    raise {"key": KeyError("no such word"), "zero": ZeroDivisionError(), "tool": ToolError("ask for a word")}[word]


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("key", "KeyError: 'no such word'"),
        ("zero", "ZeroDivisionError: (no message)"),
        ("tool", "ToolError: ask for a word"),
    ],
)
def test_whatever_a_tool_raises_reaches_the_model_as_text(word, error):
    assert run_tool(tool_from_function(broken), {"word": word}).error == error


def test_the_librarys_tools_record_the_documents_they_showed():
    tools = library_tools(FakeLibrary(), 2)
    search = run_tool(tools["search"], {"query_list": ["harbour Fowey", "river Aln"]}).records()
    assert [(call.arguments, call.document_ids) for call in search] == [
        ({"query": "harbour Fowey"}, ("harbour_of_fowey",)),
        ({"query": "river Aln"}, ("alnwick",)),
    ]
    assert run_tool(tools["search_pages"], {"query": "Alnwick"}).document_ids == ("alnwick", "maud_trethewey")
    assert run_tool(tools["view_sections"], {"page_id": "alnwick"}).document_ids == ("alnwick",)
    assert run_tool(tools["read_section"], {"section_id": "alnwick:full"}).document_ids == ("alnwick",)
    failed = run_tool(tools["read_section"], {"section_id": "atlantis:full"}).records()
    error = "ToolError: there is no section 'atlantis:full'"
    assert failed == (ToolCall("read_section", {"section_id": "atlantis:full"}, error=error, is_retrieval=False),)


def test_a_tool_is_loaded_from_a_file_or_a_module(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text('def shout(word: str) -> str:\n    """Say it loud."""\n    return word.upper()\n')
    assert run_tool(load_tool(f"{path}:shout"), {"word": "hello"}).text == "HELLO"
    assert load_tool("tests.env.test_tools:weather").name == "weather"


def test_the_tools_of_a_recipe_stand_beside_the_librarys():
    spec = "tests.env.test_tools:weather"
    assert list(all_tools(FakeLibrary(), 3, [spec])) == [*LIBRARY_TOOLS, "weather"]
    with pytest.raises(ConfigError, match="there is another tool named 'weather'"):
        all_tools(FakeLibrary(), 3, [spec, spec])


@pytest.mark.parametrize(
    ("content", "spec", "problem"),
    [
        ("x = 1\ndef near(): pass", "{path}:far", "has no function 'far'; it has near"),
        ("def x(:", "{path}:x", "cannot load"),
        ("import no_such_module_at_all", "{path}:x", "cannot load .*No module named"),
        ("", "{path}.gone.py:x", "no file at"),
        ("", "no_such_module_at_all:x", "cannot import 'no_such_module_at_all'"),
        ("", "just_a_name", "not of the form module:function or path.py:function"),
        ('def answer(word: str) -> str:\n    """Hm."""\n    return word', "{path}:answer", "'answer' is taken"),
    ],
)
def test_a_tool_that_cannot_be_loaded_is_a_configuration_error(tmp_path: Path, content, spec, problem):
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        load_tool(spec.format(path=path))
