"""Episodes -> those worth training on, and what was dropped and why: of the scripted expert, or of a teacher."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from seekling.config import ExpertConfig
from seekling.env.environment import SearchEnv
from seekling.errors import DataError
from seekling.experts.scripted import play
from seekling.reward.match import exact_match
from seekling.types import Episode, EpisodeRecord, Json, Question, StopReason

Balance = Literal["none", "kind", "question"]


@dataclass(slots=True)
class Selection:
    """The kept episodes, and what became of the others."""

    kept: list[EpisodeRecord] = field(default_factory=list)
    """Of stage "expert", in order."""
    dropped: list[tuple[Question, str]] = field(default_factory=list)
    """Whose episode is not kept, and why."""

    @property
    def num_episodes(self) -> int:
        """Kept and dropped."""
        return len(self.kept) + len(self.dropped)

    @property
    def num_questions(self) -> int:
        """That have an episode."""
        return len({each.question.key for each in self.kept} | {question.key for question, _ in self.dropped})

    def reasons(self) -> Counter[str]:
        """How many episodes were dropped for which reason."""
        return Counter(reason for _, reason in self.dropped)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Episodes kept, and episodes in all, of each kind of question."""
        kept = Counter(each.question.kind for each in self.kept)
        every = kept + Counter(question.kind for question, _ in self.dropped)
        return {kind: (kept[kind], every[kind]) for kind in sorted(every)}

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object with every dropped episode."""
        return {
            "num_questions": self.num_questions,
            "num_episodes": self.num_episodes,
            "num_kept": len(self.kept),
            "reasons": dict(self.reasons().most_common()),
            "kinds": {kind: {"kept": kept, "episodes": every} for kind, (kept, every) in self.by_kind().items()},
            "dropped": [{"source": each.source, "id": each.id, "reason": reason} for each, reason in self.dropped],
        }

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons().most_common())
        text = f"{len(self.kept)} of {self.num_episodes} episodes of {self.num_questions} questions kept"
        return f"{text} (dropped: {reasons})" if reasons else text


def collect(
    env: SearchEnv,
    questions: Iterable[Question],
    *,
    config: ExpertConfig | None = None,
    title_of: Callable[[str], str] = lambda page: page,
    on_question: Callable[[], None] = lambda: None,
) -> Selection:
    """Let the scripted expert answer questions; keep what is right, and none with the actions of another.

    Args:
        env: the environment in which the policy will be trained.
        questions: in the order in which they are tried.
        config: how the expert goes about it, and how many episodes to keep; the default settings when None.
        title_of: as for `play`.
        on_question: called after each question, for progress.

    Raises:
        DataError: not one episode was kept, so there would be nothing to learn from.
    """
    config, selection, seen = config or ExpertConfig(), Selection(), set[tuple[str, ...]]()
    for question in questions:
        if config.max_episodes and len(selection.kept) >= config.max_episodes:
            break
        episode, reason = play(env, question, config, title_of=title_of)
        on_question()
        if episode is not None and not exact_match(episode.answer, question.answers):
            reason = "the answer was not accepted"
        elif episode is not None and _is_repeated(episode, seen):
            reason = "the same actions as another"
        if episode is None or reason:
            selection.dropped.append((question, reason))
        else:
            selection.kept.append(EpisodeRecord("expert", question, episode))
    if not selection.kept:
        raise DataError(
            f"the expert answered none of {selection.num_questions} questions: {dict(selection.reasons())}; check that "
            "they belong to this corpus, and try more passages (retrieval.top_k) or a larger env.observation_tokens"
        )
    return selection


def select_episodes(
    records: Sequence[EpisodeRecord],
    *,
    balance: Balance = "none",
    max_episodes: int = 0,
    refuse: Callable[[EpisodeRecord], str] = lambda record: "",
) -> Selection:
    """Keep what is correct, in the grammar, and not there already.

    Args:
        records: of any stage.
        balance: "kind" keeps of no kind more than of the rarest kept one, the first ones; "question" keeps one episode
            of each question, the one with the fewest characters written.
        max_episodes: keep at most the first so many; 0 keeps all.
        refuse: a further reason to drop an episode, or empty; asked first.
    """
    selection, seen, fit = Selection(), set[tuple[str, ...]](), list[EpisodeRecord]()
    for record in records:
        reason = refuse(record) or _why_unfit(record)
        if not reason and _is_repeated(record.episode, seen):
            reason = "the same actions as another"
        if reason:
            selection.dropped.append((record.question, reason))
        else:
            fit.append(replace(record, stage="expert", scores={}, step=0, reward=None, advantage=None))
    for record, reason in zip(fit, _surplus(fit, balance), strict=True):
        if not reason and max_episodes and len(selection.kept) >= max_episodes:
            reason = "there are enough"
        if reason:
            selection.dropped.append((record.question, reason))
        else:
            selection.kept.append(record)
    return selection


def is_correct(record: EpisodeRecord) -> bool:
    """By exact match, or by a judge that was asked (`scores["judge"]`)."""
    return bool(exact_match(record.episode.answer, record.question.answers)) or record.scores.get("judge") == 1.0


def _why_unfit(record: EpisodeRecord) -> str:
    episode = record.episode
    if episode.stop_reason is StopReason.INFRA_FAILURE:
        return "an infrastructure failure"
    if episode.stop_reason is not StopReason.ANSWERED:
        return f"no answer ({episode.stop_reason.value})"
    if not is_correct(record):
        return "a wrong answer"
    return "an action outside the grammar" if any(turn.kind == "invalid" for turn in episode.turns) else ""


def _is_repeated(episode: Episode, seen: set[tuple[str, ...]]) -> bool:
    """Whether an episode before did the same, but for case, white space and thoughts."""
    actions = tuple(re.sub(r"\s+", " ", turn.payload).strip().lower() for turn in episode.turns)
    is_repeated = actions in seen
    seen.add(actions)
    return is_repeated


def _surplus(records: Sequence[EpisodeRecord], balance: Balance) -> list[str]:
    """For each record why it is one too many; empty for those that stay."""
    if balance == "kind":
        limit = min(Counter(record.question.kind for record in records).values(), default=0)
        taken = Counter[str]()
        reasons = []
        for record in records:
            taken[record.question.kind] += 1
            reasons.append("more of its kind than of the rarest" * (taken[record.question.kind] > limit))
        return reasons
    shortest: dict[tuple[str, str], EpisodeRecord] = {}
    for record in sorted(records, key=_num_chars) if balance == "question" else ():
        shortest.setdefault(record.question.key, record)
    return ["longer than another of its question" * (shortest.get(r.question.key, r) is not r) for r in records]


def _num_chars(record: EpisodeRecord) -> int:
    return sum(len(turn.action) for turn in record.episode.turns)
