"""What a benchmark runs on, in one line: processor, threads, versions."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from seekling.doctor.machine import look_at_machine


def describe(threads: int, *packages: str) -> str:
    """The processor, the threads in use and the versions of torch, transformers and further packages."""
    machine = look_at_machine(Path.cwd())
    features = ", ".join(machine.processor_features)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", *packages))
    return (
        f"{machine.processor} ({machine.num_cores:g} cores, {features}), {threads} threads, "
        f"Python {machine.python}, {versions}"
    )
