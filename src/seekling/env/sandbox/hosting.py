"""Calling the trainer's functions on behalf of a program, and putting their failures into words for it."""

from __future__ import annotations

import asyncio
import builtins
import inspect
from collections.abc import Awaitable, Mapping
from typing import cast

from seekling.config import SandboxConfig
from seekling.env.sandbox.interface import HostFunction
from seekling.env.sandbox.wire import clean_text
from seekling.errors import InfrastructureError, ToolError
from seekling.types import Json

_MAX_TEXT_CHARS = 2000
_CHANGES_THE_FLOW = (StopIteration, StopAsyncIteration, MemoryError, SyntaxError)
"""Built-in exceptions that would mean something else inside a program than where they were raised."""


class HostCallError(Exception):
    """A host function failed in a way that the program should see."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        """Name of a built-in exception, or ToolError."""
        self.text = text


def call_host_function(
    functions: Mapping[str, HostFunction], name: str, args: list[Json], kwargs: dict[str, Json]
) -> Json:
    """Call one of the functions; a coroutine function is run to its end.

    Raises:
        HostCallError: there is no such function, or it raised.
        InfrastructureError: as raised by the function: the program is not at fault.
    """
    function = functions.get(name)
    if function is None:
        raise HostCallError("NameError", f"there is no function {name!r} here")
    try:
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_wait_for(value))
    except BaseException as error:
        # Whatever a tool raises is a consequence of how the program called it, so it goes there: except what says that
        # the tool itself is out of order, and what is not an error at all, such as Ctrl-C.
        if isinstance(error, InfrastructureError) or not isinstance(error, Exception):
            raise
        raise _describe(function, name, args, kwargs, error) from error
    return cast(Json, value)  # what is not JSON is found out when it is encoded


def raise_if_too_slow(hosting_s: float, config: SandboxConfig) -> None:
    """Before a call: end the episode of a program whose calls have taken too long together.

    Args:
        hosting_s: seconds inside the provided functions so far.
        config: `max_host_s` is the limit.

    Raises:
        InfrastructureError: it is passed. How long a search takes is not the program's doing.
    """
    if hosting_s > config.max_host_s:
        raise InfrastructureError(
            f"the provided functions took {hosting_s:.1f} s in one program, more than env.sandbox.max_host_s = "
            f"{config.max_host_s:g}: what they rely on is too slow, or too many programs wait for it"
        )


async def _wait_for(value: Awaitable[object]) -> object:
    return await value


def _describe(
    function: HostFunction, name: str, args: list[Json], kwargs: dict[str, Json], error: Exception
) -> HostCallError:
    if isinstance(error, TypeError) and (problem := _signature_problem(function, args, kwargs)):
        return HostCallError("TypeError", f"{name}() {problem}")
    kind = next((cls.__name__ for cls in type(error).__mro__ if _is_known(cls)), "RuntimeError")
    # str(KeyError("x")) is "'x'", and the program's KeyError would quote it once more.
    text = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error)
    if kind == "Exception":
        kind, text = "RuntimeError", f"{type(error).__name__}: {text}"
    return HostCallError(kind, clean_text(text)[:_MAX_TEXT_CHARS])


def _is_known(cls: type) -> bool:
    if cls is ToolError:
        return True
    return vars(builtins).get(cls.__name__) is cls and not issubclass(cls, _CHANGES_THE_FLOW)


def _signature_problem(function: HostFunction, args: list[Json], kwargs: dict[str, Json]) -> str:
    """What is wrong with the number or the names of the arguments; empty when they fit."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return f"{error}"
    except ValueError:  # a built-in without a signature
        return ""
    return ""
