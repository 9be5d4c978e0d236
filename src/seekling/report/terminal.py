"""Episodes for the terminal: choose some, and lay one out so that it can be read.

What a model wrote is shown and never obeyed: control characters, which could rewrite the screen or the title of the
window, become visible signs first, and nothing is read as markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from seekling.errors import DataError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.episode_facts import OUTCOMES, EpisodeFacts, facts_of
from seekling.evaluate.evidence import find_evidence, is_abstention
from seekling.types import EpisodeRecord, Turn

SHORT = 1500
"""Characters of a text that are shown unless all of it is asked for."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2028\u2029\u2060-\u2069\ufeff\ud800-\udfff]"
)
_STYLES = {"right": "green", "wrong": "red", "none": "yellow", "failed": "magenta", "unscored": "cyan"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which episodes are wanted; what is empty or None is not asked for."""

    stage: str = ""
    outcome: str = ""
    behaviours: tuple[str, ...] = ()
    """All of these; `not-NAME` asks for episodes without it."""
    cause: str = ""
    kind: str = ""
    question: str = ""
    """Part of the question's text or its whole id; case does not matter."""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """An episode beside the facts that were worked out to choose it."""

    record: EpisodeRecord
    facts: EpisodeFacts


def select(records: Iterable[EpisodeRecord], selection: Selection) -> list[Shown]:
    """The wanted episodes, in order.

    Raises:
        DataError: no such outcome, behaviour or cause, or no such stage or kind among the records.
    """
    records = list(records)
    _check(selection.outcome, OUTCOMES, "outcome")
    _check(selection.cause, ERROR_CAUSES, "cause of an error")
    for name in selection.behaviours:
        _check(name.removeprefix("not-"), BEHAVIOURS, "behaviour")
    _check(selection.stage, (record.stage for record in records), "stage in this run")
    _check(selection.kind, (record.question.kind for record in records), "kind of question here")
    near = [record for record in records if _is_asked_for(record, selection)]
    return [shown for record in near if _is_wanted((shown := Shown(record, facts_of(record))).facts, selection)]


def render(shown: Shown, *, place: str, is_full: bool = False) -> Text:
    """Lay an episode out: the question, its turns as a conversation, the answer with its evidence.

    Args:
        shown: the episode.
        place: such as `3 of 17`.
        is_full: show all of every text instead of its beginning.
    """
    record, facts = shown.record, shown.facts
    answer = record.episode.answer or ""
    parts = [Text("=== ") + _head(record, facts, place), _question(record)]
    for number, turn in enumerate(record.episode.turns, start=1):
        parts += _turn(turn, number, answer, is_full)
    return Text("\n").join([*parts, _foot(record, facts)])


def plain(text: str) -> str:
    """A text without anything that a terminal obeys: control and invisible characters become visible codes."""
    return _HIDDEN.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def list_line(shown: Shown, number: int) -> Text:
    """One line about an episode, for lists."""
    record, facts = shown.record, shown.facts
    line = Text(f"{number:>5}  ", "dim")
    line.append(f"{facts.outcome:<9}", _STYLES[facts.outcome])
    line.append(f"{record.stage:<10} {record.step:>4}  ", "dim")
    line.append(_cut(record.question.question, 70))
    return line.append(f"  -> {_cut(record.episode.answer or '(none)', 40)}", "bold")


def _check(name: str, known: Iterable[str], what: str) -> None:
    names = list(dict.fromkeys(filter(None, known)))
    if name and name not in names:
        raise DataError(f"there is no {what} named {name!r}; choose from {', '.join(names)}")


def _is_asked_for(record: EpisodeRecord, selection: Selection) -> bool:
    """What the record says without being read."""
    question = selection.question.lower()
    return (
        selection.stage in ("", record.stage)
        and selection.kind in ("", record.question.kind)
        and selection.step in (None, record.step)
        and (question in record.question.question.lower() or question == record.question.id.lower())
    )


def _is_wanted(facts: EpisodeFacts, selection: Selection) -> bool:
    return (
        selection.outcome in ("", facts.outcome)
        and selection.cause in ("", facts.cause)
        and all(
            (name.removeprefix("not-") in facts.behaviours) != name.startswith("not-") for name in selection.behaviours
        )
    )


def _head(record: EpisodeRecord, facts: EpisodeFacts, place: str) -> Text:
    title = Text(f" {place}  " if place else " ", "bold")
    title.append(facts.outcome, f"bold {_STYLES[facts.outcome]}")
    title.append(f"  {plain(record.stage)}" + (f", step {record.step}" if record.step else ""))
    return title.append(f"  {plain(record.question.kind)}  {plain(record.episode.protocol)} ", "dim")


def _question(record: EpisodeRecord) -> Text:
    question = record.question
    text = Text(plain(question.question), "bold")
    text.append(f"\n{plain(question.id)}  gold: ", "dim")
    text.append(plain(" | ".join(question.answers)), "not bold green")
    if question.supporting_ids:
        text.append(f"  on {plain(', '.join(question.supporting_ids))}", "dim")
    return text


def _turn(turn: Turn, number: int, answer: str, is_full: bool) -> list[Text]:
    title = f"--- turn {number}: {turn.kind}" + (", forced" if turn.is_forced else "")
    if turn.num_action_tokens:
        title += f", {turn.num_action_tokens} tokens"
    parts = [Text(title, "dim"), Text(_shorten(turn.action.rstrip("\n"), is_full))]
    if turn.observation:
        note = " (cut by the budget)" if turn.is_observation_truncated else ""
        observation = _highlighted(_shorten(turn.observation.strip("\n"), is_full), answer)
        parts += [Text(f"--- observation{note}", "dim"), observation]
    errors = [f"{call.name}: {call.error}" for call in turn.calls if call.error and call.error not in turn.observation]
    return parts + [Text(plain(error), "red") for error in errors]


def _highlighted(text: str, answer: str) -> Text:
    """The text with the answer marked wherever it stands word for word."""
    shown = Text(text)
    if answer.strip() and not is_abstention(answer):
        shown.highlight_regex(rf"(?i)(?<!\w){re.escape(plain(answer.strip()))}(?!\w)", "bold reverse")
    return shown


def _foot(record: EpisodeRecord, facts: EpisodeFacts) -> Text:
    episode = record.episode
    text = Text("answer: ", "bold")
    text.append("(none)" if episode.answer is None else plain(episode.answer), _STYLES[facts.outcome])
    text.append(f"  {episode.stop_reason.value}", "dim")
    if facts.cause:
        text.append(f"\nwhy not right: {facts.cause}", "red").append(f" ({ERROR_CAUSES[facts.cause]})", "dim")
    if episode.failure:
        text.append(f"\nfailure: {_cut(episode.failure, 300)}", "magenta")
    evidence = find_evidence(episode, episode.answer) if episode.answer and not is_abstention(episode.answer) else None
    if evidence is not None:
        text.append(f"\nevidence: turn {evidence.turn + 1}, {plain(', '.join(evidence.document_ids[:5]))}", "dim")
    if record.reward is not None:
        gain = "" if record.advantage is None else f", advantage {record.advantage:+.3f}"
        text.append(f"\nreward {record.reward.total:.3f}{gain}", "dim")
    text.append(f"\nbehaviours: {', '.join(facts.behaviours) or 'none'}\n")
    return text


def _shorten(text: str, is_full: bool) -> str:
    text = plain(text)
    if is_full or len(text) <= SHORT:
        return text
    return f"{text[:SHORT]}\n... {len(text) - SHORT:,} more characters (--full shows them)"


def _cut(text: str, length: int) -> str:
    text = " ".join(plain(text).split())
    return text if len(text) <= length else text[: length - 3] + "..."
