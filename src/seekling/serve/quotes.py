"""Which sentences of what came back support an answer.

A step is a value that the agent took from a page: the answer, and what its thoughts say that pages gave on the way to
it, as `[Orla Mill] built by: Tobias Wren`. For each the sentence is quoted that was shown by then, holds the value, and
fits best what was looked for: the page's title the subject, the sentence's words the relation. What was not shown, or
holds the value in no sentence, is not quoted: no quote is better than a wrong one.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seekling.corpus.sentences import Sentence, sentences
from seekling.evaluate.evidence import (
    documents_found,
    executed_queries,
    fold,
    holds,
    is_abstention,
    observed_words,
    said_in,
)
from seekling.retrieval.terms import TermMaker
from seekling.types import Document, Episode, Turn

_HELD, _NO_VALUE = "here", ("not here", "another page")
"""What a thought says of something to check: that the page says it too, or does not."""
_WINDOW_WORDS = 4
"""Beside a value: where they were shown the sentence was, though a passage may have been cut within it."""
_MIN_LIKENESS = 0.8
_TITLE_WEIGHT, _RELATION_WEIGHT, _QUESTION_WEIGHT, _LATEST_WEIGHT, _SECTION_SHARE = 3.0, 2.0, 0.5, 0.3, 0.5


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of what came back that supports the answer, or a step on the way to it."""

    text: str
    document_id: str
    title: str
    section: str
    """Heading of the section it stands in; empty when it is in none, or unknown."""
    link: str
    """Path or address of the document; empty when unknown."""
    span: tuple[int, int] | None = None
    """Where it stands in the document's content; None when only passages are at hand."""


@dataclass(frozen=True, slots=True)
class _Step:
    value: str
    subject: str
    """As the thought names it: a page, or what it is about; a small policy may misspell it. Empty: nothing."""
    sought: str
    """The words of the relation, or else of the question."""
    turn: int
    """The turn whose thought, or answer, has the value: earlier ones showed it."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    sentence: Sentence
    document: Document
    is_whole_page: bool


def find_quotes(
    episode: Episode,
    question: str,
    find: Callable[[str], Document | None],
    title_of: Callable[[str], str],
    link_of: Callable[[Document], str] = lambda document: "",
) -> tuple[Quote, ...]:
    """The sentences that an episode's answer rests on, in the order of the steps, each once; the last is the answer's.

    Empty without an answer, when it says that it is unknown, or when no sentence was shown that supports it.

    Args:
        episode: with an answer.
        question: as it was asked.
        find: a document by its id; None where there are passages only.
        title_of: a document's title by its id.
        link_of: a document's path or address.
    """
    if episode.answer is None or is_abstention(episode.answer):
        return ()
    quotes: dict[tuple[str, str], Quote] = {}
    known: dict[str, Document | None] = {}
    for step in _steps(episode, question):
        candidates = list(_candidates(episode, step, known, find, title_of))
        if not candidates:
            continue
        query = " ".join(text for turn, text in executed_queries(episode) if turn == step.turn - 1)
        best = max(candidates, key=lambda each: _fit(each, step, query, question, episode.turns))
        page, sentence = best.document, best.sentence
        span = (sentence.start, sentence.end) if best.is_whole_page else None
        quote = Quote(sentence.text, page.id, page.title, sentence.section, link_of(page), span)
        quotes.pop((page.id, sentence.text), None)  # the last step's stands last
        quotes[page.id, sentence.text] = quote
    return tuple(quotes.values())


def page_that_states(
    value: str,
    episode: Episode,
    question: str,
    find: Callable[[str], Document | None],
    title_of: Callable[[str], str],
) -> str | None:
    """Of the pages that an episode found, the id of the one with the sentence that fits a question and a value best.

    The sentence need not have been shown. None where no page states the value. The other arguments: see `find_quotes`.
    """
    step = _Step(value, "", question, len(episode.turns))
    candidates = list(_candidates(episode, step, {}, find, title_of, is_shown=False))
    if not candidates:
        return None
    return max(candidates, key=lambda each: _fit(each, step, question, question, episode.turns)).document.id


def _steps(episode: Episode, question: str) -> list[_Step]:
    """What was taken from pages, in order; the answer last.

    Where thoughts name values and none is the answer, it was made of them, as a count is.
    """
    answer, last = fold(episode.answer or ""), len(episode.turns) - 1
    found: dict[str, _Step] = {}
    for number, turn in enumerate(episode.turns):
        for subject, relation, said in said_in(turn):
            value, relation = (relation, question) if said.strip() == _HELD else (said, relation)
            key = fold(value)
            if key and key not in _NO_VALUE and not is_abstention(value):
                found.setdefault(f"{key} {fold(subject)}", _Step(value.strip(), subject, relation, number))
    steps = list(found.values())
    says = [step for step in steps if fold(step.value) == answer or holds(fold(step.value), answer)]
    if says:
        return [step for step in steps if step not in says] + says[-1:]
    return steps or [_Step(episode.answer or "", "", question, last)]


def _candidates(
    episode: Episode,
    step: _Step,
    known: dict[str, Document | None],
    find: Callable[[str], Document | None],
    title_of: Callable[[str], str],
    *,
    is_shown: bool = True,
) -> Iterator[_Candidate]:
    """Sentences that hold a step's value, of pages that were found before it was named.

    With `is_shown` only those that were shown.
    """
    turns, value = episode.turns[: step.turn], fold(step.value)
    shown = [observed_words(turn) for turn in turns]
    if is_shown and not any(holds(each, value) for each in shown):
        return
    for page in documents_found(turns):
        if page not in known:
            known[page] = find(page)
        whole = known[page]
        documents = [whole] if whole is not None else _pieces(page, title_of(page), turns)
        for document in documents:
            for sentence in sentences(document):
                text = fold(sentence.text)
                if _is_shown(text, value, shown) if is_shown else holds(text, value):
                    yield _Candidate(sentence, document, whole is not None)


def _pieces(page: str, title: str, turns: Sequence[Turn]) -> Iterator[Document]:
    """What came back of a page that cannot be had whole."""
    for call in (call for turn in turns for call in turn.calls if page in call.document_ids):
        lines = [line.removeprefix(f"{title}: ") for line in call.result.splitlines() if line.startswith(f"{title}: ")]
        yield Document(page, title, "\n".join(lines) if lines or len(call.document_ids) > 1 else call.result)


def _is_shown(sentence: str, value: str, shown: Sequence[str]) -> bool:
    """Whether a folded sentence holds a value, and was shown, at least from there or up to there."""
    before, found, after = f" {sentence} ".partition(f" {value} ")
    up_to = " ".join([*before.split()[-_WINDOW_WORDS:], value])
    on_from = " ".join([value, *after.split()[:_WINDOW_WORDS]])
    sides = [each for each in (up_to, on_from) if each != value] or [value]
    return bool(found) and any(holds(each, side) for each in shown for side in sides)


def _fit(candidate: _Candidate, step: _Step, query: str, question: str, turns: Sequence[Turn]) -> float:
    """How well a sentence fits what was looked for."""
    sentence, title = candidate.sentence, candidate.document.title
    said, heading = _terms(sentence.text), _terms(sentence.section)
    is_latest = _is_shown(fold(sentence.text), fold(step.value), [observed_words(turns[step.turn - 1])])

    def share_of(text: str) -> float:
        wanted = _terms(text) - _terms(step.value)
        found = len(wanted & said) + _SECTION_SHARE * len((wanted & heading) - said)
        return found / len(wanted) if wanted else 0.0

    return (
        _TITLE_WEIGHT * max(_names(title, step.subject, query), _SECTION_SHARE * share_of(step.subject))
        + _RELATION_WEIGHT * share_of(step.sought)
        + _QUESTION_WEIGHT * share_of(question)
        + _LATEST_WEIGHT * is_latest
    )


def _names(title: str, subject: str, query: str) -> float:
    """How far a page is the one that was meant, in [0, 1]."""
    words, wanted = _terms(title), _terms(subject)
    if not words:
        return 0.0
    if not wanted:
        return len(words & _terms(query)) / len(words)
    likeness = difflib.SequenceMatcher(None, title.casefold(), subject.casefold()).ratio()
    overlap = 2 * len(words & wanted) / (len(words) + len(wanted))
    return max(overlap, likeness if likeness >= _MIN_LIKENESS else 0.0)


@functools.lru_cache(maxsize=4096)
def _terms(text: str) -> frozenset[str]:
    return frozenset(_maker().terms(text))


@functools.cache
def _maker() -> TermMaker:
    return TermMaker()
