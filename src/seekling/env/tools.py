"""Tools: what an agent may call, whoever wrote it, and the one place where their code runs.

A tool is a typed, documented Python function; its description, the JSON schema of its parameters and the errors it
raises are made for a model to read. How a call is written is the protocol's business, not this module's.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from seekling.env import withholding
from seekling.env.schema import JsonSchema, check_arguments, schema_of_function
from seekling.env.withholding import Withheld
from seekling.errors import ConfigError, InfrastructureError, ToolError
from seekling.types import Hit, Json, ToolCall

if TYPE_CHECKING:
    from seekling.retrieval.library import Library

LIBRARY_TOOLS = ("search", "search_pages", "view_sections", "read_section")
"""Names of the tools that `library_tools` makes; every protocol offers those of them that its source offers."""
LISTING_TOOLS = ("search_pages", "view_sections")
"""Those of them that name pages and sections, and give no text of them."""
RESERVED_NAMES = (*LIBRARY_TOOLS, "think", "answer", "information", "tool_call", "tool_response", "print", "python")
"""Names that mean something else in one protocol or another."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The passages found for one query, best first; how they are shown is the protocol's business."""

    query: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """Something an agent may call."""

    name: str
    description: str
    """One line, for a model to read."""
    parameters: JsonSchema
    """A JSON schema of type object; its properties are in the order of the function's parameters."""
    function: Callable[..., object]
    """Called with named arguments. Returns text, JSON, or a list of `SearchResult`."""
    documents_of: Callable[[Mapping[str, Json], object], tuple[str, ...]] = lambda arguments, value: ()
    """Given arguments and return value, the ids of the documents whose text or title came back, best first."""
    may_wait: bool = True
    """A call may wait for something outside of this process. Then it runs in a thread, several at a time."""
    is_retrieval: bool = False
    """It searches: its calls are counted, and limited by `max_searches`."""
    withholding: Callable[[Withheld], Callable[..., object]] | None = None
    """Makes the same function for an episode that is not shown everything; None: it has nothing to keep back."""
    check: Callable[[Mapping[str, Json]], None] = lambda arguments: None
    """Raises a ToolError for arguments that fit `parameters` and yet ask for nothing."""

    def to_json(self) -> dict[str, Json]:
        """The tool as chat templates expect it."""
        function: dict[str, Json] = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one thing the model asked for: a tool call or a program."""

    name: str
    arguments: Mapping[str, Json]
    text: str = ""
    """What the tool returned, or the program printed, as text."""
    error: str = ""
    """How it failed, as the model will read it."""
    value: object = None
    """What the tool returned."""
    searches: tuple[SearchResult, ...] = ()
    """Set instead of `text` when passages came back."""
    document_ids: tuple[str, ...] = ()
    exception: Exception | None = None
    """The error itself, so that a program that called the tool can catch it by its type."""
    notes: tuple[str, ...] = ()
    """Sentences of ours about it."""
    is_truncated: bool = False
    """The text was cut before it came here."""
    is_retrieval: bool = False
    """A tool that searches was really asked."""
    is_refused: bool = False
    """The rules of the episode did not allow the call."""

    def records(self) -> tuple[ToolCall, ...]:
        """The call as episodes keep it: one entry per query, so that searches count the same in every protocol.

        What was refused was never called.
        """
        if self.is_refused:
            return ()
        if not self.searches:
            call = ToolCall(self.name, self.arguments, self.text, self.error, self.document_ids, self.is_retrieval)
            return (call,)
        return tuple(
            ToolCall(
                self.name,
                {"query": search.query},
                result="\n".join(f"{hit.passage.title}: {hit.passage.text}" for hit in search.hits),
                document_ids=tuple(dict.fromkeys(hit.passage.document_id for hit in search.hits)),
                is_retrieval=self.is_retrieval,
            )
            for search in self.searches
        )


def run_tool(
    tool: Tool, arguments: object, refusal_of: Callable[[Tool, Mapping[str, Json]], str] = lambda tool, arguments: ""
) -> Outcome:
    """Check the arguments, call the tool, and turn whatever it raises into text for the model.

    This is the environment's one boundary to code that it does not know, so it catches `Exception`. `refusal_of` is
    asked about a call whose arguments fit, just before it is made: why it may not be, or empty.

    Raises:
        InfrastructureError: what the tool relies on is broken; not the model's doing, so it is not told.
    """
    written = {str(key): value for key, value in arguments.items()} if isinstance(arguments, dict) else {}
    is_asked = False
    try:
        checked = check_arguments(tool.name, tool.parameters, arguments)
        tool.check(checked)
        refusal = refusal_of(tool, checked)
        if refusal:
            return Outcome(tool.name, checked, error=refusal, exception=ToolError(refusal), is_refused=True)
        is_asked = tool.is_retrieval
        value = tool.function(**checked)
        documents = tool.documents_of(checked, value)
        found = value if isinstance(value, list) else []
        searches = tuple(found) if all(isinstance(each, SearchResult) for each in found) else ()
        text = "" if searches else _text_of(value)
    except InfrastructureError:
        raise
    except Exception as error:
        message = str(error).encode("utf-8", "replace").decode("utf-8") or "(no message)"
        message = f"{type(error).__name__}: {message}"
        return Outcome(tool.name, written, error=message, exception=error, is_retrieval=is_asked)
    return Outcome(
        tool.name, checked, text, value=value, searches=searches, document_ids=documents, is_retrieval=is_asked
    )


def _text_of(value: object) -> str:
    """What a tool returned, as text: texts as they are, all else as JSON where it can be."""
    if value is None:
        return "(nothing was returned)"
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            value = str(value)
    # Lone surrogates cannot be encoded, and would fail far from here: in a tokenizer or a file.
    return value.encode("utf-8", "replace").decode("utf-8")


def tool_from_function(function: Callable[..., object]) -> Tool:
    """Make a tool of a typed, documented function, which must be safe to call from several threads at once.

    The first line of the docstring tells the model what the tool does; an `Args:` section (Google's form) tells what
    each parameter means. A function that searches says so by an attribute: `function.is_retrieval = True`.

    Args:
        function: parameters are str, int, float, bool, Literal[...], list[...] of these, or one of them | None.

    Raises:
        ConfigError: the docstring or a type hint is missing, or a type is not supported.

    Example:
        >>> def population(city: str, year: int = 2020) -> int:
        ...     '''Number of people in a city.'''
        ...     return len(city) * year
        >>> tool = tool_from_function(population)
        >>> tool.description, run_tool(tool, {"city": "Oslo"}).text
        ('Number of people in a city.', '8080')
    """
    name = function.__name__
    docstring = (inspect.getdoc(function) or "").strip()
    if not name.isidentifier():
        raise ConfigError(f"a tool needs a function with a name of its own, got {name!r}; write it as a def")
    if not docstring:
        raise ConfigError(f"tool {name!r} has no docstring; its first line is what tells the model what the tool does")
    schema = schema_of_function(function, _read_args(docstring))
    is_retrieval = inspect.isfunction(function) and vars(function).get("is_retrieval") is True
    return Tool(name, docstring.splitlines()[0], schema, function, is_retrieval=is_retrieval)


def load_tool(spec: str) -> Tool:
    """Import a tool named in a recipe as `module:function` or `path.py:function`.

    Raises:
        ConfigError: there is no such module, file or function, its name is taken, or it does not make a tool.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigError(f"tool {spec!r} is not of the form module:function or path.py:function")
    module = _import(where, spec)
    function = vars(module).get(name)
    if not inspect.isroutine(function):
        known = sorted(key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_")
        raise ConfigError(f"tool {spec!r}: {where} has no function {name!r}; it has {', '.join(known) or 'none'}")
    tool = tool_from_function(function)
    if tool.name in RESERVED_NAMES:
        raise ConfigError(f"tool {spec!r}: the name {tool.name!r} is taken by seekling; rename the function")
    return tool


def all_tools(library: Library, top_k: int, specs: Sequence[str]) -> dict[str, Tool]:
    """The library's tools and the user's own (`specs`, as `load_tool` takes them), by name.

    Raises:
        ConfigError: a tool cannot be loaded, or two have the same name.
    """
    tools = library_tools(library, top_k)
    for spec in specs:
        tool = load_tool(spec)
        if tool.name in tools:
            raise ConfigError(f"tool {spec!r}: there is another tool named {tool.name!r}; rename one of the functions")
        tools[tool.name] = tool
    return tools


def library_tools(library: Library, top_k: int) -> dict[str, Tool]:
    """The tools that read the library, by name; `search` gives `top_k` passages per query."""

    def make(name: str, **fields: Any) -> Tool:
        def function(withheld: Withheld) -> Callable[..., object]:
            method: Callable[..., object] = getattr(_LibraryView(library, top_k, withheld), name)
            return method

        tool = tool_from_function(function(Withheld()))
        return replace(tool, may_wait=library.may_wait, withholding=function, **fields)

    def pages_of(arguments: Mapping[str, Json], found: object) -> tuple[str, ...]:
        return tuple(page["page_id"] for page in cast("list[dict[str, str]]", found))

    def page_of_section(arguments: Mapping[str, Json], found: object) -> tuple[str, ...]:
        return (_page_of(library, str(arguments["section_id"])),)

    return {
        "search": make("search", is_retrieval=True, check=_check_queries),
        "search_pages": make("search_pages", is_retrieval=True, check=_check_queries, documents_of=pages_of),
        "view_sections": make("view_sections", documents_of=lambda arguments, _: (str(arguments["page_id"]),)),
        "read_section": make("read_section", documents_of=page_of_section),
    }


class _LibraryView:
    """The library without what an episode is not shown. Its methods' first lines are what a model reads."""

    def __init__(self, library: Library, top_k: int, withheld: Withheld) -> None:
        self._library, self._top_k, self._withheld = library, top_k, withheld

    def search(self, query_list: list[str]) -> list[SearchResult]:
        """Find passages for each query."""
        find, top_k, withheld = self._library.search, self._top_k, self._withheld
        return [SearchResult(each, tuple(withholding.search(find, each, top_k, withheld))) for each in query_list]

    def search_pages(self, query: str) -> list[dict[str, str]]:
        """List of {"page_id", "title"}, best first."""
        return withholding.pages(self._library.search_pages(query), self._withheld)

    def view_sections(self, page_id: str) -> list[dict[str, str]]:
        """List of {"section_id", "section_name"}."""
        return withholding.pages(self._library.view_sections(page_id), self._withheld)

    def read_section(self, section_id: str) -> str:
        """Text of the section."""
        return withholding.without(self._library.read_section(section_id), self._withheld.texts)


def _check_queries(arguments: Mapping[str, Json]) -> None:
    """Of the library's two searches: whether there is something to look for."""
    queries = arguments.get("query_list", [arguments.get("query")])
    assert isinstance(queries, list), "checked against the tool's parameters"
    if not queries:
        raise ToolError("query_list is empty; give at least one query")
    if not all(isinstance(query, str) and query.strip() for query in queries):
        raise ToolError("the query is empty; say in a few words what to look for")


def _page_of(library: Library, section_id: str) -> str:
    """The page that a section belongs to. Both ids may hold colons; then the library is asked."""
    page_id = section_id.rpartition(":")[0]
    while ":" in page_id:
        try:
            library.view_sections(page_id)
            break
        except ToolError:
            page_id = page_id.rpartition(":")[0]
    return page_id


def _read_args(docstring: str) -> dict[str, str]:
    """The parameters' meanings from the `Args:` section of a docstring; continued lines are joined."""
    section = re.match(r"(?:[ \t]+\S.*\n?)*", docstring.partition("\nArgs:\n")[2])
    assert section is not None, "it may be empty"
    entries = re.split(r"^(?=\S)", textwrap.dedent(section[0]), flags=re.MULTILINE)[1:]
    pairs = (entry.partition(":")[::2] for entry in entries)
    return {name.split(" ")[0]: " ".join(text.split()) for name, text in pairs}


def _import(where: str, spec: str) -> ModuleType:
    path = Path(where)
    if path.suffix != ".py":
        try:
            return importlib.import_module(where)
        except ImportError as error:
            raise ConfigError(f"tool {spec!r}: cannot import {where!r}: {error}") from None
    if not path.is_file():
        raise ConfigError(f"tool {spec!r}: no file at {path}")
    name = f"seekling_tool_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and type hints of the file look it up there
    try:
        SourceFileLoader(name, str(path)).exec_module(module)
    except (ImportError, SyntaxError) as error:
        del sys.modules[name]
        raise ConfigError(f"tool {spec!r}: cannot load {path}: {error}") from None
    return module
