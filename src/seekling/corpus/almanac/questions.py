"""Asks about a province: questions of one to four pages, and questions that no page answers, with their decomposition.

All entities that a question names or looks up lie in one province, so a split by province is a split by entity.
Questions of dev and test also have wordings, and ask for relations, that no question of training has; their labels say
so.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, count
from seekling.corpus.almanac.names import ROOTS_PER_PROVINCE, Namer
from seekling.corpus.almanac.province import KINDS, Province
from seekling.corpus.almanac.spec import Relation, Split, Wording
from seekling.text import holds_words
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWERS, Hop, Question

SOURCE = "almanac"
QUESTION_KINDS = ("single", "bridge", "chain", "several", UNANSWERABLE)
"""One page; two and three pages, one after the other; two to four pages side by side; none."""
SEEN, NEW_WORDING, NEW_RELATION = "seen in training", "new wording", "new relation"
_NOVELTIES = (SEEN, SEEN, SEEN, SEEN, SEEN, NEW_WORDING, NEW_WORDING, NEW_RELATION)
"""Every eight questions of dev and test, in a new order each time."""


_Steps = tuple[tuple[Entity, str], ...]
"""Entities with the relations that lead on from them."""


class _Path(NamedTuple):
    """A walk along relations to an entity, of which one fact is asked for."""

    steps: _Steps
    entity: Entity
    key: str

    @property
    def relation(self) -> Relation:
        return _relation(self.entity, self.key)


class _Group(NamedTuple):
    """Entities of one kind whose pages state a relation, and a question over all of them."""

    wording: Wording
    novelty: tuple[str, ...]
    """The label of how new the wording is; training questions have none."""
    key: str
    entities: list[Entity]

    @property
    def facts(self) -> list[Fact]:
        return [entity.facts[self.key] for entity in self.entities]

    def row(self, label: str, answers: Sequence[str], dice: Dice, **slots: str) -> Question:
        question = _write(self.wording, dice, self.entities[0], **slots)
        hops = tuple(_hop(entity, self.key) for entity in self.entities)
        pages = tuple(entity.id for entity in self.entities)
        return Question("", question, tuple(answers), pages, "several", SOURCE, hops, (label, *self.novelty))


class Asker:
    """Makes the questions about one province, for training (an empty split), dev or test."""

    def __init__(self, province: Province, split: Split, seed: int, namer: Namer) -> None:
        self._province, self._split, self._seed, self._namer = province, split, seed, namer
        self._own = {entity.index: entity for entity in province.entities}
        self._splits: tuple[Split, ...] = ("", split) if split else ("",)
        self._stated = [_Path((), entity, key) for entity in province.entities for key in entity.facts]

    def ask(self, kind: str, wanted: int) -> list[Question]:
        """Distinct questions of one of QUESTION_KINDS in a random order, without ids; fewer where there are no more.

        Their labels say what sort of its kind each is, and how it differs from those of training.
        """
        dice = Dice(self._seed, "questions", self._split, kind, self._province.number)
        if kind == "several":
            rows = self._several(dice)
        elif kind == UNANSWERABLE:
            rows = self._unanswerable(wanted, dice)
        else:
            rows = self._walks(kind, wanted, dice)
        fair = (row for row in rows if not _gives_itself_away(row))
        return list({row.question: row for row in fair}.values())[:wanted]

    # --- one page, and pages one after the other

    def _paths(self, kind: str) -> list[_Path]:
        if kind == "single":
            return self._stated
        ends: list[tuple[_Steps, Entity]] = [
            (((first, via),), second) for first in self._province.entities for via, second in self._links(first)
        ]
        if kind == "chain":
            ends = [
                ((step, (second, via)), third)
                for (step,), second in ends
                for via, third in self._links(second)
                if third is not step[0]
            ]
        return [
            _Path(steps, end, key)
            for steps, end in ends
            for key, fact in end.facts.items()
            # An answer that the question already names, or that is passed on the way, is none.
            if fact.target is None or all(fact.target.index != entity.index for entity, _ in steps)
        ]

    def _walks(self, kind: str, wanted: int, dice: Dice) -> Iterator[Question]:
        for (steps, last, key), wording, novelty in self._draw(self._paths(kind), wanted, dice, kind == "single"):
            name = steps[0][0].name if steps else last.name
            for entity, via in steps:
                phrase = dice.pick(_relation(entity, via).wordings(">", ""))
                name = phrase.write(entity.extra | {"n": name}, dice)
            hops = tuple(_hop(entity, each) for entity, each in (*steps, (last, key)))
            slots = {"n": name}
            if "x" in wording.slots:
                # Here the premise is true, so that naming one does not give the answer away.
                slots["x"] = last.facts[KINDS[last.kind].premise].spoken
                hops = (_claim(last, slots["x"]), *hops)
            question = _write(wording, dice, last, **slots)
            pages = tuple(dict.fromkeys(hop.document_id for hop in hops))
            yield Question(
                "", question, last.facts[key].answers, pages, kind, SOURCE, hops, (novelty,) * bool(self._split)
            )

    def _links(self, entity: Entity) -> Iterator[tuple[str, Entity]]:
        """Relations of an entity that lead to another page of the province, and where they lead."""
        for via, link in entity.facts.items():
            target = self._own.get(link.target.index) if link.target else None
            # 'The work for which X is best known' does not fit what was founded or found.
            is_odd = target is not None and via == "known_for" and target.kind in ("guild", "plant")
            if target is not None and target is not entity and not is_odd and _relation(entity, via).wordings(">", ""):
                yield via, target

    def _draw(
        self, paths: Sequence[_Path], wanted: int, dice: Dice, may_presume: bool = False
    ) -> Iterator[tuple[_Path, Wording, str]]:
        """Choose paths and wordings; those of dev and test have shares of wordings and relations that are new.

        Some things are asked for more often than others (Zipf-Mandelbrot's law): of each kind of page the relation that
        its file lists in place n has weight 1 / (n + 2).
        """
        rest = {}
        for novelty in (SEEN, NEW_WORDING, NEW_RELATION):
            pool = [path for path in paths if self._wordings(path.relation, novelty)]
            places = [list(KINDS[path.entity.kind].relations).index(path.key) + 3 for path in pool]
            rest[novelty] = iter(dice.by_weight(pool, places))
        for novelty in self._novelties(wanted, dice):
            for path in itertools.islice(rest[novelty], 1):
                wordings = self._wordings(path.relation, novelty)
                if may_presume and novelty == SEEN and KINDS[path.entity.kind].premise in path.entity.facts:
                    wordings += path.relation.wordings("!", "")
                yield path, dice.pick(wordings), novelty

    def _wordings(self, relation: Relation, novelty: str) -> tuple[Wording, ...]:
        """Questions that ask for a relation in a way that is as new as wanted; none when it is not this split's."""
        if novelty == NEW_RELATION:
            return relation.wordings("?", "") if relation.split and relation.split == self._split else ()
        if relation.split or (novelty == NEW_WORDING and not self._split):
            return ()
        return relation.wordings("?", self._split if novelty == NEW_WORDING else "")

    def _novelties(self, wanted: int, dice: Dice) -> Iterator[str]:
        if not self._split:
            yield from itertools.repeat(SEEN, wanted)
            return
        for _ in range(-(-wanted // len(_NOVELTIES))):
            yield from dice.shuffled(_NOVELTIES)

    # --- pages side by side

    def _several(self, dice: Dice) -> Iterator[Question]:
        makers = (self._extremes, self._differences, self._counts, self._odd_ones)
        queues = [dice.shuffled(list(make(dice))) for make in makers]
        return (row for rows in itertools.zip_longest(*queues) for row in rows if row is not None)

    def _groups(self, mark: str, size: int, dice: Dice) -> Iterator[_Group]:
        """A few groups of each relation with a wording of a mark."""
        for kind, spec in KINDS.items():
            for key, relation in spec.relations.items():
                stating = [e for e in self._province.entities if e.kind == kind and key in e.facts]
                for split in self._splits:
                    novelty = (NEW_WORDING if split else SEEN,) * bool(self._split)
                    for wording in relation.wordings(mark, split):
                        for _ in range(3):
                            entities = dice.shuffled(stating)[:size]
                            if len(entities) >= min(size, 3):
                                yield _Group(wording, novelty, key, entities)

    def _extremes(self, dice: Dice) -> Iterator[Question]:
        for mark, best in (("-", min), ("+", max)):
            for group in self._groups(mark, 3 + dice.below(2), dice):
                numbers = [fact.number or 0 for fact in group.facts]
                if numbers.count(best(numbers)) == 1:
                    answer = group.entities[numbers.index(best(numbers))]
                    yield group.row("the most", _titles(answer), dice, list=_listed(group, "or"))

    def _differences(self, dice: Dice) -> Iterator[Question]:
        for group in self._groups("=", 2, dice):
            first, second = group.entities
            one, other = (fact.number or 0 for fact in group.facts)
            if years := abs(one - other):
                yield group.row("difference", (str(years), f"{years} years"), dice, a=first.name, b=second.name)

    def _counts(self, dice: Dice) -> Iterator[Question]:
        for group in self._groups("#", 4, dice):
            facts = group.facts
            numbers = sorted({fact.number for fact in facts if fact.number is not None})
            if len(numbers) == len(facts):
                # Any number of them is as likely as any other.
                num = dice.between(1, len(numbers) - 1)
                shown = str(numbers[num])
            elif numbers or len({fact.target is None for fact in facts}) > 1:
                continue  # equal numbers have no edge between them; 'the road' is no town
            else:
                shown = dice.pick(facts).spoken
                num = sum(fact.spoken == shown for fact in facts)
            if 0 < num < len(facts):
                answers = dict.fromkeys(answer.strip() for answer in count(num, "").answers)
                yield group.row("how many", tuple(answers), dice, x=shown, list=_listed(group, "and"))

    def _odd_ones(self, dice: Dice) -> Iterator[Question]:
        for group in self._groups("/", 3, dice):
            if len({fact.target is None for fact in group.facts}) > 1:
                continue
            values = [fact.spoken for fact in group.facts]
            shared = max(values, key=values.count)
            if values.count(shared) == len(values) - 1:
                odd = next(e for e, value in zip(group.entities, values, strict=True) if value != shared)
                yield group.row("the odd one", _titles(odd), dice, x=shared, list=_listed(group, "or"))

    # --- no page

    def _unanswerable(self, wanted: int, dice: Dice) -> Iterator[Question]:
        makers = (self._not_stated, self._look_alike, self._no_such_page, self._false_premise)
        yield from dice.shuffled([row for make in makers for row in make(-(-wanted // 4), dice)])

    def _unknown(
        self, sort: str, paths: Sequence[_Path], wanted: int, dice: Dice, title_of: Callable[[int, Entity], str]
    ) -> Iterator[Question]:
        """Questions about what is called as `title_of` says; the page of an entity's own title does not say it."""
        for number, (path, wording, novelty) in enumerate(self._draw(paths, wanted, dice)):
            entity, title = path.entity, title_of(number, path.entity)
            question = _write(wording, dice, entity, n=entity.article + title)
            page = entity.id if title == entity.title else ""
            hop = Hop(title, path.relation.label, UNKNOWN_ANSWERS[0], page)
            labels = (sort, novelty) if self._split else (sort,)
            yield Question("", question, UNKNOWN_ANSWERS, (), UNANSWERABLE, SOURCE, (hop,), labels)

    def _not_stated(self, wanted: int, dice: Dice) -> Iterator[Question]:
        paths = [
            _Path((), entity, key)
            for entity in self._province.entities
            for key in entity.unstated
            if not _is_said_elsewhere(entity, key)
        ]
        return self._unknown("not stated", paths, wanted, dice, lambda _, entity: entity.title)

    def _look_alike(self, wanted: int, dice: Dice) -> Iterator[Question]:
        """About somebody who is called almost like an entity whose page does say it."""
        return self._unknown("look-alike", self._stated, wanted, dice, lambda _, entity: entity.decoy)

    def _no_such_page(self, wanted: int, dice: Dice) -> Iterator[Question]:
        province, namer = self._province.number, self._namer
        roots = {namer.root(province, number) for number in range(ROOTS_PER_PROVINCE)}
        named = re.compile(rf"\b({'|'.join(map(re.escape, sorted(roots, key=len, reverse=True)))})\b")
        paths = [path for path in self._stated if named.search(path.entity.title)]
        return self._unknown(
            "no such page",
            paths,
            wanted,
            dice,
            lambda number, entity: named.sub(namer.unused_root(province, number), entity.title),
        )

    def _false_premise(self, wanted: int, dice: Dice) -> Iterator[Question]:
        paths = [
            (path, wording, other, NEW_WORDING if split else SEEN)
            for path in self._stated
            for split in self._splits
            for wording in path.relation.wordings("!", split)
            if (other := self._wrong_premise(path.entity, dice))
        ]
        for (_, entity, key), wording, x, novelty in dice.shuffled(paths)[:wanted]:
            question = _write(wording, dice, entity, n=entity.name, x=x)
            hops = (_claim(entity, x), _hop(entity, key))
            labels = ("false premise", novelty) if self._split else ("false premise",)
            yield Question("", question, UNKNOWN_ANSWERS, (), UNANSWERABLE, SOURCE, hops, labels)

    def _wrong_premise(self, entity: Entity, dice: Dice) -> str:
        """What the premise is for another entity of the kind, and is not for this one; empty when there is none."""
        key = KINDS[entity.kind].premise
        if key not in entity.facts:
            return ""
        others = {e.facts[key].spoken for e in self._province.entities if e.kind == entity.kind and key in e.facts}
        wrong = sorted(others - {entity.facts[key].spoken})
        return dice.pick(wrong) if wrong else ""


def _is_said_elsewhere(entity: Entity, key: str) -> bool:
    """Whether another page may say what an entity's own does not: of rivals the other's, of a flood the river's."""
    is_of_flood = key in ("flooded", "flood_year", "peril", "peril_year")
    return is_of_flood or any(name == f"{entity.kind}.{key}" for name, _ in entity.mentions)


def _gives_itself_away(row: Question) -> bool:
    """Whether a question holds its own answer, as that for the place a company is named after."""
    if row.kind in ("several", UNANSWERABLE):
        return False
    return any(holds_words(row.question, answer) for answer in row.answers)


def _relation(entity: Entity, key: str) -> Relation:
    return KINDS[entity.kind].relations[key]


def _write(wording: Wording, dice: Dice, entity: Entity, **slots: str) -> str:
    text = wording.write(entity.extra | slots, dice)
    return text[0].upper() + text[1:]


def _hop(entity: Entity, key: str) -> Hop:
    return Hop(entity.title, _relation(entity, key).label, entity.facts[key].answers[0], entity.id)


def _claim(entity: Entity, claim: str) -> Hop:
    """The look-up that tells whether a question takes something true for granted."""
    return replace(_hop(entity, KINDS[entity.kind].premise), claim=claim)


def _titles(entity: Entity) -> tuple[str, ...]:
    return tuple(dict.fromkeys((entity.title, entity.name)))


def _listed(group: _Group, joint: str) -> str:
    *names, last = [entity.name for entity in group.entities]
    return f"{', '.join(names)} {joint} {last}"
