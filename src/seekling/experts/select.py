"""Collected episodes -> those worth training on, and what was dropped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from seekling.experts.collect import normalized_actions
from seekling.reward.match import exact_match
from seekling.types import EpisodeRecord, Json, StopReason

Balance = Literal["none", "kind", "question"]
_Rule = Callable[[EpisodeRecord], str]


@dataclass(frozen=True, slots=True)
class Dropped:
    """An episode that is not kept."""

    question: tuple[str, str]
    """Source and id."""
    kind: str
    reason: str


@dataclass(slots=True)
class Selection:
    """The kept episodes, and what became of the others."""

    kept: list[EpisodeRecord] = field(default_factory=list)
    """Of stage "expert", in the order of the file."""
    dropped: list[Dropped] = field(default_factory=list)

    def drop(self, record: EpisodeRecord, reason: str) -> None:
        """Note an episode that is not kept."""
        self.dropped.append(Dropped(record.question.key, record.question.kind, reason))

    @property
    def num_episodes(self) -> int:
        """Kept and dropped."""
        return len(self.kept) + len(self.dropped)

    @property
    def num_questions(self) -> int:
        """That have an episode."""
        return len({each.question.key for each in self.kept} | {each.question for each in self.dropped})

    def reasons(self) -> Counter[str]:
        """How many episodes were dropped for which reason."""
        return Counter(each.reason for each in self.dropped)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Episodes kept, and episodes in all, of each kind of question."""
        kept = Counter(each.question.kind for each in self.kept)
        every = kept + Counter(each.kind for each in self.dropped)
        return {kind: (kept[kind], every[kind]) for kind in sorted(every)}

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object with every dropped episode."""
        kinds: dict[str, Json] = {
            kind: {"kept": kept, "episodes": every} for kind, (kept, every) in self.by_kind().items()
        }
        dropped: list[Json] = [
            {"source": each.question[0], "id": each.question[1], "reason": each.reason} for each in self.dropped
        ]
        return {
            "num_questions": self.num_questions,
            "num_episodes": self.num_episodes,
            "num_kept": len(self.kept),
            "reasons": {reason: count for reason, count in self.reasons().most_common()},
            "kinds": kinds,
            "dropped": dropped,
        }

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons().most_common())
        return (
            f"{len(self.kept)} of {self.num_episodes} episodes of {self.num_questions} questions kept"
            + f" (dropped: {reasons})" * bool(reasons)
        )


def select_episodes(
    records: Sequence[EpisodeRecord],
    *,
    balance: Balance = "none",
    max_episodes: int = 0,
    refuse: _Rule = lambda record: "",
) -> Selection:
    """Keep what is correct, in the grammar, and not there already.

    An episode is correct when its answer matches exactly, or when a judge that was asked said so (`scores["judge"]`).

    Args:
        records: of any stage.
        balance: "kind" keeps of no kind more than of the rarest kept one, the first ones; "question" keeps one episode
            of each question, the one with the fewest characters written.
        max_episodes: keep at most the first so many; 0 keeps all.
        refuse: a further reason to drop an episode, or empty; asked first.

    Returns:
        The kept records, and the reasons of the others.
    """
    selection = Selection()
    seen: set[tuple[str, ...]] = set()
    kept: list[EpisodeRecord] = []
    for record in records:
        reason = refuse(record) or _why_unfit(record)
        actions = normalized_actions(record.episode)
        if not reason and actions in seen:
            reason = "the same actions as another"
        if reason:
            selection.drop(record, reason)
        else:
            seen.add(actions)
            kept.append(replace(record, stage="expert", scores={}, step=0, reward=None, advantage=None))
    for number, record in enumerate(_balanced(kept, balance, selection)):
        if max_episodes and number >= max_episodes:
            selection.drop(record, "there are enough")
        else:
            selection.kept.append(record)
    return selection


def is_correct(record: EpisodeRecord) -> bool:
    """By exact match, or by a judge that was asked."""
    return bool(exact_match(record.episode.answer, record.question.answers)) or record.scores.get("judge") == 1.0


def _why_unfit(record: EpisodeRecord) -> str:
    episode = record.episode
    if episode.stop_reason is StopReason.INFRA_FAILURE:
        return "an infrastructure failure"
    if episode.stop_reason is not StopReason.ANSWERED:
        return f"no answer ({episode.stop_reason.value})"
    if not is_correct(record):
        return "a wrong answer"
    if any(turn.kind == "invalid" for turn in episode.turns):
        return "an action outside the grammar"
    return ""


def _balanced(records: list[EpisodeRecord], balance: Balance, selection: Selection) -> list[EpisodeRecord]:
    if balance == "kind":
        counts = Counter(record.question.kind for record in records)
        limit = min(counts.values(), default=0)
        taken: Counter[str] = Counter()
        chosen = []
        for record in records:
            taken[record.question.kind] += 1
            if taken[record.question.kind] > limit:
                selection.drop(record, "more of its kind than of the rarest")
            else:
                chosen.append(record)
        return chosen
    if balance == "question":
        shortest: dict[tuple[str, str], EpisodeRecord] = {}
        for record in sorted(records, key=_num_chars):
            shortest.setdefault(record.question.key, record)
        chosen = [record for record in records if shortest[record.question.key] is record]
        for record in records:
            if shortest[record.question.key] is not record:
                selection.drop(record, "longer than another of its question")
        return chosen
    return records


def _num_chars(record: EpisodeRecord) -> int:
    return sum(len(turn.action) for turn in record.episode.turns)
