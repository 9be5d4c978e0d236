"""What became of every group of episodes that was handed out: one line when it goes out, and lines when it comes back.

An attempt is one handing out of one group; its number is never used again, also by later processes of the run. Each
ends exactly once: its episodes are used, or it is dropped and the reason written down. A used one is dropped after all
when a run goes on from a state before its step. So the episodes that training took can be counted in two places, here
and in `episodes/rl.jsonl`, and `problems` compares what must agree.

Evaluations are in it too; which of their episodes count is told by their own files.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
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
    returned: int | None = None
    """Episodes that came back, failed ones included; None: nothing has."""
    used: bool = False
    dropped: list[str] = field(default_factory=list)
    """Why, each time that it was."""

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended it."""
        return not self.used and not self.dropped

    @property
    def counts(self) -> bool:
        """Whether its episodes are among those that were learned from."""
        return self.used and not self.dropped


class Ledger:
    """A file of JSON lines, appended to by one process at a time.

    What an earlier process left open is dropped when the ledger is opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        attempts = read_attempts(path)
        self._next = max((each.number for each in attempts), default=0) + 1
        self._used = {each.number: each.step for each in attempts if each.counts and each.step}
        self.reasons: Counter[str] = Counter()
        """How often what was dropped by this process, by reason."""
        for each in attempts:
            if each.is_open:
                self.drop(each.number, "the driver stopped")

    def dispatch(self, step: int, group: int, *, sampler: int, weights: int) -> int:
        """Note that a group goes out.

        Returns:
            The attempt's number.
        """
        number, self._next = self._next, self._next + 1
        self._write("dispatched", attempt=number, step=step, group=group, sampler=sampler, weights=weights)
        return number

    def take_back(self, attempt: int, *, episodes: int) -> None:
        """Note that a group has come back, with so many episodes."""
        self._write("returned", attempt=attempt, episodes=episodes)

    def use(self, attempt: int, step: int) -> None:
        """Note that a group goes to training, or to an evaluation."""
        self._write("used", attempt=attempt)
        if step:
            self._used[attempt] = step

    def drop(self, attempt: int, why: str) -> None:
        """Note that an attempt's episodes count for nothing, if there are any."""
        self._write("dropped", attempt=attempt, why=why)
        self.reasons[why] += 1

    def rewind(self, step: int) -> None:
        """Drop what was used in this step and later ones: they are done again."""
        for attempt in [number for number, used in self._used.items() if used >= step]:
            self.drop(attempt, "the run went on from an earlier step")
            del self._used[attempt]

    def note(self, event: str, **fields: Json) -> None:
        """Note something about a sampler."""
        self._write(event, **fields)

    def _write(self, event: str, **fields: Json) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:  # one write, gone to the system before we go on
            file.write(json.dumps({"event": event, **fields, "time": round(time.time(), 3)}) + "\n")


def read_attempts(path: Path) -> list[Attempt]:
    """All attempts of a ledger, in the order they went out. Damaged lines, which a kill may leave, are passed over."""
    attempts: dict[int, Attempt] = {}
    for row in _rows(path):
        number = row.get("attempt")
        if not isinstance(number, int):
            continue
        if row["event"] == "dispatched":
            attempts[number] = Attempt(number, row["step"], row["group"])
        elif number in attempts and row["event"] == "returned":
            attempts[number].returned = row["episodes"]
        elif number in attempts and row["event"] == "used":
            attempts[number].used = True
        elif number in attempts:
            attempts[number].dropped.append(row["why"])
    return list(attempts.values())


def problems(path: Path, *, groups_per_step: int, episodes: Counter[int]) -> list[str]:
    """What does not balance in a ledger, in words.

    Args:
        path: the ledger of a run that is over.
        groups_per_step: questions of an RL step.
        episodes: how many each RL step has in the run's episodes file.
    """
    attempts = read_attempts(path)
    found = [f"attempt {each.number} has no end" for each in attempts if each.is_open]
    found += [f"attempt {each.number} was dropped {len(each.dropped)} times" for each in attempts if each.dropped[1:]]
    found += [f"attempt {each.number} was used, not returned" for each in attempts if each.used and not each.returned]
    counted = [each for each in attempts if each.counts and each.step]
    for (step, group), times in Counter((each.step, each.group) for each in counted).items():
        if times != 1:
            found.append(f"step {step} used group {group} {times} times")
    for step in sorted({*episodes, *(each.step for each in counted)}):
        mine = [each for each in counted if each.step == step]
        if len(mine) != groups_per_step:
            found.append(f"step {step} used {len(mine)} groups of {groups_per_step}")
        if sum(each.returned or 0 for each in mine) != episodes[step]:
            found.append(
                f"step {step}: {sum(each.returned or 0 for each in mine)} episodes used, {episodes[step]} kept"
            )
    return found


def _rows(path: Path) -> Iterator[dict[str, Json]]:
    for line in read_appended(path):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "event" in row:
            yield row
