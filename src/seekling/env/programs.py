"""Runs the programs of the code protocol: hands the tools to the sandbox and explains what came of a program."""

from __future__ import annotations

import json
import symtable
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping

from seekling.cores import cores_here
from seekling.env.sandbox import HostFunction, Result, Sandbox, SandboxSession
from seekling.env.schema import bind_arguments
from seekling.env.tools import Outcome, Tool, run_tool
from seekling.errors import InfrastructureError
from seekling.types import Json, ToolCall

PROGRAMS_AT_ONCE = max(1, int(cores_here() / 2))
"""More would take processors from each other and from decoding."""
_RUNNING = threading.Semaphore(PROGRAMS_AT_ONCE)
_PARSER_LOCK = threading.Lock()
NOT_PYTHON = "That is not valid Python. Put only code into the block, and prose before it."
STATE_LOST = "What earlier programs defined is gone; define again what you need."


class ProgramRunner:
    """The programs of one episode. The interpreter is opened at the first program, since many episodes write none.

    `refusal_of` is asked before each call that fits its tool; why it is refused, or an empty text.
    """

    def __init__(
        self, sandbox: Sandbox, tools: Mapping[str, Tool], refusal_of: Callable[[Tool, Mapping[str, Json]], str]
    ) -> None:
        self._sandbox, self._tools, self._refusal_of = sandbox, tools, refusal_of
        self._session: SandboxSession | None = None
        self._calls: list[ToolCall] = []
        self._is_closed = False

    def run(self, program: str) -> tuple[Outcome, tuple[ToolCall, ...]]:
        """Run a program; return what came of it and the calls that it made.

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
    """Which provided functions a program binds anew (or deletes) at its top level, in the order they are provided.

    A program that is not Python redefines nothing.
    """
    names = _bound_names(program) or ()
    return [name for name in provided if name in names]


def _bound_names(program: str) -> set[str] | None:
    """Names that a program binds in its module's scope; None when it is not Python."""
    # The lock: catch_warnings swaps the process's filters, so two at once would leave them wrong.
    with _PARSER_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a program's odd escapes are its own affair
        try:
            symbols = symtable.symtable(program, "<program>", "exec").get_symbols()
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # The last two: deep nesting exhausts the parser's stack, not the machine's memory.
            return None
    is_bound = (each.is_assigned() or each.is_imported() or each.is_declared_global() for each in symbols)
    return {each.get_name() for each, is_here in zip(symbols, is_bound, strict=True) if is_here}


def _notes(program: str, result: Result, provided: Collection[str]) -> Iterator[str]:
    if redefined := redefined_names(program, provided):
        names, verb = ", ".join(redefined), "is" if len(redefined) == 1 else "are"
        yield f"Your program redefined {names}, which {verb} provided. Call it, do not define it."
    if result.outcome == "error" and _bound_names(program) is None:
        yield NOT_PYTHON
    if result.state_lost:
        yield STATE_LOST


def _plain(value: object) -> object:
    """What may cross into the sandbox: JSON as it is, all else as text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
