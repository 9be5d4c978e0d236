"""Runs the programs of the code protocol: hands the tools to the sandbox and explains what came of a program.

Where and how programs are confined is the sandbox's business; this module relies on its interface only.
"""

from __future__ import annotations

import ast
import json
import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping

from seekling.cores import cores_here
from seekling.env.sandbox.back_end import HostFunction, Result, Sandbox, SandboxSession
from seekling.env.schema import bind_arguments
from seekling.env.tools import Outcome, Tool, run_tool
from seekling.errors import InfrastructureError
from seekling.types import Json, ToolCall

_ENDINGS = {
    "timeout": "The program was stopped: it took too long.",
    "memory": "The program was stopped: it used too much memory.",
    "output_limit": "The program was stopped: it printed too much.",
    "crashed": "The program crashed Python.",
    "protocol": "The program was stopped: it broke the link to the provided functions.",
}
_PARSER_LOCK = threading.Lock()
PROGRAMS_AT_ONCE = max(1, int(cores_here() / 2))
"""More would take processors from each other and from decoding."""
_RUNNING = threading.Semaphore(PROGRAMS_AT_ONCE)

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_ERROR_LINE = re.compile(r"\w*(Error|Exception)\b")
NOT_PYTHON = "That is not valid Python. Put only code into the block, and prose before it."
STATE_LOST = "What earlier programs defined is gone; define again what you need."


class ProgramRunner:
    """The programs of one episode."""

    def __init__(
        self, sandbox: Sandbox, tools: Mapping[str, Tool], refusal_of: Callable[[Tool, Mapping[str, Json]], str]
    ) -> None:
        """Prepare; the interpreter is opened at the first program, since many episodes write none.

        Args:
            sandbox: runs the programs.
            tools: provided to them as functions.
            refusal_of: asked before each call that fits its tool; why it is refused, or an empty text.
        """
        self._sandbox = sandbox
        self._tools = tools
        self._refusal_of = refusal_of
        self._session: SandboxSession | None = None
        self._calls: list[ToolCall] = []
        self._is_closed = False

    def run(self, program: str) -> tuple[Outcome, tuple[ToolCall, ...]]:
        """Run a program and say what came of it.

        Returns:
            The outcome, and the calls that the program made.

        Raises:
            InfrastructureError: the sandbox or something a tool relies on is broken.
        """
        self._calls = []
        with _RUNNING:
            if self._is_closed:
                raise InfrastructureError("the episode was ended while its program waited for a processor")
            if self._session is None:
                functions = {name: self._host_function(tool) for name, tool in self._tools.items()}
                self._session = self._sandbox.open(functions)
            result = self._session.run(program)
        notes = tuple(_notes(program, result, self._tools))
        outcome = Outcome("python", {}, result.stdout, result.error_text, notes=notes, is_truncated=result.truncated)
        return outcome, tuple(self._calls)

    def close(self) -> None:
        """End the interpreter, if there is one; a program that still waits for its turn will not run."""
        self._is_closed = True
        if self._session is not None:
            self._session.close()
            self._session = None

    def _host_function(self, tool: Tool) -> HostFunction:
        def call(*positional: object, **named: object) -> object:
            arguments = bind_arguments(tool.name, tool.parameters, positional, named)
            _RUNNING.release()  # a program that waits for a tool takes no processor, and its clocks stand still
            try:
                outcome = run_tool(tool, arguments, self._refusal_of)  # an InfrastructureError ends the program
            finally:
                _RUNNING.acquire()
            self._calls.extend(outcome.records())
            if outcome.exception is not None:
                raise outcome.exception
            return _plain(outcome.value)

        return call


def redefined_names(program: str, provided: Collection[str]) -> list[str]:
    """Which provided functions a program binds anew (or deletes) at its top level.

    Args:
        program: Python source; one that does not parse redefines nothing.
        provided: names of the functions.

    Returns:
        The names, each once, in the order of the program.
    """
    tree = _parse(program)
    return list(dict.fromkeys(name for name in _bound_names(tree) if name in provided)) if tree else []


def _parse(program: str) -> ast.Module | None:
    # The lock: catch_warnings swaps the process's filters, so two at once would leave them wrong.
    with _PARSER_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a program's odd escapes are its own affair
        try:
            return ast.parse(program)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # The last two: deep nesting exhausts the parser's stack, not the machine's memory.
            return None


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Names bound in the module's own scope. Iterative, since a program may nest deeper than our stack."""
    open_nodes: list[ast.AST] = [tree]
    while open_nodes:
        node = open_nodes.pop()
        yield from _names_bound_by(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            # Loop variables stay inside, only := gets out.
            open_nodes.extend(each.target for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
            continue
        open_nodes.extend(reversed(list(ast.iter_child_nodes(node))))


def _names_bound_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case _ if isinstance(node, _NAMED):
            return [node.name] if node.name else []
        case _:
            return []


def _notes(program: str, result: Result, provided: Collection[str]) -> Iterator[str]:
    if redefined := redefined_names(program, provided):
        names, verb = ", ".join(redefined), "is" if len(redefined) == 1 else "are"
        yield f"Your program redefined {names}, which {verb} provided. Call it, do not define it."
    # A back end may have said these two already, in or after its traceback.
    is_bare_error = _ERROR_LINE.match(result.error_text.rpartition("\n")[2])
    if result.outcome == "error" and _parse(program) is None and is_bare_error:
        yield NOT_PYTHON
    if result.outcome in _ENDINGS and not result.error_text:
        yield _ENDINGS[result.outcome]
    if result.state_lost:
        yield STATE_LOST


def _plain(value: object) -> object:
    """What may cross into the sandbox: JSON as it is, all else as text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
