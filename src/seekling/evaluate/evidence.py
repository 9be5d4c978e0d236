"""What an episode was shown: whether its answer stands in an observation, and which needed facts and pages came when.

Texts are compared as words under SQuAD's normalisation, after Markdown's marks were taken out, so that `[Lukui](p83)`
holds the word Lukui. Only what reached the policy counts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seekling.env.protocol import tags, tool_calls
from seekling.env.protocol.code import NOTHING_PRINTED
from seekling.env.tools import LISTING_TOOLS
from seekling.reward.functions import is_unanswerable
from seekling.reward.match import normalize_answer
from seekling.types import Episode, Question, ToolCall, Turn

_LINK = re.compile(r"\[([^\[\]\n]*)\]\([^()\[\s]*\)")
_MARKS = re.compile(r"\\n|[\[\](){}*_`#|\\–—“”\"/:]")  # noqa: RUF001 - dashes join words in page texts
_TRACEBACK = "Error:\nTraceback (most recent call last):\n"
_NOT_KNOWN = frozenset({"unknown", "unanswerable", "unclear", "no answer", "none", "na", "not applicable"})
_NOT_KNOWN_PHRASE = re.compile(
    r"\b(not (know|found|known|stated|mentioned|given|available|specified|sure|say|enough information)"
    r"|(cannot|could not|can not) (be )?(determined?|found|find|say|answer)|(dont|doesnt|didnt) (know|say)"
    r"|no information|answer is unknown)\b"
)
ABSTENTION_WORDS = 12
"""A longer answer that holds such a phrase says something else too."""


_PASSAGE = re.compile(f"{tags.PASSAGE}|{tool_calls.PASSAGE}")
_STEP = re.compile(r"\[([^\[\]\n]+)\] ([^:\[\]\n]+): (.+?)(?= > |; |\. |\.?\s*$|\.?\s*</think>|\n)", re.M)
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.S)


class Said(NamedTuple):
    """What a thought says that was read: "[Orla Mill] built by: Tobias Wren"."""

    subject: str
    """The page, or what it is about."""
    relation: str
    value: str


@dataclass(frozen=True, slots=True)
class Need:
    """One fact that a question needs."""

    subject: str
    answers: tuple[str, ...]
    """Any of these says it; empty when no page says it, and then finding the page is all there is to do."""
    document_id: str
    """The page that says it; empty when unknown, or when there is none."""


@functools.lru_cache(maxsize=512)  # every detector asks for the same observations
def fold(text: str) -> str:
    """The words of a text for comparison: without marks, case, punctuation and articles."""
    return normalize_answer(_MARKS.sub(" ", _LINK.sub(r"\1", text)))


def holds(text: str, phrase: str) -> bool:
    """Whether a folded text holds a folded phrase, as whole words; an empty phrase is never held."""
    return bool(phrase) and f" {phrase} " in f" {text} "


def is_abstention(answer: str | None) -> bool:
    """Whether an answer says that it is not known."""
    words = normalize_answer(answer or "")
    if len(words.split()) > ABSTENTION_WORDS:
        return False
    return words in _NOT_KNOWN or _NOT_KNOWN_PHRASE.search(words) is not None


def is_grounded(episode: Episode, text: str) -> bool:
    """Whether a text stands word for word in an observation; one without words never does.

    An observation counts once a document has come back: what a program made up and printed is no evidence.
    """
    phrase, has_document = fold(text), False
    for turn in episode.turns:
        has_document = has_document or bool(documents_found((turn,)))
        if has_document and holds(observed_words(turn), phrase):
            return True
    return False


def needs_of(question: Question) -> tuple[Need, ...]:
    """What has to be found, in order: the hops, else the supporting pages (the last says the answer), else that."""
    has_no_answer = is_unanswerable(question)
    if not question.hops:
        *before, last = question.supporting_ids or ("",)
        says_last = () if has_no_answer or (before and question.is_side_by_side) else question.answers
        return (*(Need("", (), page) for page in before), Need("", says_last, last))
    needs = []
    for number, hop in enumerate(question.hops):
        is_last = number == len(question.hops) - 1
        accepted = question.answers if is_last and not question.is_side_by_side else ()
        answers = () if has_no_answer else tuple(dict.fromkeys(text for text in (hop.answer, *accepted) if text))
        needs.append(Need(hop.query_subject, answers, hop.document_id))
    return tuple(needs)


def shown_in(episode: Episode, number: int, need: Need) -> bool:
    """Whether the observation of a turn shows a needed fact, or a page of which nothing else is needed."""
    turn = episode.turns[number]
    if not need.answers:
        return (
            bool(need.document_id) and is_output(turn) and need.document_id in documents_found((turn,), LISTING_TOOLS)
        )
    if need.document_id and need.document_id not in documents_found(episode.turns[: number + 1], LISTING_TOOLS):
        return False  # a list of titles may hold the answer's words, but does not say that it is the answer
    observed = observed_words(turn)
    return any(holds(observed, fold(answer)) for answer in need.answers)


def listed_in(turn: Turn, need: Need) -> bool:
    """Whether a turn only looked for pages, and its observation names the needed one."""
    if not need.document_id or not turn.calls or any(call.name not in LISTING_TOOLS for call in turn.calls):
        return False
    names = (need.document_id.lower(), fold(need.subject))
    return need.document_id in documents_found((turn,)) and any(holds(observed_words(turn), name) for name in names)


def is_fact_shown(question: Question, episode: Episode) -> bool:
    """Whether what answers the question stood in the observations: both facts of a comparison, else the last one."""
    needs = needs_of(question)
    wanted = needs if question.is_side_by_side else needs[-1:]
    return all(any(shown_in(episode, number, need) for number in range(len(episode.turns))) for need in wanted)


def is_retrieved(question: Question, episode: Episode) -> bool:
    """Whether every needed page came back; where none is known, whether any result of a call holds an answer."""
    pages = set(question.supporting_ids) or {hop.document_id for hop in question.hops if hop.document_id}
    if pages:
        return pages <= set(documents_found(episode.turns))
    results = [fold(call.result) for turn in episode.turns for call in turn.calls]
    return any(holds(result, fold(answer)) for result in results for answer in question.answers)


def has_nothing_to_find(question: Question) -> bool:
    """Whether no page says anything about what is asked, so that no search can be the cause of a wrong answer."""
    return is_unanswerable(question) and not any(need.document_id for need in needs_of(question))


def is_output(turn: Turn) -> bool:
    """Whether something other than an error or our note about silence came back."""
    observation = turn.observation.strip()
    return bool(observation) and not observation.startswith("Error:") and NOTHING_PRINTED not in observation


def executed_queries(episode: Episode, *, with_failed: bool = True) -> list[tuple[int, str]]:
    """Index of the turn and text of every query that was executed, in order."""
    return [
        (number, query)
        for number, turn in enumerate(episode.turns)
        for call in turn.calls
        if call.is_search and (with_failed or not call.error)
        for query in _queries_of(call)
    ]


def _queries_of(call: ToolCall) -> list[str]:
    value = call.arguments.get("query", call.arguments.get("query_list"))
    texts = value if isinstance(value, list | tuple) else [value]
    return [each for each in texts if isinstance(each, str) and each.strip()]


def said_in(turn: Turn) -> list[Said]:
    """What the thoughts of a turn say that was read, in order."""
    return [Said(*step) for thought in _THOUGHT.findall(turn.action) for step in _STEP.findall(thought)]


def passages_shown(turn: Turn) -> list[str]:
    """The texts that a turn's search showed, with their titles; one where they are not told apart."""
    first, *others = _PASSAGE.split(turn.observation)
    return others or [first]


def observed_words(turn: Turn) -> str:
    """The folded observation, without what the policy itself wrote: its queries, its program's lines in a traceback."""
    if turn.kind == "invalid":
        return ""
    text = turn.observation
    if turn.kind == "code":
        text = text.partition(_TRACEBACK)[0]
    for query in {query for call in turn.calls for query in _queries_of(call)}:
        text = text.replace(f"Query: {query}\n", "\n")
    return fold(text)


def documents_found(turns: Sequence[Turn], without: Sequence[str] = ()) -> tuple[str, ...]:
    """Ids of the documents that came back, each once; `without` names calls that only list pages."""
    ids = (each for turn in turns for call in turn.calls if call.name not in without for each in call.document_ids)
    return tuple(dict.fromkeys(ids))
