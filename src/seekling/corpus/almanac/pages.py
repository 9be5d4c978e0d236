"""Writes the page of an entity: leads, sections, sentences, links.

A page states each of its entity's facts at least once, in an order and wording of its own: one sentence may state
several facts, and sentences that state none, or that mention other entities, stand between them.
"""

from __future__ import annotations

import re

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity
from seekling.corpus.almanac.province import KINDS
from seekling.corpus.almanac.spec import SectionSpec, Wording, parse_page, read_wording
from seekling.types import Document

_ARTICLE = re.compile(r"\b([Aa]) (?=[\[*\"]?[aeiouAEIOU])(?![\[*\"]?(?:one|uni|use|eu))")
_LINK = re.compile(r"\[([^\]]+)\]\((p\d+)\)")
_MENTIONS_PER_SECTION = 3
_SENTENCES_PER_PARAGRAPH = (3, 5)
_JOINTS = (", and ", " and ", "; ")
_DIGRESSIONS = {section.headings[0]: section.tells for section in parse_page(read_wording("digressions"))[1:]}
"""By kind, with links to people ($x) and places ($t); "place" is for all other kinds. They state no fact."""


def write_page(entity: Entity, seed: int, land: str) -> Document:
    """Write the page of an entity with facts as markdown; `land` is the link of its province, with article."""
    return Document(entity.id, entity.title, _Writer(entity, seed, land).page())


class _Writer:
    """Keeps what the page has said so far."""

    def __init__(self, entity: Entity, seed: int, land: str) -> None:
        self.entity = entity
        self.dice = Dice(seed, "page", entity.index)
        his = entity.extra["his"]
        self.values = {key: fact.prose for key, fact in entity.facts.items()} | entity.extra
        self.values |= {"n": entity.name, "b": entity.short, "land": land, "sort": entity.sort}
        self.values |= {"p": his, "P": his.capitalize()}
        self.told: set[str] = set()
        self.is_named = False
        """Whether a pronoun at the start of the next sentence would be understood."""
        self.linked = {entity.id}

    def page(self) -> str:
        """The page as markdown."""
        blocks = [f"# {self.entity.title}"]
        parent = 1
        for spec in KINDS[self.entity.kind].page:
            if spec.level == 2:
                parent = 1
            if spec.level == 1:
                blocks.append(self.lead(spec))
            elif paragraphs := self.section(spec):
                # A subsection whose parent had nothing to say becomes a section.
                level = min(spec.level, parent + 1)
                parent = level if level == 2 else parent
                blocks += ["#" * level + " " + self.dice.pick(spec.headings), *paragraphs]
        for digression in self.digressions():
            # After any paragraph but the lead: never right below a heading.
            spots = [i for i, block in enumerate(blocks) if i > 1 and not block.startswith("#")]
            blocks.insert(self.dice.pick(spots) + 1 if spots else len(blocks), digression)
        return "\n\n".join(self.link_once(block) for block in blocks) + "\n"

    def lead(self, spec: SectionSpec) -> str:
        """The opening paragraph."""
        possible = [w for w in spec.tells if w.slots <= self.values.keys()]
        sentences = [self.tell(self.dice.pick(possible))]
        sentences += [self.say(w) for w in self.colours_of(spec, self.dice.between(0, 2))]
        return " ".join(sentences)

    def section(self, spec: SectionSpec) -> list[str]:
        """The paragraphs of a section, none when it would state nothing."""
        told, mentions = self.facts_of(spec), self.mentions_of(spec)
        if not told and not mentions:
            return []
        plan: list[Wording | str] = [*told]
        for colour in self.colours_of(spec, self.dice.between(1 if len(told) < 3 else 0, 3)):
            # A section opens with a fact when it has one: 'was born' before 'as a child'.
            plan.insert(self.dice.between(min(1, len(told)), len(plan)), colour)
        paragraphs: list[list[str]] = []
        room = 0
        for what in [*plan, *mentions]:
            if not paragraphs or len(paragraphs[-1]) >= room:
                paragraphs.append([])
                room = self.dice.between(*_SENTENCES_PER_PARAGRAPH)
                self.is_named = False
            if isinstance(what, str):
                paragraphs[-1].append(what)
                self.is_named = False
                continue
            sentence = self.tell(what) if what in told else self.say(what)
            if paragraphs[-1] and self.can_join(paragraphs[-1][-1], sentence):
                first = paragraphs[-1].pop()[:-1]
                sentence = first + self.dice.pick(_JOINTS) + sentence[0].lower() + sentence[1:]
            paragraphs[-1].append(sentence)
        return [" ".join(sentences) for sentences in paragraphs]

    def can_join(self, first: str, second: str) -> bool:
        """Whether two sentences become one: both short and plain, the second about the same subject."""
        subject = second.partition(" ")[0]
        is_plain = not any(mark in first + second for mark in (";", ":", ",", '"', "(", " and "))
        return is_plain and subject in ("He", "She", "It") and len(first) + len(second) < 130 and self.dice.chance(60)

    def facts_of(self, spec: SectionSpec) -> list[Wording]:
        """Choose sentences that together state every fact this section is responsible for."""
        facts = self.entity.facts.keys()
        order = [key for w in spec.tells for key in w.sure if key in facts]
        pending = [key for key in dict.fromkeys(sorted(set(order))) if key not in self.told or self.dice.chance(70)]
        chosen: list[Wording] = []
        done: set[str] = set()
        for key in self.dice.shuffled(pending):
            if key in done:
                continue
            able = [w for w in spec.tells if key in w.sure and w.slots <= self.values.keys()]
            fresh = [w for w in able if not (w.sure & done)] or able
            # Of two, the one that says more: several facts in a sentence read better than a list.
            wording = max((self.dice.pick(fresh), self.dice.pick(fresh)), key=lambda w: len(w.sure & facts))
            chosen.append(wording)
            done |= wording.sure & facts
        # Back into the order of the templates, which is that of a life or of a description.
        return sorted(chosen, key=spec.tells.index)

    def colours_of(self, spec: SectionSpec, wanted: int) -> list[Wording]:
        """Choose sentences that state no fact; those written for this sort of entity come first."""
        tags = self.entity.tags
        suited = [(bool(wants), w) for wants, w in spec.colours if not wants or wants & tags]
        chosen = self.dice.shuffled(suited)
        return [w for _, w in sorted(chosen, key=lambda item: not item[0] or self.dice.chance(40))][:wanted]

    def digressions(self) -> list[str]:
        """Write up to two anecdotes about people and places elsewhere."""
        witness, elsewhere = self.entity.witness, self.entity.elsewhere
        if witness is None or elsewhere is None:
            return []
        pool = _DIGRESSIONS.get(self.entity.kind, _DIGRESSIONS["place"])
        values = self.values | {"x": witness.link, "x_sort": witness.sort, "t": elsewhere.link, "s": self.entity.short}
        chosen = self.dice.shuffled(pool)[: self.dice.pick((0, 1, 1, 1, 2))]
        return [self.finish(wording.write(values, self.dice)) for wording in chosen]

    def mentions_of(self, spec: SectionSpec) -> list[str]:
        """Write sentences about entities whose facts point here."""
        fitting = [(key, source) for key, source in self.entity.mentions if key in spec.mentions]
        sentences = []
        unused = {key: self.dice.shuffled(spec.mentions[key]) for key in dict.fromkeys(key for key, _ in fitting)}
        for key, source in self.dice.shuffled(fitting)[:_MENTIONS_PER_SECTION]:
            if not unused[key]:
                continue
            values = self.values | {"x": source.link, "x_sort": source.sort, "x_year": str(source.year)}
            values |= {"x_birth": str(source.birth), "x_death": str(source.death)}
            sentences.append(self.finish(unused[key].pop().write(values, self.dice)))
        return sentences

    def tell(self, wording: Wording) -> str:
        """Write a sentence that states facts."""
        self.told |= wording.sure & self.entity.facts.keys()
        return self.say(wording)

    def say(self, wording: Wording) -> str:
        """Write a sentence about the page's own entity."""
        pronoun = self.entity.extra["he"]
        self.values["s"] = pronoun if self.is_named and self.dice.chance(60) else self.entity.short
        text = wording.write(self.values, self.dice)
        self.is_named = bool({"s", "b"} & wording.slots) and not any(map(self.is_rival, wording.slots))
        return self.finish(text)

    def is_rival(self, slot: str) -> bool:
        """Whether a pronoun after this slot could also mean its value: another person for a person, a thing else."""
        fact = self.entity.facts.get(slot)
        if fact is None:
            return False
        if self.entity.kind == "person":
            return slot in ("spouse", "parent") or (fact.target is not None and fact.target.kind == "person")
        return fact.target is not None and fact.target.kind != "person"

    @staticmethod
    def finish(text: str) -> str:
        """Capitalise the start and choose between 'a' and 'an'."""
        text = _ARTICLE.sub(r"\1n ", text)
        start = 1 if text[0] in '*["' else 0
        return text[:start] + text[start].upper() + text[start + 1 :]

    def link_once(self, text: str) -> str:
        """Keep the first link to each page; later mentions are plain text, links to itself too."""

        def replace(match: re.Match[str]) -> str:
            if match.group(2) in self.linked:
                return match.group(1)
            self.linked.add(match.group(2))
            return match.group(0)

        return _LINK.sub(replace, text)
