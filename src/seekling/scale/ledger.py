"""What became of every group of episodes that was handed out: one line when it goes out, and lines when it comes back.

An attempt is one handing out of one group; its number is never used again, also by later processes of the run. Each
ends exactly once: its episodes are used, or it is dropped and the reason written down. A used one is dropped after all
when a run goes on from a state before its step. `problems` compares this with `episodes/rl.jsonl`. Evaluations have
step 0, and files that tell which of their episodes count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seekling.files import read_appended
from seekling.types import Json


@dataclass(slots=True)
class Attempt:
    """One handing out of one group, as the ledger tells it."""

    number: int
    step: int
    """Of RL, from 1; 0 for an evaluation."""
    group: int
    """Position of its question in the rollout."""
    num_returned: int = 0
    """Episodes that came back, failed ones included."""
    is_used: bool = False
    reasons: list[str] = field(default_factory=list)
    """Why it was dropped, each time that it was."""

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended it."""
        return not self.is_used and not self.reasons

    @property
    def counts(self) -> bool:
        """Whether its episodes are among those that were learned from."""
        return self.is_used and not self.reasons and self.step > 0


class Ledger:
    """A file of JSON lines, appended to by one process at a time. What an earlier one left open is dropped first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        attempts = read_attempts(path)
        self._next = max((each.number for each in attempts), default=0) + 1
        self._used = {each.number: each.step for each in attempts if each.counts}
        for each in attempts:
            if each.is_open:
                self.drop(each.number, "the driver stopped")

    def dispatch(self, step: int, group: int, *, sampler: int, weights: int) -> int:
        """Note that a group goes out; returns the attempt's number."""
        number, self._next = self._next, self._next + 1
        self.note("dispatched", attempt=number, step=step, group=group, sampler=sampler, weights=weights)
        return number

    def take_back(self, attempt: int, *, episodes: int) -> None:
        """Note that a group has come back, with so many episodes."""
        self.note("returned", attempt=attempt, episodes=episodes)

    def use(self, attempt: int, step: int) -> None:
        """Note that a group goes to training, or to an evaluation."""
        self.note("used", attempt=attempt)
        if step:
            self._used[attempt] = step

    def drop(self, attempt: int, why: str) -> None:
        """Note that an attempt's episodes count for nothing, if there are any."""
        self.note("dropped", attempt=attempt, why=why)

    def rewind(self, step: int) -> None:
        """Drop what was used in this step and later ones: they are done again."""
        for attempt in [number for number, used in self._used.items() if used >= step]:
            self.drop(attempt, "the run went on from an earlier step")
            del self._used[attempt]

    def note(self, event: str, **fields: Json) -> None:
        """Append a line; it is the operating system's when this returns, and outlives a killed process."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **fields, "time": round(time.time(), 3)}) + "\n")


def read_attempts(path: Path) -> list[Attempt]:
    """All attempts of a ledger, in the order they went out. Damaged lines, which a kill may leave, are passed over."""
    attempts: dict[int, Attempt] = {}
    for line in read_appended(path):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["event"] == "dispatched":
            attempts[row["attempt"]] = Attempt(row["attempt"], row["step"], row["group"])
        each = attempts.get(row.get("attempt", 0))
        if each is not None and row["event"] == "returned":
            each.num_returned = row["episodes"]
        elif each is not None and row["event"] == "used":
            each.is_used = True
        elif each is not None and row["event"] == "dropped":
            each.reasons.append(row["why"])
    return list(attempts.values())


def problems(path: Path, episodes: Mapping[int, int]) -> list[str]:
    """What does not balance in the ledger of a run whose RL is over; `episodes` has how many were kept of each step."""
    attempts = read_attempts(path)
    found = [f"attempt {each.number} has no end" for each in attempts if each.is_open]
    found += [f"attempt {each.number} was dropped {len(each.reasons)} times" for each in attempts if each.reasons[1:]]
    found += [f"attempt {each.number} was used, not returned" for each in attempts if each.is_used > each.num_returned]
    for step in sorted({each.step for each in attempts if each.counts}):
        wanted = {each.group for each in attempts if each.step == step}
        mine = [each for each in attempts if each.step == step and each.counts]
        if sorted(each.group for each in mine) != sorted(wanted):
            found.append(f"step {step} used groups {sorted(each.group for each in mine)} of {sorted(wanted)}")
        num_used, num_kept = sum(each.num_returned for each in mine), episodes.get(step, 0)
        if num_used != num_kept:
            found.append(f"step {step} used {num_used} episodes, and {num_kept} were kept")
    return found
