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

import re
from dataclasses import dataclass, field
from typing import Literal, cast

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


Split = Literal["", "dev", "test"]
"""Which questions have a wording or ask for a relation; empty: those of training, and of dev and test too."""


@dataclass(frozen=True, slots=True)
class Line:
    """A wording of questions."""

    wording: Wording
    split: Split = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that can be asked about an entity."""

    key: str
    label: str
    percent: int
    """How often a page states it; the rest are unanswerable questions."""
    split: Split
    lines: dict[str, tuple[Line, ...]]
    """By mark."""

    def wordings(self, mark: str, split: Split) -> tuple[Wording, ...]:
        """Return the wordings of a mark that are kept for a split; of training those that all splits may use."""
        return tuple(line.wording for line in self.lines.get(mark, ()) if line.split == split)


MARKS = "?!>-+=#/"


def parse_relations(text: str) -> tuple[dict[str, Relation], str]:
    """Parse relations in the notation of this module's docstring.

    Returns:
        The relations by key, and the key of the premise; empty when there is none.
    """
    found: dict[str, Relation] = {}
    premise = ""
    for block in re.split(r"\n\s*\n", text.strip()):
        head, *lines = [line.strip() for line in block.splitlines()]
        if head.startswith("premise"):
            premise = head.partition("=")[2].strip()
            continue
        key, label, percent, *rest = (cell.strip() for cell in head.split("|"))
        by_mark: dict[str, list[Line]] = {}
        for line in lines:
            assert line[0] in MARKS, line
            match = _TAGS.match(line[1:])
            split, wording = match.groups() if match else ("", line[1:])
            by_mark.setdefault(line[0], []).append(Line(parse_wording(wording), _split(split)))
        marks = {mark: tuple(each) for mark, each in by_mark.items()}
        found[key] = Relation(key, label, int(percent), _split(rest[0] if rest else ""), marks)
    return found, premise


def _split(text: str) -> Split:
    assert text in ("", "dev", "test"), text
    return cast("Split", text)


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
