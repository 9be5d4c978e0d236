"""Tag episodes <-> step-wise records for fine-tuning, in LLaMA-Factory's alpaca format.

An episode of n turns becomes n records: "instruction" is the prompt with all that was written and came back before the
turn, "input" is empty, "output" is the turn alone. LLaMA-Factory puts the whole instruction into the user's message,
while a rollout has the earlier turns in the assistant's; read back here, a record becomes the very ids that a rollout
of the same episode has. For that a record says how long its pieces are ("pieces", in characters: the prompt, then
action and observation in turns); other readers ignore the field, and records without it are cut at their tags.

A record that is too long is never cut from the right, where the newest evidence stands: whole old turns go.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seekling.errors import DataError
from seekling.files import write_atomically
from seekling.rollout.render import Recorder, Renderer
from seekling.types import Episode, Json, Message, Trajectory

STOP_STRINGS = ("</search>", "</answer>")
"""Of the tags protocol without tools of the user's own."""
_INFORMATION = re.compile(r"\s*<information>.*?</information>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One turn to be learned, with everything before it."""

    prompt: str
    history: tuple[str, ...]
    """Action, observation, action, observation, ... of the turns before."""
    output: str
    system: str = ""

    def to_json(self) -> dict[str, Json]:
        """A row of an alpaca file."""
        row: dict[str, Json] = {
            "instruction": self.prompt + "".join(self.history),
            "input": "",
            "output": self.output,
            "pieces": [len(self.prompt), *map(len, self.history)],
        }
        return {**row, "system": self.system} if self.system else row


@dataclass(slots=True)
class StepReport:
    """What became of the episodes."""

    num_episodes: int = 0
    num_records: int = 0
    num_windowed: int = 0
    """Records that lost their oldest turns."""
    num_too_long: int = 0
    """Records that are not there."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Episodes that make no records, by cause."""

    def __str__(self) -> str:
        skipped = "".join(f", {count} skipped: {cause}" for cause, count in self.skipped.items())
        return (
            f"{self.num_records} records of {self.num_episodes} episodes, {self.num_windowed} of them without their "
            f"oldest turns, {self.num_too_long} too long and dropped{skipped}"
        )


def stepwise_records(episode: Episode) -> list[StepRecord]:
    """One record for each turn of a tag episode, in order.

    Raises:
        DataError: the episode is not of the tags protocol, or its prompt is not an instruction a record can hold.

    Source: "Enhancing Search-Tool Policies for Small LLMs via Process Distillation and Post-Distillation RL", 3.1.2.
    """
    if episode.protocol != "tags":
        raise DataError(
            f"step-wise records need one text per episode, which the {episode.protocol} protocol has not; "
            "collect episodes with env.protocol=tags"
        )
    roles = [message.role for message in episode.prompt]
    if roles not in (["user"], ["system", "user"]):
        raise DataError(f"the prompt has the roles {roles}; a record holds a user message, or a system and a user one")
    *system, user = [message.content for message in episode.prompt]
    pieces = [text for turn in episode.turns for text in (turn.action, turn.observation)]
    return [
        StepRecord(user, tuple(pieces[: 2 * number]), turn.action, "".join(system))
        for number, turn in enumerate(episode.turns)
    ]


def write_steps(
    episodes: Iterable[Episode], path: Path, *, max_tokens: int = 0, renderer: Renderer | None = None
) -> StepReport:
    """Write an alpaca file, and `dataset_info.json` beside it, which LLaMA-Factory asks for.

    Args:
        episodes: of the tags protocol; others are skipped and counted.
        path: of the file; a .json array.
        max_tokens: a longer record loses its oldest turns until it fits, or is dropped; 0: no limit.
        renderer: counts the tokens of prompt, history and output; needed for a limit.

    Raises:
        DataError: not one record is left.
    """
    report, rows = StepReport(), list[dict[str, Json]]()

    def is_too_long(record: StepRecord) -> bool:
        if not max_tokens or renderer is None:
            return False
        return len(step_trajectory(record, renderer, STOP_STRINGS).token_ids_T) > max_tokens

    for episode in episodes:
        report.num_episodes += 1
        try:
            records = stepwise_records(episode)
        except DataError as error:
            report.skipped[str(error)] = report.skipped.get(str(error), 0) + 1
            continue
        for record in records:
            fitted = record
            while fitted.history and is_too_long(fitted):
                fitted = replace(fitted, history=fitted.history[2:])
            if is_too_long(fitted):
                report.num_too_long += 1
            else:
                report.num_windowed += fitted is not record
                rows.append(fitted.to_json())
    report.num_records = len(rows)
    if not rows:
        raise DataError(f"nothing to write: {report}")
    write_atomically(path, json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    _write_dataset_info(path, has_system=any("system" in row for row in rows))
    return report


def read_steps(path: Path | str) -> list[StepRecord]:
    """Read an alpaca file: ours, or one that somebody else made of tag episodes. A DataError names what is damaged."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as step-wise records ({error}); expected a JSON array") from None
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path} holds no records; expected a JSON array of objects with instruction and output")
    texts = [_texts(row, f"{path}, record {number}") for number, row in enumerate(rows)]
    prompts = _prompts([text["instruction"] for text in texts])
    return [
        _record(row, text, prompts[text["instruction"]], f"{path}, record {number}")
        for number, (row, text) in enumerate(zip(rows, texts, strict=True))
    ]


def step_trajectory(record: StepRecord, renderer: Renderer, stop_strings: Sequence[str]) -> Trajectory:
    """Tokenise a record exactly as a rollout has the same turns; only its output is trained.

    An output that ends in none of the protocol's stop strings ends with the end-of-turn token. Log-probabilities are 0.
    """

    def written(action: str) -> tuple[int, ...]:
        end = () if action.endswith(tuple(stop_strings)) else renderer.end_turn()
        return renderer.encode(action) + end

    system = [Message("system", record.system)] if record.system else []
    recorder = Recorder.start(renderer.prompt([*system, Message("user", record.prompt)]))
    for number, piece in enumerate(record.history):
        recorder.append_observation(written(piece) if number % 2 == 0 else renderer.encode(piece))
    output = written(record.output)
    recorder.append_action(output, [0.0] * len(output))
    return recorder.finish()


def _texts(row: object, where: str) -> dict[str, str]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object, got a {type(row).__name__}")
    texts = {name: row.get(name) or "" for name in ("instruction", "input", "output", "system")}
    if not all(isinstance(text, str) for text in texts.values()) or not texts["instruction"] or not texts["output"]:
        raise DataError(f"{where}: instruction and output must be texts, and not empty")
    if row.get("history"):
        raise DataError(f"{where}: it has a history of chat turns; step-wise records keep theirs in the instruction")
    if texts["input"]:
        texts["instruction"] += "\n" + texts["input"]
    return texts


def _prompts(instructions: Sequence[str]) -> dict[str, str]:
    """For each instruction the one that it begins with and adds turns to: the prompt of its episode's first record."""
    prompts: dict[str, str] = {}
    open_prompts: list[str] = []
    for instruction in sorted(set(instructions)):
        # Sorted, all that begin with a text follow it directly.
        while open_prompts and not instruction.startswith(open_prompts[-1]):
            open_prompts.pop()
        # A turn closes a tag; what does not is another question that begins like an earlier one.
        if not open_prompts or "</" not in instruction[len(open_prompts[-1]) :]:
            open_prompts.append(instruction)
        prompts[instruction] = open_prompts[-1]
    return prompts


def _record(row: dict[str, Json], texts: dict[str, str], prompt: str, where: str) -> StepRecord:
    instruction, pieces = texts["instruction"], row.get("pieces")
    if pieces is None:
        history = _cut_at_tags(instruction[len(prompt) :])
    else:
        lengths = [each for each in pieces if type(each) is int] if isinstance(pieces, list) else []
        if len(lengths) % 2 == 0 or sum(lengths) != len(instruction) or min(lengths) < 0:
            raise DataError(f"{where}: its pieces {pieces!r} do not add up to its instruction of {len(instruction)}")
        cuts = [0, *itertools.accumulate(lengths)]
        prompt, *history = (instruction[start:end] for start, end in itertools.pairwise(cuts))
    return StepRecord(prompt, tuple(history), texts["output"], texts["system"])


def _cut_at_tags(text: str) -> list[str]:
    """Actions and information blocks in turns; what follows the last block joins no action, so it must be empty."""
    pieces, start = list[str](), 0
    for match in _INFORMATION.finditer(text):
        pieces += [text[start : match.start()], match.group()]
        start = match.end()
    if text[start:]:
        pieces += [text[start:], ""]
    return pieces


def _write_dataset_info(path: Path, *, has_system: bool) -> None:
    """Add the file to the folder's `dataset_info.json`, with every column named: unnamed ones are not read."""
    info = path.parent / "dataset_info.json"
    try:
        known = json.loads(info.read_text(encoding="utf-8")) if info.exists() else {}
    except (OSError, ValueError) as error:
        raise DataError(f"{info} cannot be read ({error}); write to another folder, or mend it") from None
    if not isinstance(known, dict):
        raise DataError(f"{info} is no JSON object; write to another folder, or mend it")
    columns = {"prompt": "instruction", "query": "input", "response": "output"}
    columns |= {"system": "system"} if has_system else {}
    known[path.stem] = {"file_name": path.name, "formatting": "alpaca", "columns": columns}
    write_atomically(info, json.dumps(known, ensure_ascii=False, indent=1) + "\n")
