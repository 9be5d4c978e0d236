"""Runs that kill themselves: at the n-th thing they do to a file of their folder, or when a file grows past a size."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from seekling.config import Recipe

CHANGES = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"})
"""Audit events of what changes a folder; each is told before it happens."""


def run_in_child(recipe: Recipe, folder: Path, *, kill_at: int = 0, file_bytes: int = 0) -> tuple[int, int]:
    """Run a recipe in a process of its own, and have the kernel kill it.

    Args:
        recipe: what to run.
        folder: the run folder.
        kill_at: SIGKILL before the so manieth change to the folder; 0 never.
        file_bytes: SIGXFSZ, whose default is to kill, in the middle of the write that makes a file longer; 0 never.

    Returns:
        The exit code (minus the signal's number), and how many changes were counted.
    """
    context = _forkserver()
    counted = context.Value("i", 0)
    child = context.Process(target=_run, args=(recipe, folder, kill_at, file_bytes, counted))
    child.start()
    child.join()
    return child.exitcode, counted.value


def start_run(recipe: Recipe, folder: Path) -> BaseProcess:
    """Begin a run in a process of its own, to be killed from outside."""
    child = _forkserver().Process(target=_run_undisturbed, args=(recipe, folder))
    child.start()
    return child


def start_command(words: Sequence[object]) -> BaseProcess:
    """Begin a command of seekling in a process of its own, to be killed from outside.

    Args:
        words: of the command line, without `seekling`.
    """
    child = _forkserver().Process(target=_command, args=([str(word) for word in words],))
    child.start()
    return child


def _forkserver() -> ForkServerContext:
    """A server that has imported everything forks the children: importing takes longer than the whole run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["seekling.pipeline.stages", "tests.pipeline.runs", __name__])
    return context


def _command(words) -> None:
    from seekling.cli.main import main

    sys.argv = ["seekling", *words]
    main()


def _run_undisturbed(recipe, folder) -> None:
    from seekling.pipeline.stages import run_recipe
    from tests.pipeline.runs import QuietReporter

    run_recipe(recipe, folder, QuietReporter())


def _run(recipe, folder, kill_at, file_bytes, counted) -> None:
    inside = str(folder)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        is_reading = event == "open" and arguments[1] in ("r", "rb")
        if event in CHANGES and not is_reading and str(arguments[0]).startswith(inside):
            counted.value += 1
            if counted.value == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    if file_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would raise OSError instead
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    _run_undisturbed(recipe, folder)
