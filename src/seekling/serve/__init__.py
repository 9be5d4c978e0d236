"""A policy in its environment: put together for training and evaluation, or behind `ask` once it is trained.

Also the servers of this package. The agent's names are imported when they are first used: a search server needs no
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seekling.serve.agent import Agent, load_agent, open_agent, open_asker
    from seekling.serve.asking import Answer, Asker, Quote, Source

__all__ = ["Agent", "Answer", "Asker", "Quote", "Source", "load_agent", "open_agent", "open_asker"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seekling.serve import agent, asking

    return (vars(agent) | vars(asking))[name]
