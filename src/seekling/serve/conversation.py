"""Follow-up questions that lean on an earlier one: "Who built Orla Mill?" - "And when was he born?".

A small policy trained on single questions cannot read a conversation, so a follow-up question is made to stand for
itself by rules: a pronoun becomes the last answer or what the last question was about, and "And Birch Mill?" asks the
last question of Birch Mill. The rules are English; a question that they do not fit stays as it is. They never guess at
what is not named: who asks sees the question as it was asked of the agent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from seekling.evaluate.evidence import is_abstention

Exchange = tuple[str, str]
"""An earlier question of a conversation, and the text of its answer."""

_OPENING = re.compile(r"^(?:(?:and|but|so|then|ok|okay)\b,?\s+)+", re.I)
_ABOUT = re.compile(
    r"^(?:(?:and|but|so)\s+)?(?:what|how)\s+about\s+(.+?)\s*\?*$"
    r"|^(?:and|but|so|then)\s+(?:(?:for|of|in|at|on|to|from|by|with)\s+)?(.+?)\s*\?*$|^(.+?)\s*\?+$",
    re.I,
)
_NAME = re.compile(
    r"\"[^\"]+\"|[\w.]+\(\)|\b[a-z]\w*(?:[._]\w+)+"  # titles in quotation marks, names in programs
    r"|\b[A-Z0-9][\w'\u2019-]*(?:\s+(?:(?:of|de|the|la|le|du|von|van|der|di)\s+){0,2}[A-Z0-9][\w'\u2019-]*)*"
)
_HAS_CAPITAL = re.compile(r"[A-Z]")
_POSSESSIVE = re.compile(r"['\u2019]s$")
_PERSON_ASKED = re.compile(r"\b(?:who|whom|whose)\b", re.I)
_PLACE_ASKED = re.compile(r"\bwhere\b|\b(?:place|town|village|city|country|river|lake|mountain)\b", re.I)
_NOUNS = "place|town|village|city|country|river|lake|mountain|person|man|woman|book|building|company|one|thing|page"
_PRONOUN = re.compile(
    r"\b(?:(?P<person>he|she|him|his|hers?)|(?P<place>there)"
    rf"|(?P<noun>(?:that|this|the\s+same)\s+(?:{_NOUNS}))|(?P<thing>it|its|they|them|their))\b",
    re.I,
)
_OWNING = ("his", "its", "their")
_AFTER_OBJECT = re.compile(r"\s*(?:$|[?.,;!]|(?:in|at|on|to|for|from|by|with|and|when|where|as|after|before)\b)", re.I)
_NO_REFERENT = re.compile(
    r"^(?:is|are|was|were)\s+there\b|\bhow\s+(?:many|much)\b.*\b(?:is|are|was|were)\s+there\b", re.I
)


class _Said(NamedTuple):
    """What a follow-up question may mean."""

    question: str
    subject: str
    """What the question was about, by name; empty when it names nothing."""
    answer: str
    """The answer, when it is a name; else empty."""


def stand_alone(question: str, before: Sequence[Exchange]) -> str:
    """Reword a follow-up question so that it can be understood without the conversation before it.

    Example:
        >>> stand_alone("And when was he born?", [("Who built Orla Mill?", "Tobias Wren")])
        'When was Tobias Wren born?'
        >>> stand_alone("What about Birch Mill?", [("Who built Orla Mill?", "Tobias Wren")])
        'Who built Birch Mill?'
    """
    last: _Said | None = None
    for earlier, answer in before:
        asked = _reworded(earlier, last)
        name = answer if not is_abstention(answer) and _HAS_CAPITAL.match(answer.removeprefix("the ")) else ""
        last = _Said(asked, _subject(asked) or (last.answer or last.subject if last is not None else ""), name)
    return _reworded(question, last)


def _reworded(question: str, last: _Said | None) -> str:
    question = question.strip()
    if last is None:
        return question
    about = _ABOUT.match(question)
    named = next((each for each in (about.groups() if about else ()) if each), "")
    if named and _NAME.fullmatch(named.removeprefix("the ")) and last.subject:
        return last.question.replace(last.subject, named, 1)
    plain = _OPENING.sub("", question)
    plain = plain[:1].upper() + plain[1:]
    pronoun = _PRONOUN.search(plain)
    if pronoun is None or _NO_REFERENT.search(plain) or _names_before(plain, pronoun.start()):
        return plain
    meant = _meant(pronoun, last)
    if not meant:
        return plain
    words = pronoun.group().lower()
    is_owner = words in _OWNING or (words == "her" and not _AFTER_OBJECT.match(plain, pronoun.end()))
    meant += "'s" if is_owner else ""
    meant = f"in {meant}" if pronoun["place"] else meant
    return plain[: pronoun.start()] + meant + plain[pronoun.end() :]


def _meant(pronoun: re.Match[str], last: _Said) -> str:
    """The last answer where it is of the kind that is meant, else what the last question was about."""
    asks_person, asks_place = _PERSON_ASKED.search(last.question), _PLACE_ASKED.search(last.question)
    if pronoun["person"] and asks_person:
        return last.answer  # or nobody: what was asked about is a thing
    if pronoun["person"]:
        is_answer = not asks_place
    elif pronoun["place"] or pronoun["noun"]:
        is_answer = "person" in pronoun.group() or not asks_person
    else:
        is_answer = not asks_person
    return (last.answer if is_answer else "") or last.subject or last.answer


def _names_before(question: str, end: int) -> bool:
    """Whether a question names something before a place in it, which a pronoun there then means."""
    return any(match.start() for match in _NAME.finditer(question[:end]) if _HAS_CAPITAL.search(match.group()))


def _subject(question: str) -> str:
    """The longest name in a question; its first word is none."""
    first_end = len(question.partition(" ")[0])
    names = [_POSSESSIVE.sub("", match.group()) for match in _NAME.finditer(question, first_end)]
    return max((name for name in names if not name.isdigit()), key=len, default="")
