r"""How a kind of entity is described: what can be asked about it and how its page talks.

The wording lies in `wording/*.txt`, in two small notations. A slot is `$name`, `{a|b|}` a choice; a backslash at the
end continues a line.

Relations, one block each, separated by blank lines; a first line `premise = author` names the relation whose value
`$x` stands for in lines that begin with `!`:

    birthplace | place born | 90            key, words of the page for what is asked, percent of pages that state it
    teacher | teacher, taught | 80 | test   a relation that only test questions ask for
    ? Where did $n first see the light?     questions; $n is the title with its article; none: too easy to guess
    ? [test] Where was $n brought up?       a wording that only test questions have; [dev] likewise
    ! Where did the $x $n grow up?          takes for granted what the premise says; asked of wrong values too
    > the town where $n was born            names the target when a question of several hops goes through this relation
    - Who is the oldest of these: $list?    the smallest number of three or four
    + Who is the youngest of these: $list?  the largest number
    = How many years older is $a than $b?   the difference of two numbers
    # How many of these are from before $x: $list?   how many have a smaller number, or this very value
    / Which of these is not from $x: $list?          the one whose value is another than that of all others

Pages: `## Heading | Other heading` starts a section (the text before the first is the lead); a plain line is a
sentence that states the facts in its slots; `~` marks a sentence that states none, `~ [poet play]` one for entities
with such a tag only; `< person.birthplace :` a sentence about another entity ($x) that points here.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from seekling.corpus.almanac.dice import Dice

Split = Literal["", "dev", "test"]
"""Which questions have a wording or ask for a relation; empty: those of training, and of dev and test too."""

_TAGS = re.compile(r"(?:\s*\[([^\]]*)\])?(.*)")
_TOKEN = re.compile(r"(\$[a-z_]+|\$[A-Z]|[{|}])")


def read_wording(name: str) -> str:
    """The text of a file of `wording/`, continued lines joined."""
    file = importlib.resources.files("seekling.corpus.almanac") / "wording" / f"{name}.txt"
    return re.sub(r"\\\n\s*", "", file.read_text(encoding="utf-8"))


def _word_lists() -> dict[str, tuple[str, ...]]:
    lines = re.sub(r"\n +", " ", read_wording("words")).splitlines()
    pairs = (line.split(":", 1) for line in lines if line and line[0] != "#")
    return {name: tuple(each.strip() for each in items.split("|")) for name, items in pairs}


WORDS = _word_lists()
"""The lists of `wording/words.txt`."""


class Slot(NamedTuple):
    """A place for a value."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Wording:
    """A parsed template."""

    parts: tuple[str | Slot | list[Wording], ...]
    """Texts, slots, and lists of wordings of which one is chosen."""
    slots: frozenset[str]
    """Every slot that may be filled."""
    sure: frozenset[str]
    """Slots that are filled whatever is chosen."""

    def write(self, values: dict[str, str], dice: Dice) -> str:
        """The text with choices made and slots filled."""
        out = []
        for part in self.parts:
            if isinstance(part, list):
                out.append(dice.pick(part).write(values, dice))
            else:
                out.append(values[part.name] if isinstance(part, Slot) else part)
        return "".join(out)


def parse_wording(text: str) -> Wording:
    """Parse a sentence with `$slot` and `{a|b}`; runs of white space become single spaces."""
    assert text.count("{") == text.count("}"), f"unbalanced braces in {text!r}"
    (wording,) = _options(iter(_TOKEN.split(" ".join(text.split()))))
    return wording


def _options(tokens: Iterator[str]) -> list[Wording]:
    """The wordings between `|` up to the closing brace or the end."""
    options: list[Wording] = []
    parts: list[str | Slot | list[Wording]] = []
    for token in tokens:
        if token == "{":
            parts.append(_options(tokens))
        elif token in ("|", "}"):
            options.append(_wording(parts))
            if token == "}":
                return options
            parts = []
        else:
            parts.append(Slot(token[1:]) if token[:1] == "$" else token)
    return [*options, _wording(parts)]


def _wording(parts: Sequence[str | Slot | list[Wording]]) -> Wording:
    own = frozenset(part.name for part in parts if isinstance(part, Slot))
    choices = [part for part in parts if isinstance(part, list)]
    slots = own.union(*(option.slots for options in choices for option in options))
    sure = own.union(*(frozenset.intersection(*(option.sure for option in options)) for options in choices))
    return Wording(tuple(parts), slots, sure)


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that can be asked about an entity."""

    key: str
    label: str
    percent: int
    """How often a page states it; the rest are unanswerable questions."""
    split: Split
    lines: dict[tuple[str, Split], list[Wording]]
    """By mark and split."""

    def wordings(self, mark: str, split: Split) -> tuple[Wording, ...]:
        """The wordings of a mark that are kept for a split; of training those that all splits may use."""
        return tuple(self.lines.get((mark, split), ()))


def parse_relations(text: str) -> tuple[dict[str, Relation], str]:
    """The relations by key, and the key of the premise; empty when there is none."""
    found: dict[str, Relation] = {}
    premise = ""
    for block in re.split(r"\n\s*\n", text.strip()):
        head, *lines = block.splitlines()
        if head.startswith("premise"):
            premise = head.partition("=")[2].strip()
            continue
        key, label, percent, split = (cell.strip() for cell in f"{head}|".split("|")[:4])
        by_mark: dict[tuple[str, Split], list[Wording]] = {}
        for line in lines:
            tag, sentence = _tagged(line[1:])
            assert line[0] in "?!>-+=#/", line
            assert tag in ("", "dev", "test"), line
            by_mark.setdefault((line[0], cast("Split", tag)), []).append(parse_wording(sentence))
        found[key] = Relation(key, label, int(percent), cast("Split", split), by_mark)
    return found, premise


def _tagged(line: str) -> tuple[str, str]:
    """What stands in brackets before a sentence, and the sentence."""
    match = _TAGS.match(line)
    assert match is not None
    return match[1] or "", match[2]


@dataclass(slots=True)
class SectionSpec:
    """What one section of a page may say."""

    headings: tuple[str, ...]
    level: int
    tells: list[Wording] = field(default_factory=list)
    colours: list[tuple[frozenset[str], Wording]] = field(default_factory=list)
    """Each with the tags of the entities it suits; none suits all."""
    mentions: dict[str, list[Wording]] = field(default_factory=dict)


def parse_page(text: str) -> tuple[SectionSpec, ...]:
    """Parse the wording of a page; the first section is the lead, without heading."""
    sections = [SectionSpec((), 1)]
    for line in filter(None, map(str.strip, text.splitlines())):
        if line[0] == "#":
            marks, names = line.split(" ", 1)
            sections.append(SectionSpec(tuple(name.strip() for name in names.split("|")), len(marks)))
        elif line[0] == "~":
            tags, sentence = _tagged(line[1:])
            sections[-1].colours.append((frozenset(tags.split()), parse_wording(sentence)))
        elif line[0] == "<":
            key, sentence = line[1:].split(":", 1)
            sections[-1].mentions.setdefault(key.strip(), []).append(parse_wording(sentence))
        else:
            sections[-1].tells.append(parse_wording(line))
    return tuple(sections)
