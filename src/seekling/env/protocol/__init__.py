"""The grammars an agent may act in: tags, code and tools."""

from __future__ import annotations

from collections.abc import Mapping

from seekling.config import EnvConfig
from seekling.env.protocol.code import CodeProtocol
from seekling.env.protocol.grammar import Action, Protocol
from seekling.env.protocol.tags import TagsProtocol
from seekling.env.protocol.tool_calls import ToolsProtocol
from seekling.env.tools import LIBRARY_TOOLS, RESERVED_NAMES, Tool
from seekling.errors import ConfigError

__all__ = ["Action", "CodeProtocol", "Protocol", "TagsProtocol", "ToolsProtocol", "make_protocol"]


def make_protocol(config: EnvConfig, tools: Mapping[str, Tool], *, native_tools: bool = False) -> Protocol:
    """Make the protocol that a recipe asks for, of the library's tools and the user's own, by name.

    `native_tools`: the model's chat template describes tools and writes calls as `<tool_call>{json}</tool_call>`; only
    the tools protocol makes use of it.

    Raises:
        ConfigError: one of the library's tools is missing, or a user's tool has a name that is taken.
    """
    missing = [name for name in LIBRARY_TOOLS if name not in tools]
    if missing:
        raise ConfigError(f"the library's tools {', '.join(missing)} are missing; start from library_tools(...)")
    for name, tool in tools.items():
        if name != tool.name or (name in RESERVED_NAMES and name not in LIBRARY_TOOLS):
            raise ConfigError(f"tool {tool.name!r}, given as {name!r}: the name is taken or not its own; rename it")
    if config.protocol == "tags":
        return TagsProtocol(config, tools)
    if config.protocol == "code":
        return CodeProtocol(config, tools)
    return ToolsProtocol(config, tools, native_tools=native_tools)
