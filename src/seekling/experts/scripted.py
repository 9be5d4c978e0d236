"""A scripted expert: it knows the supporting pages, but has to find them by acting through the real environment.

Its queries really retrieve and its programs really run. When the page with the fact does not come back it tries
another query; when none works the episode fails and is dropped by `collect`. It writes the answer only after the
environment has shown it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seekling.env.environment import SearchEnv, Session, StepResult
from seekling.env.protocol.base import Action, Protocol
from seekling.errors import DataError
from seekling.types import Episode, Hop, Question, StopReason, Turn

UNANSWERABLE = "unanswerable"
_NOT_KEYWORDS = frozenset(
    [
        "what",
        "which",
        "whose",
        "where",
        "when",
        "does",
        "have",
        "that",
        "this",
        "with",
        "from",
        "into",
        "than",
        "more",
        "most",
        "their",
        "there",
        "they",
        "were",
        "will",
        "would",
        "many",
        "much",
        "called",
        "name",
        "named",
        "known",
        "year",
        "kind",
        "type",
        "used",
        "first",
        "last",
        "people",
        "person",
        "place",
        "give",
        "given",
        "work",
        "made",
        "according",
        "almanac",
        "whom",
        "about",
        "being",
        "between",
        "both",
        "other",
        "same",
        "town",
        "village",
        "country",
    ]
)


@dataclass(frozen=True, slots=True)
class ExpertResult:
    """An expert's episode, or why there is none."""

    episode: Episode | None
    reason: str = ""
    """Why it failed; empty for a success."""


def play(env: SearchEnv, question: Question) -> ExpertResult:
    """Answer one question by searching.

    Args:
        env: the same environment in which the policy will be trained.
        question: with `hops`, or else with the answer and perhaps its page.

    Returns:
        An answered episode in which the environment showed every fact that was used, or the reason of the failure.
    """
    started = time.perf_counter()
    with env.start(question) as session:
        turns: list[Turn] = []
        try:
            reason = _play(session, env.protocol, question, turns)
        except DataError:
            return ExpertResult(None, "the protocol cannot write the query or the answer")
        if reason:
            return ExpertResult(None, reason)
        return ExpertResult(
            Episode(
                question_id=question.id,
                source=question.source,
                protocol=env.protocol.name,
                prompt=tuple(session.prompt),
                turns=tuple(turns),
                answer=turns[-1].payload,
                stop_reason=StopReason.ANSWERED,
                duration_s=time.perf_counter() - started,
            )
        )


def _play(session: Session, protocol: Protocol, question: Question, turns: list[Turn]) -> str:
    hops = _hops(question)
    thought = _need(hops[0])
    for number, hop in enumerate(hops):
        for action in _attempts(protocol, question, hop):
            result = session.step(protocol.act(action, think=thought), finish="stop")
            turns.append(result.turn)
            if result.is_over:
                return _why_over(result)
            if _is_enough(hop, question, number == len(hops) - 1, result.turn):
                break
            thought = "Not found. I try other words."
        else:
            if question.kind != UNANSWERABLE:
                return "the fact was not retrieved"
        if number + 1 < len(hops):
            thought = f"{_found(hop)} {_need(hops[number + 1])}"
    answer = _shown_answer(question, turns)
    conclusion = _conclusion(question, hops)
    result = session.step(protocol.act(protocol.answer_action(answer), think=conclusion), finish="stop")
    turns.append(result.turn)
    return "" if result.stop_reason is StopReason.ANSWERED else _why_over(result)


def _hops(question: Question) -> Sequence[Hop]:
    if question.hops:
        return question.hops
    page = question.supporting_ids[0] if question.supporting_ids else ""
    return (Hop(question.question.strip().rstrip("?"), "", question.answers[0], page),)


def _attempts(protocol: Protocol, question: Question, hop: Hop) -> Iterator[Action]:
    """Actions that may show the fact, the most natural first."""
    if protocol.name == "code":
        yield Action("code", _filtering_program(hop, question))
        yield Action("code", _reading_program(hop))
        return
    keywords = " ".join([hop.query_subject, *_asked_words(hop, question)])
    queries = [keywords, f"{hop.query_subject} {hop.relation}".strip()]
    for query in dict.fromkeys(queries):
        yield protocol.search_action(query)


def _filtering_program(hop: Hop, question: Question) -> str:
    """Print the sentences of the found pages that hold a keyword of the question."""
    asked = " or ".join(f"{json.dumps(word, ensure_ascii=False)} in line.lower()" for word in _keywords(hop, question))
    return (
        f"page = search_pages({json.dumps(hop.query_subject, ensure_ascii=False)})[0]\n"
        'for line in read_section(page["page_id"] + ":full").replace("\\n", ". ").split(". "):\n'
        f"    if {asked}:\n"
        '        print(page["title"], line)'
    )


def _reading_program(hop: Hop) -> str:
    """Print the beginning of the found pages."""
    return (
        f"page = search_pages({json.dumps(hop.query_subject, ensure_ascii=False)})[0]\n"
        'print(read_section(page["page_id"] + ":full")[:600])'
    )


def _asked_words(hop: Hop, question: Question) -> list[str]:
    """Content words of what is asked about the subject, without the subject's own: what a keyword query adds to it."""
    if not question.hops:
        return []
    subject = {word.lower() for word in re.findall(r"\w+", hop.query_subject)}
    is_direct = len(question.hops) == 1
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", question.question if is_direct else hop.relation)]
    kept = [word for word in words if len(word) > 3 and word not in subject and word not in _NOT_KEYWORDS]
    return list(dict.fromkeys(kept))[:4]


def _keywords(hop: Hop, question: Question) -> list[str]:
    """What a line must hold to be worth printing: the asked words, cut to stems."""
    words = _asked_words(hop, question) or [word.lower() for word in hop.query_subject.split() if len(word) > 3]
    # A stem reaches inflected forms: "founded" for "founding".
    stems = [re.sub(r"(ing|ed|es|s|er|or|ion)$", "", word) if len(word) > 6 else word for word in words]
    return list(dict.fromkeys(stems))[:2] or [hop.query_subject.split()[0]]


def _is_enough(hop: Hop, question: Question, is_last: bool, turn: Turn) -> bool:
    """Whether the fact was shown; where no page says it, whether the page came back that would."""
    if question.kind == UNANSWERABLE:
        return not hop.document_id or any(hop.document_id in call.document_ids for call in turn.calls)
    return _shown(hop, question, is_last, turn)


def _shown(hop: Hop, question: Question, is_last: bool, turn: Turn) -> bool:
    wanted = (hop.answer, *question.answers) if is_last and question.kind != "comparison" else (hop.answer,)
    is_right_page = not hop.document_id or any(hop.document_id in call.document_ids for call in turn.calls)
    return is_right_page and any(_holds(turn.observation, answer) for answer in wanted)


def _shown_answer(question: Question, turns: Sequence[Turn]) -> str:
    """The accepted answer that was seen, the canonical one first."""
    seen = "\n".join(turn.observation for turn in turns)
    return next((answer for answer in question.answers if _holds(seen, answer)), question.answers[0])


def _holds(text: str, answer: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE) is not None


def _need(hop: Hop) -> str:
    return f"I look up {hop.query_subject}." if hop.relation else "I need to look this up."


def _found(hop: Hop) -> str:
    return f"{hop.query_subject}: {hop.answer}." if hop.relation else "I found it."


def _conclusion(question: Question, hops: Sequence[Hop]) -> str:
    """The last thought: what is asked, said again after the passages, where a small model needs it."""
    if question.kind == "comparison":
        return "; ".join(f"{hop.query_subject}: {hop.answer}" for hop in hops) + "."
    asked = question.question.strip() if len(hops) == 1 else f"{hops[-1].query_subject}, {hops[-1].relation}?"
    return f"{asked} The pages do not say." if question.kind == UNANSWERABLE else asked


def _why_over(result: StepResult) -> str:
    reason = result.stop_reason.value if result.stop_reason is not None else "the environment refused the answer"
    return f"the episode ended as {reason}" + (f": {result.failure}" if result.failure else "")
