"""Follow-up questions that lean on an earlier one: "Who built Orla Mill?" - "And when was he born?".

A small policy trained on single questions cannot read a conversation, so a follow-up question is made to stand for
itself by rules: a pronoun becomes the last answer or what the last question was about, "And Birch Mill?" asks the last
question of Birch Mill, and "And its height?" asks for the height of what the last question was about. The rules are
English; a question that they do not fit stays as it is. They never guess at what is not named: who asks sees the
question as it was asked of the agent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from seekling.evaluate.evidence import is_abstention

Exchange = tuple[str, str]
"""An earlier question of a conversation, and the text of its answer."""

_OPENING = re.compile(r"^(?:(?:and|but|so|then|ok|okay)\b,?\s+)+", re.I)
_END = "? \t\n"
_ABOUT = re.compile(
    r"^(?:(?:and|but|so)\s+)?(?:what|how)\s+about\s+(.+)$"
    r"|^(?:and|but|so|then)\s+(?:(?:for|of|in|at|on|to|from|by|with)\s+)?(.+)$",
    re.I,
)
"""Of a question without its question mark."""
# Each of these patterns can match a text in one way only: a question is a stranger's, and may be made to try them all.
_CODE = r"(?<![\w.])[\w.]+\(\)|\b[a-z]\w*(?:\.\w+)+|\b[a-z][^\W_]*_\w+"
"""Names in programs."""
_NAME = re.compile(
    rf"\"[^\"]+\"|{_CODE}"  # titles in quotation marks
    r"|\b[A-Z0-9][\w'\u2019-]*(?:\s+(?:(?:of|de|the|la|le|du|von|van|der|di)\s+){0,2}[A-Z0-9][\w'\u2019-]*)*"
)
_HAS_CAPITAL = re.compile(r"[A-Z]")
_SMALL = frozenset(["of", "de", "the", "la", "le", "du", "von", "van", "der", "di", "and", "for", "in"])
"""Words of a name that have no capital."""
_POSSESSIVE = re.compile(r"['\u2019]s$")
_FIELD = re.compile(r"\b(?:as|under)\s+\"[^\"]+\"")
"""Names what is asked for, not of what."""
_OF_NAME = re.compile(rf"\bof\s+(?:the\s+)?((?:{_NAME.pattern})(?:\s+and\s+(?:{_NAME.pattern}))?)$")
_CODE_NAME = re.compile(_CODE)
_NO_NAME = re.compile(r"(?:why|when|where|whom?|whose|what|which|how|really|yes|no|okay|ok|thanks)", re.I)
_OF_WORDS = re.compile(r"\b(?:of|in|on|for|about|from)\s+(?:the\s+)?((?:[\w'\u2019-]+\s+){0,2}[\w'\u2019-]+)$")
_DOING_WORDS = re.compile(
    r"^(?:what|when|where|why|how|which\s+\w+)\s+(?:does|do|did|is|was|can)\s+"
    r"((?:[\w'\u2019-]+\s+){0,3}?[\w'\u2019-]+)\s+\w+$",
    re.I,
)
"""What a question is about that is written without capitals."""
_ATTRIBUTE = re.compile(
    r"^(?:what|which)(?:['\u2019]s|\s+(?:is|was|are|were))\s+(?!.*\b(?:most|least|\w+est)\b).+\sof\s"
    r"|^what\s+does\s+the\s+page\s+on\b",
    re.I,
)
"""Asks for one property of a thing: the next question is likely to ask for another."""
_ANOTHER = re.compile(
    r"(?P<owner>his|her|its|their|the)\s+(?P<property>(?!(?:same|one|other)\b)(?:[\w-]+\s+){0,4}?[\w-]+)", re.I
)
_PLURAL = re.compile(r"[^sui]s$")
_VERB = re.compile(r"\b(?:is|was|are|were|do|does|did|has|have|had|can|will)\b", re.I)
_PERSON_ASKED = re.compile(r"\b(?:who|whom|whose)\b", re.I)
_PLACE_ASKED = re.compile(r"\bwhere\b|\b(?:place|town|village|city|country|river|lake|mountain)\b", re.I)
_NOUNS = (
    "place|town|village|city|country|state|nation|island|region|river|lake|mountain|person|man|woman|book|building"
    "|company|one|thing|page|function|method|class|module|package|command|option|type"
)
_PRONOUN = re.compile(
    r"\b(?:(?P<person>he|she|him|his|hers?)|(?P<place>there)"
    rf"|(?P<noun>(?:that|this|the\s+same)\s+(?:{_NOUNS}))|(?P<thing>it|its|they|them|their))\b"
    r"|(?P<alone>\b(?:that|this)\b(?=\s*(?:$|[?.,;!]))"
    r"|(?<=\b(?:is|do)\s)(?:that|this)\b(?=\s+(?:an?|the|in|on|at|near|still|also|part)\b)"
    r"|(?<=\bdoes\s)(?:that|this)\b(?=\s+(?:mean|return|do|raise|take|cost|work|happen|have)\b))",
    re.I,
)
_OWNING = ("his", "its", "their")
_AFTER_OBJECT = re.compile(r"\s*(?:$|[?.,;!]|(?:in|at|on|to|for|from|by|with|and|when|where|as|after|before)\b)", re.I)
_EXPLETIVE = re.compile(r"it\s+(?:(?:is|was)\s+)?(?:known|said|true|possible|likely|clear)\s+(?:that|to)\b", re.I)
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

    @property
    def is_attribute(self) -> bool:
        """Whether the question asked for a property of its subject."""
        return bool(self.subject) and _ATTRIBUTE.search(self.question) is not None


def stand_alone(question: str, before: Sequence[Exchange]) -> str:
    """Reword a follow-up question so that it can be understood without the conversation before it.

    Example:
        >>> stand_alone("And when was he born?", [("Who built Orla Mill?", "Tobias Wren")])
        'When was Tobias Wren born?'
        >>> stand_alone("What about Birch Mill?", [("Who built Orla Mill?", "Tobias Wren")])
        'Who built Birch Mill?'
        >>> stand_alone("And its capital?", [("What is the population of Chad?", "19,093,595")])
        'What is the capital of Chad?'
    """
    last: _Said | None = None
    for earlier, answer in before:
        asked = _reworded(earlier, last)
        name = answer if not is_abstention(answer) and _is_name(answer) else ""
        last = _Said(asked, _subject(asked) or (last.answer or last.subject if last is not None else ""), name)
    return _reworded(question, last)


def _reworded(question: str, last: _Said | None) -> str:
    question = question.strip()
    if last is None:
        return question
    bare = question.rstrip(_END)
    about = _ABOUT.match(bare)
    named = next((each for each in (about.groups() if about else ()) if each), bare if question[-1:] == "?" else "")
    is_name = _NAME.fullmatch(named.removeprefix("the ")) is not None and not _NO_NAME.fullmatch(named)
    if is_name and last.subject:
        return last.question.replace(last.subject, _POSSESSIVE.sub("", named), 1)
    if (whole := _another_property(named, last)) is not None:
        return whole
    plain = _OPENING.sub("", question)
    plain = plain[:1].upper() + plain[1:]
    pronoun = next((each for each in _PRONOUN.finditer(plain) if not _EXPLETIVE.match(plain, each.start())), None)
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


def _another_property(named: str, last: _Said) -> str | None:
    """The whole question that "its height" or "the height" is short for; None when these words are none of it."""
    asked = _ANOTHER.fullmatch(named)
    if asked is None or _VERB.search(named):
        return None
    owner = asked["owner"]
    if owner.lower() == "the":
        meant = last.subject if last.is_attribute else ""
    else:
        pronoun = _PRONOUN.match(owner)
        meant = _meant(pronoun, last) if pronoun is not None else ""
    verb = "are" if _PLURAL.search(asked["property"]) else "is"
    return f"What {verb} the {asked['property']} of {meant}?" if meant else None


def _meant(pronoun: re.Match[str], last: _Said) -> str:
    """The last answer where it is of the kind that is meant, else what the last question was about."""
    asks_person, asks_place = _PERSON_ASKED.search(last.question), _PLACE_ASKED.search(last.question)
    is_owner = pronoun.group().lower() in (*_OWNING, "her")
    if pronoun["person"] and asks_person:
        return last.answer  # or nobody: what was asked about is a thing
    if last.is_attribute and (pronoun["person"] or is_owner):
        is_answer = False  # "What is the capital of Chad?" - "And its population?"
    elif pronoun["person"]:
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
    """What a question is about: the name at its end after "of", else the longest; its first word is none.

    Without a name, the words at its end after a preposition.
    """
    question = _FIELD.sub("", question).rstrip(_END)
    if (last := _OF_NAME.search(question)) and not last[1].isdigit():
        return _POSSESSIVE.sub("", last[1])
    first_end = len(question.partition(" ")[0])
    names = [_POSSESSIVE.sub("", match.group()) for match in _NAME.finditer(question, first_end)]
    longest = max((name for name in names if not name.isdigit()), key=len, default="")
    if longest or names:
        return longest
    words = _OF_WORDS.search(question) or _DOING_WORDS.search(question)
    return words[1] if words is not None and not _PRONOUN.search(words[1]) else ""


def _is_name(answer: str) -> bool:
    """Whether an answer is a name: each of its words has a capital, but small ones; or a name in a program."""
    plain = answer.strip().removeprefix("the ")
    words = [each for each in plain.replace(",", " ").split() if each not in _SMALL]
    has_capitals = _HAS_CAPITAL.match(plain) is not None and not any(each[0].islower() for each in words)
    return has_capitals or _CODE_NAME.fullmatch(plain) is not None
