"""The forms and words of a language, read from its data file."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pydantic

LANGUAGES = tuple(sorted(path.stem for path in (Path(__file__).parent / "languages").glob("*.toml")))
"""Those with a data file, by the names that stemmers have."""

MARK = "\x01"
"""Stands for the subject in a sentence that is matched."""


class _FromFile(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Pattern(_FromFile):
    """A form in which pages state a fact, and how it is asked for."""

    kind: str
    match: re.Pattern[str]
    """Groups: `answer`; others stand in question and relation as {name}. MARK stands for the entry's name."""
    relation: str
    questions: tuple[str, ...]
    """The first in the page's words, the others in different ones."""
    of: tuple[str, ...] = ()
    """title, term, heading, signature; empty: any."""
    first: bool = False
    """Only the first sentence of the entry counts."""
    max_words: int = 10
    is_whole: bool = False
    """The answer is a list, which is not cut."""
    phrase: str = ""
    """Names the answer without saying it, for a question over two pages: "what {subject} returns"."""
    absent: str = ""
    """If a page holds none of these words, it does not say it; empty: no unanswerable question is made of it."""


class Language(_FromFile):
    """What the rules need to know of a language."""

    name: str
    markers: frozenset[str]
    """Frequent words that tell it from others."""
    cut: re.Pattern[str]
    """Where an answer ends early."""
    article: re.Pattern[str]
    bad_answer: re.Pattern[str]
    """What an answer must not hold: pronouns that lean on other text, for instance."""
    bad_edge: re.Pattern[str]
    """Words at which no answer ends."""
    abbreviations: re.Pattern[str]
    anaphors: str
    """Words that stand for the subject at the beginning of a sentence."""
    verbs: dict[str, str]
    """Form in the page -> form in a question."""
    pattern: tuple[Pattern, ...]
    table: tuple[str, ...]
    """Questions for a cell: {subject} is the row, {column} the column, {owner} what the table belongs to."""
    record: tuple[str, ...]
    """Questions for a line of a record: {field} of {subject}."""
    record_phrase: str
    """Names such a value without saying it."""
    record_mention: str
    """Stands for what the value of a {field} of {subject} names."""
    record_described: str
    """Stands for that whose {field} is {value}."""
    before_name: str
    """Finds in a value what stands before a name that is a thing by itself."""
    several: str
    """Asks the same of {other}, after a question without its mark."""
    both: str
    """The two answers then."""
    lowers_nouns: bool
    """Nouns are written small inside of a sentence."""
    default: tuple[str, ...]
    """Questions for the default of an argument."""
    cloze: tuple[str, ...]
    gap: re.Pattern[str]
    """Names and numbers that may be left out of a sentence."""
    no_gap: re.Pattern[str]
    """Sentences that only refer to something."""
    no_name: re.Pattern[str]
    """What the text between the parts of a form must not be, such as a pronoun."""

    def is_of(self, text: str) -> bool:
        """Whether no other language speaks more for a text."""
        return language_of([text], default=self.name) == self.name

    def sentences(self, text: str) -> list[str]:
        """The sentences of a paragraph."""
        held = self.abbreviations.sub(lambda match: match[0].replace(".", "\x00"), text)
        parts = re.split(r"(?<=[.!?])[\"”»)]?\s+(?=[\"“„«(]?[A-ZÄÖÜ0-9_])", held)
        return [part.replace("\x00", ".").strip() for part in parts if part.strip()]


@functools.cache
def load_language(name: str) -> Language:
    """Read a language's data file; `name` is one of `LANGUAGES`."""
    raw = tomllib.loads((Path(__file__).parent / "languages" / f"{name}.toml").read_text("utf-8"))
    verbs = "|".join(map(re.escape, raw["verbs"]))
    for row in raw["pattern"]:
        source = row["match"].replace("VERB", f"(?P<verb>{verbs})").replace("SUBJECT", MARK)
        row["match"] = f"(?i){source}" if row.pop("any_case", True) else source
    return Language(name=name, **raw)


def language_of(texts: Iterable[str], default: str = "english") -> str:
    """The language that most of the words of some pages speak for; the default where none of those known is ahead."""
    words = re.findall(r"[^\W\d_]+", " ".join(texts).casefold())
    counts = {name: sum(word in load_language(name).markers for word in words) for name in LANGUAGES}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > counts.get(default, 0) else default
