"""Runs Python that a language model wrote, as if an attacker had written it.

`Sandbox` starts a fork server, which forks a confined child per episode from a clean interpreter (`guest/`);
`Sandbox.open` gives an episode its session, and `SandboxSession.run` runs a program and says what happened.

What it does NOT stop: a bug in the Linux kernel behind an allowed system call; timing and cache side channels between
processes of one machine; a program that burns its share of processor and memory up to the limits; whatever the
provided functions themselves allow. docs/SECURITY.md says how to add a further wall.
"""

from __future__ import annotations

from seekling.env.sandbox.frames import OUTCOMES, Outcome
from seekling.env.sandbox.program import HostFunction, Result
from seekling.env.sandbox.session import Sandbox, SandboxSession

__all__ = ["OUTCOMES", "HostFunction", "Outcome", "Result", "Sandbox", "SandboxSession"]
