"""The environment with a real index and the real sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seekling.config import EnvConfig, IndexConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.sandbox import Sandbox
from seekling.env.tools import library_tools, tool_from_function
from seekling.retrieval.index import build_index
from seekling.retrieval.library import Library, open_library
from seekling.types import StopReason
from tests.env.fakes import PAGES, QUESTION, count_words


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder: Path = tmp_path_factory.mktemp("pages")
    rows = [{"id": key, "title": title, "content": f"# {title}\n\n{text}"} for key, (title, text) in PAGES.items()]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    build_index(folder / "corpus.jsonl", folder / "index", IndexConfig())
    return open_library(folder / "index")


def river_length(river: str) -> int:
    """Length of a river in kilometres."""
    return {"Aln": 40}[river]


def assembled(library: Library, sandbox: Sandbox | None = None, **settings: object) -> SearchEnv:
    config = EnvConfig.model_validate({"max_turns": 9, **settings})
    tools = library_tools(library, 2) | {"river_length": tool_from_function(river_length)}
    return SearchEnv(make_protocol(config, tools), tools, config, sandbox=sandbox, count_tokens=count_words)


REDEFINED = "Your program redefined search_pages, which is provided. Call it, do not define it."


def block(program: str) -> str:
    return f"```python\n{program}\n```\n"


@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_a_search_finds_the_page_in_a_real_index(library, protocol):
    with assembled(library, protocol=protocol).start(QUESTION) as session:
        grammar = make_protocol(EnvConfig(protocol=protocol), library_tools(library, 2))
        turn = session.step(grammar.act(grammar.search_action("harbour of Fowey")), finish="stop").turn
        assert turn.calls[0].document_ids[0] == "harbour_of_fowey"
        assert "Maud Trethewey" in turn.observation
        nothing = session.step(grammar.act(grammar.search_action("zebra")), finish="stop").turn
        assert "No results for this query." in nothing.observation


def test_a_program_searches_reads_and_answers_in_the_real_sandbox(library, sandbox):
    with assembled(library, sandbox, protocol="code").start(QUESTION) as session:
        program = 'pages = search_pages("harbour of Fowey")\nprint(read_section(pages[0]["page_id"] + ":full"))'
        turn = session.step(block(program), finish="stop").turn
        assert "built in 1457 by Maud Trethewey" in turn.observation
        assert [call.name for call in turn.calls] == ["search_pages", "read_section"]
        turn = session.step(block("print(len(pages) > 0, view_sections('alnwick'))"), finish="stop").turn
        assert turn.observation.startswith("Output:\nTrue [{'section_id': 'alnwick:alnwick'")
        assert session.step("<answer> Alnwick </answer>", finish="stop").stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        ("x = 1", ["printed nothing"]),
        ("I will look for the harbour now.", ["SyntaxError", "not valid Python"]),
        ("read_section('atlantis:history')", ["ToolError", "there is no page 'atlantis'"]),
        ("search_pages()", ["ToolError", "query is missing"]),
        ("print(river_length('Tweed'))", ["KeyError", "Tweed", "line 1"]),
        ("try:\n    river_length('Tweed')\nexcept KeyError:\n    print('caught')", ["Output:\ncaught"]),
        (
            "def search_pages(q):\n    return q\nprint(search_pages('me'))",
            ["Output:\nme", REDEFINED],
        ),
        ("import os\nos._exit(3)", ["define again what you need"]),
    ],
)
def test_what_went_wrong_in_a_real_program_is_told(library, sandbox, program, parts):
    with assembled(library, sandbox, protocol="code").start(QUESTION) as session:
        result = session.step(block(program), finish="stop")
        assert not result.is_over
        for part in parts:
            assert part in result.turn.observation
