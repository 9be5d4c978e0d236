"""What the programs of the code protocol do: loops, helpers, extraction, and wrong use of what is provided.

Programs are parsed, never run. One that does not parse has no habits but its error.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator

from seekling.env.programs import redefined_names
from seekling.env.protocol.code import NOTHING_PRINTED
from seekling.env.tools import LIBRARY_TOOLS
from seekling.types import Episode, Turn

PROVIDED = tuple(name for name in LIBRARY_TOOLS if name != "search")
"""Functions that every program can call; the user's own tools come on top."""

_EXTRACTING_METHODS = frozenset(
    ["find", "rfind", "index", "rindex", "split", "rsplit", "splitlines", "partition", "rpartition"]
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")
_WRONG_SHAPE = re.compile(
    r"^(KeyError: |AttributeError: '(dict|list|str)' object|TypeError: (list|string|str)\b.*indices)", re.MULTILINE
)
_LIST_HAS_NO = re.compile(r"AttributeError: 'list' object has no attribute '(\w+)'")
_OWN_LIST = r"\.r?split(?:lines)?\([^()]*\)\s*\.{}\b"
_WRONG_USE = re.compile(r"^ToolError: (?!No searches are left|\d+ searches asked)", re.MULTILINE)
_NO_SUCH_TOOL = "there is no tool"


def program_habits(episode: Episode) -> Iterator[str]:
    """Names of the behaviours that an episode's programs show, perhaps more than once."""
    has_page_text = False
    for turn in episode.turns:
        if turn.kind != "code":
            continue
        if NOTHING_PRINTED in turn.observation:
            yield "silent_execution"
        has_page_text = has_page_text or any(call.name == "read_section" and not call.error for call in turn.calls)
        tree = _parse(turn.payload)
        nodes = list(ast.walk(tree)) if tree is not None else []
        if any(isinstance(node, _LOOPS) for node in nodes):
            yield "loop"
        if any(_is_helper(node) for node in nodes):
            yield "helper_function"
        if has_page_text and any(_is_extraction(node) for node in nodes):
            yield "programmatic_extraction"


def is_misuse(turn: Turn, provided: Iterable[str]) -> bool:
    """Whether a turn uses the provided functions wrongly: redefines, misnames, or misreads their input or output."""
    if any(call.error for call in turn.calls):
        return True
    if turn.kind != "code":
        return turn.kind in ("search", "call") and _NO_SUCH_TOOL in turn.observation
    if redefined_names(turn.payload, tuple(provided)):
        return True
    error = turn.observation.partition("Error:\n")[2]
    unknown = _UNKNOWN_NAME.search(error)
    if unknown is not None:
        # A misspelt variable is a bug of the program; a misspelt function is a wrong idea of what is provided.
        return re.search(rf"\b{unknown.group(1)}\s*\(", turn.payload) is not None
    if _WRONG_SHAPE.search(error):
        if any(re.search(_OWN_LIST.format(name), turn.payload) for name in _LIST_HAS_NO.findall(error)):
            return False  # a bug of its own: what is provided returned no such list
        return any(name in turn.payload for name in provided) or "page" in turn.payload
    return _WRONG_USE.search(error) is not None


def provided_names(episode: Episode) -> tuple[str, ...]:
    """The library's functions, and the user's tools as far as the episode called them."""
    return tuple(dict.fromkeys((*PROVIDED, *(call.name for turn in episode.turns for call in turn.calls))))


def _parse(program: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a program's odd escapes are its own affair
        try:
            return ast.parse(program)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _is_helper(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name not in PROVIDED
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)


def _is_extraction(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"))):
            return True
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _EXTRACTING_METHODS
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)):
            # The first thousand characters are a page's beginning, not a place that was looked for.
            return any(bound is not None and not _is_number(bound) for bound in (lower, upper))
        case _:
            return False


def _is_number(bound: ast.expr) -> bool:
    return isinstance(bound.operand if isinstance(bound, ast.UnaryOp) else bound, ast.Constant)
