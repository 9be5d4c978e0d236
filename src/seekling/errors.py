"""The failures a user can cause or meet, as one tree.

A message has three parts: what we got, what we expected, what to do next. A model's mistake is not here: it is a
`StopReason`. `assert` is for our own bugs.
"""

from __future__ import annotations


class SeeklingError(Exception):
    """Base of every error that seekling raises on purpose; the command line prints it without a traceback."""


class ConfigError(SeeklingError):
    """A recipe or an override is wrong."""


class DataError(SeeklingError):
    """A corpus, a question file, an episode file or an array is not what it should be."""


class ModelError(SeeklingError):
    """A model spec cannot be resolved, or its files are wrong."""


class IndexMismatchError(SeeklingError):
    """An index was made by something else than what now wants to use it, or is damaged."""


class SandboxError(SeeklingError):
    """The sandbox cannot start on this machine. Never raised for what a program does."""


class InfrastructureError(SeeklingError):
    """A search server, a sandbox or an engine failed while serving an episode: ends it as `infra_failure`."""


class ServerError(InfrastructureError):
    """A server cannot be reached, refuses, or answers something that is no answer; never an empty result."""


class ToolError(SeeklingError):
    """Raised by a tool for a wrong use of it; its text reaches the model."""


class NothingToLearnError(SeeklingError):
    """Training cannot make progress, for instance because every group has zero variance."""


class MissingExtraError(SeeklingError):
    """An optional package is not installed; the message names the command that installs it."""


class BudgetReachedError(SeeklingError):
    """A limit on dollars or tokens that the user set is reached; what was paid for is kept."""
