"""The grammars an agent may act in: tags, code and tools."""

from __future__ import annotations

from collections.abc import Mapping

from seekling.config import EnvConfig
from seekling.env.protocol.code import CodeProtocol
from seekling.env.protocol.grammar import Action, Protocol
from seekling.env.protocol.tags import TagsProtocol
from seekling.env.protocol.tool_calls import ToolsProtocol
from seekling.env.tools import Tool

__all__ = ["Action", "CodeProtocol", "Protocol", "TagsProtocol", "ToolsProtocol", "make_protocol"]


def make_protocol(config: EnvConfig, tools: Mapping[str, Tool], *, native_tools: bool = False) -> Protocol:
    """Make the protocol that a recipe asks for, of the library's tools and the user's own, by name.

    `native_tools`: the model's chat template describes tools and writes calls as `<tool_call>{json}</tool_call>`; only
    the tools protocol makes use of it.
    """
    if config.protocol == "tags":
        return TagsProtocol(config, tools)
    if config.protocol == "code":
        return CodeProtocol(config, tools)
    return ToolsProtocol(config, tools, native_tools=native_tools)
