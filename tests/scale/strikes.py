"""Deaths at random moments: of a sampler with a group in its hands, of a learner rank within a call, of the driver.

A point is a number that seeds the dice. A process is first stopped: when it turns out to have had nothing to do, it
goes on, and the next occasion is taken. So every death of a sampler or rank is one in the middle of something.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seekling.config import Recipe
from tests.patience import wait_until
from tests.pipeline.killing import start_run
from tests.pipeline.runs import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

POINTS = range(int(os.environ.get("SEEKLING_KILLS", "1")))
GROUP_S = 0.2
"""How long a group takes, at most, when the sampler is warm."""
CALL_S = 0.05
"""How long a learner's call takes, at most."""
TAKE_S = 0.3
"""So long the driver may take to note what has been finished."""


@dataclass(frozen=True)
class Death:
    """Of a sampler."""

    process: int
    attempts: frozenset[int]
    """What it had not given back."""


def events(run: Path) -> list[dict[str, object]]:
    """What the ledger of a run says so far."""
    path = run / "ledger.jsonl"
    return rows(path) if path.exists() else []


def dispatched(run: Path) -> int:
    """How many groups have been handed out so far."""
    return sum(row["event"] == "dispatched" for row in events(run))


def wait_for_group(run: Path, number: int, dice: random.Random, is_over: Callable[[], bool]) -> None:
    """Until the n-th group was handed out, and for a random part of the time that a group takes."""
    wait_until(lambda: dispatched(run) >= number or is_over())
    out, took_s = {}, []
    for row in events(run):
        if row["event"] == "dispatched":
            out[row["attempt"]] = row["time"]
        elif row["event"] == "returned":
            took_s.append(row["time"] - out[row["attempt"]])
    time.sleep(dice.random() * min([GROUP_S, *took_s]))


@contextlib.contextmanager
def killing(
    run: Path,
    numbers: Sequence[int],
    dice: random.Random,
    *,
    kill: Callable[[int], None] = lambda process: os.kill(process, signal.SIGKILL),
    may_die: Callable[[int], bool] = lambda process: True,
) -> Iterator[list[Death]]:
    """While a run goes on, kill a sampler with a group when so many have been handed out; yields the deaths."""
    deaths: list[Death] = []
    is_over = threading.Event()

    def watch() -> None:
        for number in sorted(numbers):
            death = None
            while death is None and not is_over.is_set():
                number = max(number, dispatched(run))
                wait_for_group(run, number, dice, is_over.is_set)
                death = _strike(run, dice, kill, may_die)
                number += 1
            if death is not None:
                deaths.append(death)

    with _meanwhile(watch, is_over):
        yield deaths


@contextlib.contextmanager
def stopping(run: Path, number: int) -> Iterator[list[int]]:
    """While a run goes on, stop the sampler that was given the n-th group, at once and for good; yields its process."""
    stopped: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        wait_until(lambda: dispatched(run) >= number or is_over.is_set())
        last = [row for row in events(run) if row["event"] == "dispatched"][-1]
        process = _processes(run)[last["sampler"]]
        os.kill(process, signal.SIGSTOP)
        stopped.append(process)

    with _meanwhile(watch, is_over):
        yield stopped


def kill_rank_within_a_call(monkeypatch: pytest.MonkeyPatch, number: int, dice: random.Random) -> list[str]:
    """Kill a learner rank in the middle of the n-th call that learns; returns where that call's name will be."""
    from seekling.scale.sharded import Ranks

    struck: list[str] = []
    call, numbers = Ranks.call, count(1)

    def watched(self: Ranks, method: str, *args: object, **how: object) -> list[object]:
        learns = method == "run" and args[1] in ("forward_backward", "optim_step")
        if not learns or struck or next(numbers) < number:
            return call(self, method, *args, **how)
        is_over, process = threading.Event(), dice.choice(self.processes)

        def strike() -> None:
            if is_over.wait(dice.random() * CALL_S):
                return
            os.kill(process, signal.SIGSTOP)
            if is_over.wait(TAKE_S):
                os.kill(process, signal.SIGCONT)
            else:
                os.kill(process, signal.SIGKILL)
                struck.append(str(args[1]))

        with _meanwhile(strike, is_over):
            return call(self, method, *args, **how)

    monkeypatch.setattr(Ranks, "call", watched)
    return struck


def kill_driver(recipe: Recipe, run: Path, number: int, dice: random.Random) -> None:
    """Begin a run in a process of its own, and kill that soon after it has handed out its n-th group."""
    driver = start_run(recipe, run)
    wait_for_group(run, number, dice, lambda: not driver.is_alive())
    driver.kill()
    driver.join()
    assert driver.exitcode == -signal.SIGKILL, "it ended before"


@contextlib.contextmanager
def _meanwhile(work: Callable[[], None], is_over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _strike(
    run: Path, dice: random.Random, kill: Callable[[int], None], may_die: Callable[[int], bool]
) -> Death | None:
    """Kill one of the samplers that have groups; None when it turns out to have none."""
    processes = _processes(run)
    samplers = sorted({each for each in _owners(run).values() if may_die(processes[each])})
    if not samplers:
        return None
    sampler = dice.choice(samplers)
    process = processes[sampler]
    try:
        os.kill(process, signal.SIGSTOP)
        had = {attempt for attempt, owner in _owners(run).items() if owner == sampler}
        time.sleep(TAKE_S)
        mine = frozenset(had & _owners(run).keys())
        if mine:
            kill(process)
        else:
            os.kill(process, signal.SIGCONT)
    except ProcessLookupError:  # dead already, and nobody has taken note of it yet
        return None
    return Death(process, mine) if mine else None


def _owners(run: Path) -> dict[int, int]:
    """The samplers of attempts that are out."""
    found: dict[int, int] = {}
    for row in events(run):
        if row["event"] == "dispatched":
            found[row["attempt"]] = row["sampler"]
        elif row["event"] in ("returned", "dropped"):
            found.pop(row["attempt"], None)
    return found


def _processes(run: Path) -> dict[int, int]:
    return {row["sampler"]: row["process"] for row in events(run) if row["event"] == "started"}
