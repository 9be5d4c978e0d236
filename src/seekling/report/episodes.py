"""Episodes, packed for a page that must open at once with ten thousand of them.

Two parts. The *index* has a few short columns per episode and is all that the list needs. The *texts* are cut into
chunks of a few hundred episodes that the page parses only when one of them is opened; within a chunk equal strings (the
prompt of a group, a passage that was found again) are written once and referred to by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seekling.types import Episode, EpisodeRecord, Json, Question, StopReason, ToolCall, Turn

CHUNK = 250
_SHORT = 120
"""Characters of an answer in the index; the text has all of it."""


@dataclass(frozen=True, slots=True)
class PackedEpisodes:
    """What the page gets of a run's episodes."""

    index: dict[str, Json]
    chunks: tuple[dict[str, Json], ...]


def pack(records: Sequence[EpisodeRecord]) -> PackedEpisodes:
    """Pack records, keeping their order; the n-th record is entry `n % CHUNK` of chunk `n // CHUNK`."""
    return PackedEpisodes(index=_index(records), chunks=tuple(_chunks(records)))


def outcome(record: EpisodeRecord) -> str:
    """What became of an episode, by its recorded scores: right, wrong, none (no answer), failed, or unscored."""
    if record.episode.stop_reason is StopReason.INFRA_FAILURE:
        return "failed"
    parts = record.reward.parts if record.reward else {}
    em = record.scores.get("em", parts.get("em"))
    if em is not None and em >= 1:
        return "right"
    if record.episode.answer is None:
        return "none"
    return "unscored" if em is None else "wrong"


def _index(records: Sequence[EpisodeRecord]) -> dict[str, Json]:
    stages = list(dict.fromkeys(record.stage for record in records))
    questions: dict[tuple[str, str, str], int] = {}
    table: list[Json] = []
    columns: dict[str, list[Json]] = {
        name: [] for name in ("stage", "question", "outcome", "answer", "step", "reward", "advantage", "searches")
    }
    for record in records:
        # Two files may hold the same id with another text; they must not be shown as one question.
        key = (*record.question.key, record.question.question)
        if key not in questions:
            questions[key] = len(table)
            table.append(_question(record.question))
        reward, advantage = record.reward.total if record.reward else None, record.advantage
        columns["stage"].append(stages.index(record.stage))
        columns["question"].append(questions[key])
        columns["outcome"].append(outcome(record))
        columns["answer"].append((record.episode.answer or "")[:_SHORT])
        columns["step"].append(record.step)
        columns["reward"].append(None if reward is None else round(reward, 4))
        columns["advantage"].append(None if advantage is None else round(advantage, 4))
        columns["searches"].append(record.episode.num_searches)
    return {
        "count": len(records),
        "chunk": CHUNK,
        "stages": list[Json](stages),
        "questions": table,
        "columns": {name: column for name, column in columns.items()},
    }


def _question(question: Question) -> dict[str, Json]:
    return {
        "id": question.id,
        "source": question.source,
        "kind": question.kind,
        "question": question.question,
        "answers": list[Json](question.answers),
        "support": list[Json](question.supporting_ids),
    }


def _chunks(records: Sequence[EpisodeRecord]) -> Iterator[dict[str, Json]]:
    for start in range(0, len(records), CHUNK):
        strings = _Strings()
        rows = [_episode(record, strings) for record in records[start : start + CHUNK]]
        yield {"strings": list[Json](strings.table), "episodes": list[Json](rows)}


class _Strings:
    """Numbers for strings, equal strings getting the same one."""

    def __init__(self) -> None:
        self.table: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.table.setdefault(text, len(self.table))


def _episode(record: EpisodeRecord, strings: _Strings) -> dict[str, Json]:
    episode: Episode = record.episode
    return {
        "prompt": [[message.role, strings.number(message.content)] for message in episode.prompt],
        "turns": [_turn(turn, strings) for turn in episode.turns],
        "answer": episode.answer,
        "stop": episode.stop_reason.value,
        "failure": episode.failure,
        "protocol": episode.protocol,
        "policy": episode.policy_version,
        "temperature": episode.temperature,
        "seconds": round(episode.duration_s, 3),
        "parts": dict(record.reward.parts) if record.reward else {},
        "scores": dict(record.scores),
    }


def _turn(turn: Turn, strings: _Strings) -> dict[str, Json]:
    return {
        "action": strings.number(turn.action),
        "kind": turn.kind,
        "payload": turn.payload,
        "observation": strings.number(turn.observation) if turn.observation else None,
        "calls": [_call(call, turn, strings) for call in turn.calls],
        "forced": turn.is_forced,
        "cut": turn.is_observation_truncated,
        "tokens": [turn.num_action_tokens, turn.num_observation_tokens],
    }


def _call(call: ToolCall, turn: Turn, strings: _Strings) -> dict[str, Json]:
    # The result usually stands in the observation word for word; only what the policy did not see is worth its space.
    is_shown = not call.result or call.result in turn.observation
    return {
        "name": call.name,
        "arguments": dict(call.arguments),
        "error": call.error,
        "documents": list[Json](call.document_ids),
        "result": None if is_shown else strings.number(call.result),
    }
