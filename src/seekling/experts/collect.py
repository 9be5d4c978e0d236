"""Questions -> expert records: play each, drop failures and duplicates, and say what was dropped and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from seekling.config import ExpertConfig
from seekling.env.environment import SearchEnv
from seekling.errors import DataError
from seekling.experts.scripted import play
from seekling.reward.match import exact_match
from seekling.types import Episode, EpisodeRecord, Question


@dataclass(slots=True)
class CollectReport:
    """What became of the questions."""

    num_questions: int = 0
    num_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """How many were dropped for which reason."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common())
        return f"{self.num_kept} of {self.num_questions} expert episodes kept" + (
            f" (dropped: {reasons})" * bool(reasons)
        )


def collect(
    env: SearchEnv,
    questions: Sequence[Question],
    *,
    config: ExpertConfig | None = None,
    title_of: Callable[[str], str] = lambda page: page,
    on_question: Callable[[], None] = lambda: None,
) -> tuple[list[EpisodeRecord], CollectReport]:
    """Let the scripted expert answer questions.

    Args:
        env: the environment in which the policy will be trained.
        questions: in the order in which they are tried.
        config: how the expert goes about it, and how many episodes to keep; the default settings when None.
        title_of: gives a page's title for its id.
        on_question: called after each question, for progress.

    Returns:
        The kept records of stage "expert", and the report.

    Raises:
        DataError: not one episode was kept, so there would be nothing to learn from.
    """
    report = CollectReport()
    records = list(_kept(env, questions, report, config or ExpertConfig(), title_of, on_question))
    if not records:
        raise DataError(
            f"the expert answered none of {report.num_questions} questions: {dict(report.dropped)}; check that they "
            "belong to this corpus, and try more passages (retrieval.top_k) or a larger env.observation_tokens"
        )
    return records, report


def _kept(
    env: SearchEnv,
    questions: Sequence[Question],
    report: CollectReport,
    config: ExpertConfig,
    title_of: Callable[[str], str],
    on_question: Callable[[], None],
) -> Iterator[EpisodeRecord]:
    seen: set[tuple[str, ...]] = set()
    for question in questions:
        if config.max_episodes and report.num_kept >= config.max_episodes:
            return
        report.num_questions += 1
        result = play(env, question, config, title_of=title_of)
        on_question()
        if result.episode is None:
            report.dropped[result.reason] += 1
        elif not exact_match(result.episode.answer, question.answers):
            report.dropped["the answer was not accepted"] += 1
        elif (actions := normalized_actions(result.episode)) in seen:
            report.dropped["the same actions as another"] += 1
        else:
            seen.add(actions)
            report.num_kept += 1
            yield EpisodeRecord("expert", question, result.episode)


def normalized_actions(episode: Episode) -> tuple[str, ...]:
    """What was done, without case, white space and thoughts; equal for duplicates."""
    return tuple(re.sub(r"\s+", " ", turn.payload).strip().lower() for turn in episode.turns)
