"""Runs Python that a language model wrote, as if an attacker had written it.

`open_sandbox` starts a fork server; `Sandbox.open` gives one episode an interpreter of its own; `SandboxSession.run`
runs a program in it and says what happened. The server forks a confined child per episode from a clean interpreter
(`guest/`).

What it does NOT stop: a bug in the Linux kernel behind an allowed system call; timing and cache side channels between
processes of one machine; a program that burns its share of processor and memory up to the limits; whatever the
provided functions themselves allow. docs/SECURITY.md says how to add a further wall.
"""

from __future__ import annotations

from seekling.config import SandboxConfig
from seekling.env.sandbox.back_end import OUTCOMES, HostFunction, Outcome, Result, Sandbox, SandboxSession
from seekling.env.sandbox.pool import ZygoteSandbox

__all__ = ["OUTCOMES", "HostFunction", "Outcome", "Result", "Sandbox", "SandboxSession", "open_sandbox"]


def open_sandbox(config: SandboxConfig) -> Sandbox:
    """Start the fork server.

    Args:
        config: the limits on each program.

    Returns:
        A sandbox; use it as a context manager, or close it.

    Raises:
        SandboxError: this machine cannot run it, or not safely.
    """
    return ZygoteSandbox(config)
