"""A policy in its environment: put together for training and evaluation, or behind `ask` once it is trained."""

from seekling.serve.agent import Agent, Answer, Source, load_agent, open_agent

__all__ = ["Agent", "Answer", "Source", "load_agent", "open_agent"]
