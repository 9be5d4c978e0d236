r"""How a kind of entity is described: what can be asked about it and how its page talks.

The wording lives in the kind modules as plain text in two small notations, read here once at import.

Relations, one block each, separated by blank lines:
    birthplace | place of birth | 90        key, short words for what is asked, percent of pages that state it
    ? Where was $n born?                    questions; $n is the title with its article; none: too easy to guess
    > the town where $n was born            names the target when a two-hop question goes through this relation
    - Who was born earlier, $a or $b?       comparison answered by the smaller number
    + Who was born later, $a or $b?         comparison answered by the larger number

Pages: `## Heading | Other heading` starts a section (the text before the first is the lead); a plain line is a
sentence that states the facts in its slots; `~` marks a sentence that states none, `~ [poet play]` one for entities
with such a tag only; `< person.birthplace :` a sentence about another entity ($x) that points here. A slot is `$name`,
`{a|b|}` a choice; a backslash at the end continues a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from seekling.corpus.almanac.dice import Dice

_TAGS = re.compile(r"\s*\[([^\]]*)\](.*)")
_TOKEN = re.compile(r"\$([a-z_]+|[A-Z])|[{|}]")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A place where one of several wordings goes."""

    options: tuple[Wording, ...]


@dataclass(frozen=True, slots=True)
class Wording:
    """A parsed template."""

    parts: tuple[str | Slot | Choice, ...]
    slots: frozenset[str]
    """Every slot that may be filled."""
    sure: frozenset[str]
    """Slots that are filled whatever is chosen."""

    def write(self, values: dict[str, str], dice: Dice) -> str:
        """Return the text with choices made and slots filled."""
        out: list[str] = []
        self._write(values, dice, out)
        return "".join(out)

    def _write(self, values: dict[str, str], dice: Dice, out: list[str]) -> None:
        for part in self.parts:
            if isinstance(part, str):
                out.append(part)
            elif isinstance(part, Slot):
                out.append(values[part.name])
            else:
                dice.pick(part.options)._write(values, dice, out)


def parse_wording(text: str) -> Wording:
    """Parse one template.

    Args:
        text: a sentence with `$slot` and `{a|b}`.

    Returns:
        The parsed template; runs of white space are single spaces.
    """
    wording, end = _parse(" ".join(text.split()), 0, depth=0)
    assert end == -1, f"unbalanced braces in {text!r}"
    return wording[0]


def _parse(text: str, start: int, *, depth: int) -> tuple[list[Wording], int]:
    options: list[Wording] = []
    parts: list[str | Slot | Choice] = []
    position = start
    while match := _TOKEN.search(text, position):
        if match.start() > position:
            parts.append(text[position : match.start()])
        position = match.end()
        if match.group(1):
            parts.append(Slot(match.group(1)))
        elif match.group() == "{":
            inner, position = _parse(text, position, depth=depth + 1)
            parts.append(Choice(tuple(inner)))
        else:
            assert depth > 0, f"'{match.group()}' outside of braces in {text!r}"
            options.append(_wording(parts))
            parts = []
            if match.group() == "}":
                return options, position
    assert depth == 0, f"unbalanced braces in {text!r}"
    parts.append(text[position:])
    return [_wording(parts)], -1


def _wording(parts: list[str | Slot | Choice]) -> Wording:
    slots: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()
    for part in parts:
        if isinstance(part, Slot):
            slots |= {part.name}
            sure |= {part.name}
        elif isinstance(part, Choice):
            slots = slots.union(*(option.slots for option in part.options))
            sure |= frozenset.intersection(*(option.sure for option in part.options))
    return Wording(tuple(parts), slots, sure)


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that can be asked about an entity."""

    key: str
    label: str
    percent: int
    """How often a page states it; the rest are unanswerable questions."""
    asks: tuple[Wording, ...]
    vias: tuple[Wording, ...]
    smaller: tuple[Wording, ...]
    larger: tuple[Wording, ...]


def parse_relations(text: str) -> dict[str, Relation]:
    """Parse a block of relations in the notation of this module's docstring."""
    found: dict[str, Relation] = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        head, *lines = [line.strip() for line in block.splitlines()]
        key, label, percent = (cell.strip() for cell in head.split("|"))
        by_mark: dict[str, list[Wording]] = {"?": [], ">": [], "-": [], "+": []}
        for line in lines:
            by_mark[line[0]].append(parse_wording(line[1:]))
        found[key] = Relation(key, label, int(percent), *(tuple(by_mark[mark]) for mark in ("?", ">", "-", "+")))
    return found


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
    for line in re.sub(r"\\\n\s*", "", text.strip()).splitlines():
        line = line.strip()
        if not line:
            continue
        if line.startswith("#"):
            marks, names = line.split(" ", 1)
            sections.append(SectionSpec(tuple(name.strip() for name in names.split("|")), len(marks)))
        elif line.startswith("~"):
            match = _TAGS.match(line[1:])
            tags, sentence = (frozenset(match.group(1).split()), match.group(2)) if match else (frozenset(), line[1:])
            sections[-1].colours.append((tags, parse_wording(sentence)))
        elif line.startswith("<"):
            key, sentence = line[1:].split(":", 1)
            sections[-1].mentions.setdefault(key.strip(), []).append(parse_wording(sentence))
        else:
            sections[-1].tells.append(parse_wording(line))
    return tuple(sections)
