"""A small library, sandboxes, and environments made of them."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Mapping, Sequence

import pytest

from seekling.config import EnvConfig, SandboxConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.sandbox import HostFunction, Outcome, Result, Sandbox, SandboxSession
from seekling.env.tools import Tool, library_tools
from seekling.errors import InfrastructureError, SandboxError, ToolError
from seekling.types import Hit, Passage, Question

PAGES = {
    "harbour_of_fowey": ("Harbour of Fowey", "The harbour was built in 1457 by Maud Trethewey."),
    "maud_trethewey": ("Maud Trethewey", "Maud Trethewey was born in Alnwick, the daughter of a cooper."),
    "alnwick": ("Alnwick", "Alnwick lies on the river Aln and holds a fair in May."),
}
QUESTION = Question("7", "Where was the builder of the harbour of Fowey born", ("Alnwick",), source="test")


class FakeLibrary:
    """Ranks the three pages by the number of words they share with a query."""

    def __init__(self, failure: Exception | None = None, *, may_wait: bool = False) -> None:
        self.queries: list[str] = []
        self.may_wait = may_wait
        self._failure = failure

    def search(self, query: str, top_k: int) -> list[Hit]:
        self.queries.append(query)
        if self._failure is not None:
            raise self._failure
        words = set(query.lower().split())
        scored = []
        for page, (title, text) in PAGES.items():
            score = len(words & set(f"{title} {text}".lower().replace(".", "").replace(",", "").split()))
            scored.append((-score, page, title, text))
        best = [each for each in sorted(scored) if each[0]][:top_k]
        return [
            Hit(Passage(f"{page}#0", page, title, text), float(-score), rank)
            for rank, (score, page, title, text) in enumerate(best)
        ]

    def search_pages(self, query: str, top_k: int = 10) -> list[dict[str, str]]:
        hits = self.search(query, top_k)
        return [{"page_id": hit.passage.document_id, "title": hit.passage.title} for hit in hits]

    def view_sections(self, page_id: str) -> list[dict[str, str]]:
        if page_id not in PAGES:
            raise ToolError(f"there is no page {page_id!r}")
        return [{"section_id": f"{page_id}:full", "section_name": "Full Page"}]

    def read_section(self, section_id: str) -> str:
        page_id = section_id.rpartition(":")[0]
        if page_id not in PAGES:
            raise ToolError(f"there is no section {section_id!r}")
        return PAGES[page_id][1]


def program_result(
    stdout: str = "",
    error_text: str = "",
    outcome: Outcome = "ok",
    *,
    truncated: bool = False,
    state_lost: bool = False,
) -> Result:
    """What a sandbox tells of a program."""
    return Result(stdout, error_text, outcome, 0.0, 0.0, 0, truncated, state_lost)


class RealSandbox:
    """The real one with its defaults, opened at the first program and shared by all tests."""

    def open(self, functions: Mapping[str, HostFunction]) -> SandboxSession:
        return _shared_sandbox().open(functions)


@functools.cache
def _shared_sandbox() -> Sandbox:
    try:
        sandbox = Sandbox(SandboxConfig())
    except SandboxError as error:
        pytest.skip(f"this machine has no sandbox: {error}")
    atexit.register(sandbox.close)
    return sandbox


class ScriptedSandbox:
    """Answers each program with the next of the given results; an error among them is raised."""

    def __init__(self, results: Sequence[Result | InfrastructureError]) -> None:
        self._results = list(results)
        self.num_opened = 0
        self.num_closed = 0

    def open(self, functions: Mapping[str, HostFunction]) -> ScriptedSandbox:
        self.num_opened += 1
        return self

    def run(self, code: str) -> Result:
        result = self._results.pop(0)
        if isinstance(result, InfrastructureError):
            raise result
        return result

    def close(self) -> None:
        self.num_closed += 1


def count_words(text: str) -> int:
    return len(text.split())


def make_env(
    *,
    library: FakeLibrary | None = None,
    user_tools: Sequence[Tool] = (),
    sandbox: Sandbox | None = None,
    top_k: int = 2,
    count_tokens: Callable[[str], int] = count_words,
    native_tools: bool = False,
    **settings: object,
) -> SearchEnv:
    """An environment over the three pages; settings are those of the env section."""
    config = EnvConfig.model_validate(settings)
    tools = library_tools(library or FakeLibrary(), top_k) | {tool.name: tool for tool in user_tools}
    protocol = make_protocol(config, tools, native_tools=native_tools)
    return SearchEnv(protocol, tools, config, sandbox=sandbox or RealSandbox(), count_tokens=count_tokens)
