"""Episodes, packed for a page that must open at once with ten thousand of them.

The *index* has a few short columns per episode and is all that the list needs. The *texts* are cut into chunks of a few
hundred episodes that the page parses only when one of them is opened; within a chunk equal strings (a group's prompt, a
passage that was found again) are written once. Chunks are cut file by file: a growing file changes its last one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.episode_facts import EpisodeFacts, facts_of
from seekling.report.json_lines import JsonLinesFile, encode
from seekling.types import EpisodeRecord, Json, Question, ToolCall, Turn

CHUNK = 250
_SHORT = 120
"""Characters of an answer in the index; the text has all of it."""


@dataclass(frozen=True, slots=True)
class PackedEpisodes:
    """What the page gets of a run's episodes."""

    index: dict[str, Json]
    chunks: dict[str, str]
    """JSON by name, in the order of the episodes."""
    records: list[EpisodeRecord]
    facts: list[EpisodeFacts]


@dataclass(slots=True)
class _Packed:
    """What was made of a file so far: facts of every record, JSON of every full chunk."""

    items: list[EpisodeRecord]
    facts: list[EpisodeFacts] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)


class Packer:
    """Packs a run's episodes, again and again while the run grows, and does nothing twice."""

    def __init__(self) -> None:
        self._packed: dict[str, _Packed] = {}

    def pack(self, files: Sequence[JsonLinesFile[EpisodeRecord]]) -> PackedEpisodes:
        """Pack the records of episodes files, keeping their order."""
        chunks: dict[str, str] = {}
        sizes: list[tuple[str, int]] = []
        records: list[EpisodeRecord] = []
        facts: list[EpisodeFacts] = []
        for number, file in enumerate(files):
            packed = self._packed.get(file.name)
            if packed is None or packed.items is not file.items:
                packed = self._packed[file.name] = _Packed(file.items)
            packed.facts += [facts_of(record) for record in file.items[len(packed.facts) :]]
            mine = file.all_items
            records += mine
            facts += [*packed.facts, *(facts_of(record) for record in mine[len(packed.facts) :])]
            for start in range(0, len(mine), CHUNK):
                part, at = mine[start : start + CHUNK], start // CHUNK
                text = packed.chunks[at] if at < len(packed.chunks) else encode(_chunk(part))
                if at == len(packed.chunks) and len(file.items) >= start + CHUNK:
                    packed.chunks.append(text)
                chunks[f"{number}-{at}"] = text
                sizes.append((f"{number}-{at}", len(part)))
        return PackedEpisodes(_index(records, facts, sizes), chunks, records, facts)


def _index(
    records: Sequence[EpisodeRecord], facts: Sequence[EpisodeFacts], sizes: list[tuple[str, int]]
) -> dict[str, Json]:
    stages = list(dict.fromkeys(record.stage for record in records))
    questions: dict[tuple[str, str, str], int] = {}
    table: list[Json] = []
    numbers: list[Json] = []
    for record in records:
        # Two files may hold the same id with another text; they must not be shown as one question.
        key = (*record.question.key, record.question.question)
        if key not in questions:
            questions[key] = len(table)
            table.append(_question(record.question))
        numbers.append(questions[key])
    places = {stage: number for number, stage in enumerate(stages)}
    bits = {name: 1 << number for number, name in enumerate(BEHAVIOURS)}
    causes = ["", *ERROR_CAUSES]
    columns: dict[str, Json] = {
        "stage": [places[record.stage] for record in records],
        "question": numbers,
        "outcome": [one.outcome for one in facts],
        "answer": [(record.episode.answer or "")[:_SHORT] for record in records],
        "step": [record.step for record in records],
        "reward": [None if record.reward is None else round(record.reward.total, 4) for record in records],
        "advantage": [None if record.advantage is None else round(record.advantage, 4) for record in records],
        "searches": [one.num_searches for one in facts],
        "behaviours": [sum(bits.get(name, 0) for name in one.behaviours) for one in facts],
        "cause": [causes.index(one.cause) if one.cause in causes else 0 for one in facts],
        "tokens": [one.action_tokens for one in facts],
        "seconds": [round(record.episode.duration_s, 2) for record in records],
    }
    return {
        "count": len(records),
        "chunks": [[name, size] for name, size in sizes],
        "stages": list[Json](stages),
        "behaviours": list[Json](bits),
        "causes": list[Json](causes),
        "questions": table,
        "columns": columns,
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


def _chunk(records: Sequence[EpisodeRecord]) -> dict[str, Json]:
    strings: _Strings = {}
    rows = [_episode(record, strings) for record in records]
    return {"strings": list[Json](strings), "episodes": list[Json](rows)}


_Strings = dict[str, int]
"""Numbers of strings, in the order in which they came up."""


def _number(text: str, strings: _Strings) -> int:
    return strings.setdefault(text, len(strings))


def _episode(record: EpisodeRecord, strings: _Strings) -> dict[str, Json]:
    episode = record.episode
    return {
        "prompt": [[message.role, _number(message.content, strings)] for message in episode.prompt],
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
    packed: dict[str, Json] = {
        "action": _number(turn.action, strings),
        "kind": turn.kind,
        "payload": turn.payload,
        "observation": _number(turn.observation, strings) if turn.observation else None,
        "calls": [_call(call, turn, strings) for call in turn.calls],
        "forced": turn.is_forced,
        "cut": turn.is_observation_truncated,
        "tokens": [turn.num_action_tokens, turn.num_observation_tokens],
    }
    if turn.action_lengths and len(turn.action_lengths) == len(turn.action_logprobs):
        packed["lengths"] = list[Json](turn.action_lengths)
        # Hundredths, as whole numbers: a long page has a million of them.
        packed["logprobs"] = [round(100 * value) for value in turn.action_logprobs]
    return packed


def _call(call: ToolCall, turn: Turn, strings: _Strings) -> dict[str, Json]:
    # The result usually stands in the observation word for word; only what the policy did not see is worth its space.
    is_shown = not call.result or call.result in turn.observation
    return {
        "name": call.name,
        "arguments": dict(call.arguments),
        "error": call.error,
        "documents": list[Json](call.document_ids),
        "result": None if is_shown else _number(call.result, strings),
    }
