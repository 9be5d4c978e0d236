"""What the almanac's world consists of: entities and the facts that are stated about them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.spec import WORDS

PRESENT = 1000
"""The year in which the almanac is written."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value as a page states it and as a question accepts it."""

    prose: str
    """With article and link: `the [Velm lamp](p12)`."""
    answers: tuple[str, ...]
    """The first is found verbatim in the page."""
    target: Entity | None = None
    """The entity that the value is, when it has a page."""
    number: int | None = None
    """What a comparison compares."""

    @property
    def spoken(self) -> str:
        """The value inside a question: a name with its article, a phrase without."""
        return self.target.name if self.target is not None else self.answers[0]


@dataclass(slots=True, eq=False)
class Entity:
    """The subject of one page. The census fills the upper fields, the province the facts."""

    index: int
    kind: str
    sort: str
    """Trade of a person, type of a building, product of a guild..."""
    title: str
    article: str
    """'the ' where prose needs it before the title, else ''."""
    short: str
    """How the page itself calls it after the first time: a surname, 'the town'."""
    decoy: str
    """A title like this one's that no page has."""
    pronoun: str = "it"
    birth: int = 0
    death: int = 0
    """0 for a person still alive."""
    year: int = 0
    """When it was made, written, founded, launched."""
    maker: Entity | None = None
    home: Entity | None = None
    """The town it belongs to."""
    river: Entity | None = None
    """The river that a town lies on."""
    facts: dict[str, Fact] = field(default_factory=dict)
    """What its page states."""
    unstated: tuple[str, ...] = ()
    """Relations that make sense for it and that no page states."""
    extra: dict[str, str] = field(default_factory=dict)
    """Further slots for the wording, never asked about."""
    mentions: list[tuple[str, Entity]] = field(default_factory=list)
    """(kind.relation, entity) of the entities in the province whose facts point here."""
    witness: Entity | None = None
    """A person of the province who could have known it; for digressions."""
    elsewhere: Entity | None = None
    """A town of another province; for digressions."""

    @property
    def tags(self) -> frozenset[str]:
        """Words that say what sort of thing it is; choose sentences that suit only some."""
        return frozenset(f"{self.sort} {self.short} {self.extra.get('calling', '')}".lower().split())

    @property
    def id(self) -> str:
        """The page id."""
        return f"p{self.index}"

    @property
    def name(self) -> str:
        """Title with article, as it stands inside a sentence."""
        return self.article + self.title

    @property
    def link(self) -> str:
        """Markdown link with article."""
        return f"{self.article}[{self.title}]({self.id})"

    def is_adult_in(self, year: int) -> bool:
        """Whether a person is alive and at least twenty in a year."""
        return self.birth + 20 <= year <= (self.death or PRESENT)


PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her", "child": "daughter", "self": "herself", "widow": "widower"},
    "he": {"he": "he", "him": "him", "his": "his", "child": "son", "self": "himself", "widow": "widow"},
    "it": {"he": "it", "him": "it", "his": "its", "child": "part", "self": "itself", "widow": "heir"},
}


def to(entity: Entity) -> Fact:
    """A fact whose value is another entity's page."""
    return Fact(entity.link, _each_once(entity.title, entity.name), target=entity)


def phrase(text: str) -> Fact:
    """A fact from words; a leading article is not part of the canonical answer."""
    return Fact(text, _each_once(re.sub("^(?:an?|the|some) ", "", text), text))


def one_of(dice: Dice, *lists: str) -> Fact:
    """A fact from words, one of each of these lists."""
    return phrase(" ".join(dice.pick(WORDS[name]) for name in lists))


def quoted(text: str) -> Fact:
    """A fact whose prose stands in quotation marks, such as the meaning of a name."""
    return Fact(f'"{text}"', (text,))


def year(number: int) -> Fact:
    """A fact from a year."""
    return Fact(str(number), (str(number),), number=number)


def amount(number: int, unit: str = "", short_unit: str = "") -> Fact:
    """A fact from a number; thousands are separated by a comma in prose."""
    shown, plain = f"{number:,}", str(number)
    spellings = [f"{shown} {unit}", shown, f"{plain} {unit}", plain] if unit else [shown, plain]
    spellings += [f"{shown} {short_unit}", f"{plain} {short_unit}"] if short_unit else []
    return Fact(spellings[0], _each_once(*spellings), number=number)


_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def count(number: int, unit: str) -> Fact:
    """A fact from a small number written as a word."""
    word = _SMALL[number]
    return Fact(f"{word} {unit}", (f"{word} {unit}", word, f"{number} {unit}", str(number)), number=number)


def _each_once(*answers: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answers))
