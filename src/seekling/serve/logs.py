"""What a server logs: a line of JSON for each request, and for whatever the package and its libraries warn of."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator

from seekling.types import Json


def json_line(row: dict[str, Json]) -> str:
    """A line of the log."""
    return json.dumps({"time": round(time.time(), 3), **row}, ensure_ascii=False)


@contextlib.contextmanager
def logging_as_json(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block every warning of any logger is one line of JSON, a traceback included, and nothing else.

    Libraries that set up logging of their own, as the MCP SDK does, leave it alone where there is a handler already.
    """
    root, mcp = logging.getLogger(), logging.getLogger("mcp")
    handlers, level = root.handlers[:], mcp.level
    root.handlers[:] = [_JsonLines(say)]
    mcp.setLevel(logging.ERROR)  # it warns of what clients do wrong, and they are told that
    try:
        yield
    finally:
        root.handlers[:] = handlers
        mcp.setLevel(level)


class _JsonLines(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say, self._plain = say, logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        row: dict[str, Json] = {"level": record.levelname.lower(), "logger": record.name}
        row["message"] = record.getMessage()
        if record.exc_info:
            row["traceback"] = self._plain.formatException(record.exc_info)
        self._say(json_line(row))
