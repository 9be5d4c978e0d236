"""Asks about a province: questions of one to four pages, and questions that no page answers, with their decomposition.

All entities that a question names or looks up lie in one province, so a split by province is a split by entity.
Questions of dev and test also have wordings, and ask for relations, that no question of training has; their labels say
so.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.kinds import KINDS
from seekling.corpus.almanac.model import Entity, Fact, count
from seekling.corpus.almanac.phonology import ROOTS_PER_PROVINCE, Namer
from seekling.corpus.almanac.province import Province
from seekling.corpus.almanac.spec import Relation, Split, Wording
from seekling.types import UNKNOWN_ANSWERS, Hop

QUESTION_KINDS = ("single", "bridge", "chain", "several", "unanswerable")
"""One page; two and three pages, one after the other; two to four pages side by side; none."""
SEEN, NEW_WORDING, NEW_RELATION = "seen in training", "new wording", "new relation"
_NOVELTIES = (SEEN, SEEN, SEEN, SEEN, SEEN, NEW_WORDING, NEW_WORDING, NEW_RELATION)
"""Every eight questions of dev and test, in a new order each time."""


@dataclass(frozen=True, slots=True)
class Row:
    """A question without its id."""

    kind: str
    question: str
    answers: tuple[str, ...]
    supporting_ids: tuple[str, ...]
    hops: tuple[Hop, ...]
    labels: tuple[str, ...]
    """What sort of its kind it is, and how it differs from those of training."""


class Asker:
    """Makes the questions of one side about one province.

    Args:
        province: whose entities are asked about.
        split: of whom: empty for training, dev or test.
        seed: the world's.
        namer: of the world; knows names that nobody has.
    """

    def __init__(self, province: Province, split: Split, seed: int, namer: Namer) -> None:
        self._province, self._split, self._seed, self._namer = province, split, seed, namer
        self._own = {entity.index: entity for entity in province.entities}

    def ask(self, kind: str, wanted: int) -> list[Row]:
        """Make questions of one kind.

        Args:
            kind: one of QUESTION_KINDS.
            wanted: how many; fewer come back when the province has no more.

        Returns:
            Distinct questions in a random order.
        """
        dice = Dice(self._seed, "questions", self._split, kind, self._province.number)
        makers = {
            "single": self._single,
            "bridge": self._bridge,
            "chain": self._chain,
            "several": self._several,
            "unanswerable": self._unanswerable,
        }
        rows = (row for row in makers[kind](wanted, dice) if not _gives_itself_away(row))
        return list({row.question: row for row in rows}.values())[:wanted]

    # --- one page, and pages one after the other

    def _single(self, wanted: int, dice: Dice) -> Iterator[Row]:
        paths = [((), entity, key) for entity in self._province.entities for key in entity.facts]
        yield from self._paths("single", paths, wanted, dice)

    def _bridge(self, wanted: int, dice: Dice) -> Iterator[Row]:
        paths = [
            (((first, via),), second, key)
            for first in self._province.entities
            for via, second in self._links(first)
            for key, fact in second.facts.items()
            if not _points_at(fact, first)
        ]
        yield from self._paths("bridge", paths, wanted, dice)

    def _chain(self, wanted: int, dice: Dice) -> Iterator[Row]:
        paths = [
            (((first, via), (second, on)), third, key)
            for first in self._province.entities
            for via, second in self._links(first)
            for on, third in self._links(second)
            if third is not first
            for key, fact in third.facts.items()
            if not _points_at(fact, first) and not _points_at(fact, second)
        ]
        yield from self._paths("chain", paths, wanted, dice)

    def _paths(self, kind: str, paths: Sequence[_Path], wanted: int, dice: Dice) -> Iterator[Row]:
        """Questions that walk along relations to an entity and ask for one of its facts."""
        for (steps, last, key), wording, novelty in self._draw(paths, wanted, dice, may_presume=kind == "single"):
            name = last.name
            if steps:
                name = steps[0][0].name
                for entity, via in steps:
                    phrase = dice.pick(_relation(entity, via).wordings(">", ""))
                    name = phrase.write(entity.extra | {"n": name}, dice)
            labels = (novelty,) * bool(self._split)
            premise = KINDS[last.kind].premise
            hops = tuple(_hop(entity, each) for entity, each in (*steps, (last, key)))
            slots = {"n": name}
            if "x" in wording.slots:
                # Here the premise is true, so that naming one does not give the answer away.
                slots["x"] = _spoken(last.facts[premise])
                hops = (_claim(last, slots["x"]), *hops)
            question = _write(wording, dice, last, **slots)
            pages = tuple(dict.fromkeys(hop.document_id for hop in hops))
            yield Row(kind, question, last.facts[key].answers, pages, hops, labels)

    def _links(self, entity: Entity) -> Iterator[tuple[str, Entity]]:
        """Relations of an entity that lead to another page of the province, and where they lead."""
        for via, link in entity.facts.items():
            target = self._own.get(link.target.index) if link.target else None
            # 'The work for which X is best known' does not fit what was founded or found.
            is_odd = target is not None and via == "known_for" and target.kind in ("guild", "plant")
            if target is not None and target is not entity and not is_odd and _relation(entity, via).wordings(">", ""):
                yield via, target

    def _draw(
        self, paths: Sequence[_Path], wanted: int, dice: Dice, *, may_presume: bool = False
    ) -> Iterator[tuple[_Path, Wording, str]]:
        """Choose paths and wordings; those of dev and test have shares of wordings and relations that are new.

        Some things are asked for more often than others (Zipf-Mandelbrot's law): of each kind of page the relation that
        its file lists in place n has weight 1 / (n + 2).
        """
        pools: dict[str, list[_Path]] = {SEEN: [], NEW_WORDING: [], NEW_RELATION: []}
        for path in paths:
            relation = _relation(path[1], path[2])
            for novelty, pool in pools.items():
                if self._wordings(relation, novelty):
                    pool.append(path)
        rest = {
            novelty: iter(dice.by_weight(pool, [_place(path) + 2 for path in pool])) for novelty, pool in pools.items()
        }
        for novelty in self._novelties(wanted, dice):
            for path in itertools.islice(rest[novelty], 1):
                _, entity, key = path
                wordings = self._wordings(_relation(entity, key), novelty)
                if may_presume and novelty == SEEN and KINDS[entity.kind].premise in entity.facts:
                    wordings += _relation(entity, key).wordings("!", "")
                yield path, dice.pick(wordings), novelty

    def _wordings(self, relation: Relation, novelty: str) -> tuple[Wording, ...]:
        """Questions that ask for a relation in a way that is as new as wanted; none when it is not this split's."""
        if novelty == NEW_RELATION:
            return relation.wordings("?", "") if relation.split and relation.split == self._split else ()
        if relation.split:
            return ()
        if novelty == NEW_WORDING:
            return relation.wordings("?", self._split) if self._split else ()
        return relation.wordings("?", "")

    def _novelties(self, wanted: int, dice: Dice) -> Iterator[str]:
        if not self._split:
            yield from (SEEN for _ in range(wanted))
            return
        for _ in range(-(-wanted // len(_NOVELTIES))):
            yield from dice.shuffled(_NOVELTIES)

    # --- pages side by side

    def _several(self, wanted: int, dice: Dice) -> Iterator[Row]:
        makers = (self._extremes, self._differences, self._counts, self._odd_ones)
        queues = [iter(dice.shuffled(list(make(dice)))) for make in makers]
        while queues:
            for queue in list(queues):
                row = next(queue, None)
                if row is None:
                    queues.remove(queue)
                else:
                    yield row

    def _groups(self, mark: str, size: int, dice: Dice) -> Iterator[tuple[_Asked, str, list[Entity]]]:
        """Entities of one kind whose pages state a relation with a wording of a mark, a few groups of each."""
        splits: tuple[Split, ...] = ("", self._split) if self._split else ("",)
        for kind, spec in KINDS.items():
            for key, relation in spec.relations.items():
                stating = [e for e in self._province.entities if e.kind == kind and key in e.facts]
                for split in splits:
                    for wording in relation.wordings(mark, split):
                        novelty = (NEW_WORDING if split else SEEN,) * bool(self._split)
                        for _ in range(3):
                            group = dice.shuffled(stating)[:size]
                            if len(group) >= min(size, 3):
                                yield (wording, novelty), key, group

    def _extremes(self, dice: Dice) -> Iterator[Row]:
        for mark, best in (("-", min), ("+", max)):
            for (wording, novelty), key, group in self._groups(mark, 3 + dice.below(2), dice):
                numbers = [e.facts[key].number or 0 for e in group]
                if numbers.count(best(numbers)) == 1:
                    answer = group[numbers.index(best(numbers))]
                    question = _write(wording, dice, group[0], list=_listed(group, "or"))
                    yield _several_row(("the most", *novelty), question, _titles(answer), group, key)

    def _differences(self, dice: Dice) -> Iterator[Row]:
        for (wording, novelty), key, group in self._groups("=", 2, dice):
            first, second = group
            years = abs((first.facts[key].number or 0) - (second.facts[key].number or 0))
            if years:
                question = _write(wording, dice, first, a=first.name, b=second.name)
                answers = (str(years), f"{years} years")
                yield _several_row(("difference", *novelty), question, answers, group, key)

    def _counts(self, dice: Dice) -> Iterator[Row]:
        for (wording, novelty), key, group in self._groups("#", 4, dice):
            facts = [e.facts[key] for e in group]
            numbers = sorted({fact.number for fact in facts if fact.number is not None})
            if len(numbers) == len(facts):
                # Any number of them is as likely as any other.
                num = dice.between(1, len(numbers) - 1)
                shown = str(numbers[num])
            elif numbers or len({fact.target is None for fact in facts}) > 1:
                continue  # equal numbers have no edge between them; 'the road' is no town
            else:
                shown = _spoken(dice.pick(facts))
                num = sum(_spoken(fact) == shown for fact in facts)
            if 0 < num < len(group):
                question = _write(wording, dice, group[0], x=shown, list=_listed(group, "and"))
                answers = tuple(dict.fromkeys(answer.strip() for answer in count(num, "").answers))
                yield _several_row(("how many", *novelty), question, answers, group, key)

    def _odd_ones(self, dice: Dice) -> Iterator[Row]:
        for (wording, novelty), key, group in self._groups("/", 3, dice):
            if len({e.facts[key].target is None for e in group}) > 1:
                continue
            values = [_spoken(e.facts[key]) for e in group]
            shared = max(values, key=values.count)
            if values.count(shared) == len(group) - 1:
                odd = next(e for e, value in zip(group, values, strict=True) if value != shared)
                question = _write(wording, dice, group[0], x=shared, list=_listed(group, "or"))
                yield _several_row(("the odd one", *novelty), question, _titles(odd), group, key)

    # --- no page

    def _unanswerable(self, wanted: int, dice: Dice) -> Iterator[Row]:
        share = -(-wanted // 4)
        rows = [
            row
            for make in (self._not_stated, self._look_alike, self._no_such_page, self._false_premise)
            for row in make(share, dice)
        ]
        yield from dice.shuffled(rows)

    def _not_stated(self, wanted: int, dice: Dice) -> Iterator[Row]:
        paths = [
            ((), entity, key)
            for entity in self._province.entities
            for key in entity.unstated
            if not _is_said_elsewhere(entity, key)
        ]
        for (_, entity, key), wording, novelty in self._draw(paths, wanted, dice):
            yield self._unknown("not stated", entity, key, wording, novelty, dice, entity.name, entity.title, entity.id)

    def _look_alike(self, wanted: int, dice: Dice) -> Iterator[Row]:
        """About somebody who is called almost like an entity whose page does say it."""
        for (_, entity, key), wording, novelty in self._draw(self._stated(), wanted, dice):
            name = entity.article + entity.decoy
            yield self._unknown("look-alike", entity, key, wording, novelty, dice, name, entity.decoy, "")

    def _no_such_page(self, wanted: int, dice: Dice) -> Iterator[Row]:
        roots = {self._namer.root(self._province.number, number) for number in range(ROOTS_PER_PROVINCE)}
        named = re.compile(rf"\b({'|'.join(map(re.escape, sorted(roots, key=len, reverse=True)))})\b")
        paths = [path for path in self._stated() if named.search(path[1].title)]
        for number, ((_, entity, key), wording, novelty) in enumerate(self._draw(paths, wanted, dice)):
            title = named.sub(self._namer.unused_root(self._province.number, number), entity.title)
            name = entity.article + title
            yield self._unknown("no such page", entity, key, wording, novelty, dice, name, title, "")

    def _false_premise(self, wanted: int, dice: Dice) -> Iterator[Row]:
        splits: tuple[Split, ...] = ("", self._split) if self._split else ("",)
        paths = [
            (entity, key, wording, other, NEW_WORDING if split else SEEN)
            for _, entity, key in self._stated()
            for split in splits
            for wording in _relation(entity, key).wordings("!", split)
            if (other := self._wrong_premise(entity, dice))
        ]
        for entity, key, wording, x, novelty in dice.shuffled(paths)[:wanted]:
            question = _write(wording, dice, entity, n=entity.name, x=x)
            hops = (_claim(entity, x), _hop(entity, key))
            labels = ("false premise", novelty) if self._split else ("false premise",)
            yield Row("unanswerable", question, UNKNOWN_ANSWERS, (), hops, labels)

    def _wrong_premise(self, entity: Entity, dice: Dice) -> str:
        """What the premise is for another entity of the kind, and is not for this one; empty when there is none."""
        key = KINDS[entity.kind].premise
        if key not in entity.facts:
            return ""
        others = {_spoken(e.facts[key]) for e in self._province.entities if e.kind == entity.kind and key in e.facts}
        wrong = sorted(others - {_spoken(entity.facts[key])})
        return dice.pick(wrong) if wrong else ""

    def _stated(self) -> list[_Path]:
        return [((), entity, key) for entity in self._province.entities for key in entity.facts]

    def _unknown(
        self,
        sort: str,
        entity: Entity,
        key: str,
        wording: Wording,
        novelty: str,
        dice: Dice,
        name: str,
        title: str,
        page_id: str,
    ) -> Row:
        question = _write(wording, dice, entity, n=name)
        hop = Hop(title, _relation(entity, key).label, UNKNOWN_ANSWERS[0], page_id)
        return Row("unanswerable", question, UNKNOWN_ANSWERS, (), (hop,), (sort, novelty) if self._split else (sort,))


def _is_said_elsewhere(entity: Entity, key: str) -> bool:
    """Whether another page may say what an entity's own does not: of rivals the other's, of a flood the river's."""
    if key in ("flooded", "flood_year", "peril", "peril_year"):
        return True
    return any(name == f"{entity.kind}.{key}" for name, _ in entity.mentions)


def _gives_itself_away(row: Row) -> bool:
    """Whether a question holds its own answer, as that for the place a company is named after."""
    if row.kind in ("several", "unanswerable"):
        return False
    return any(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", row.question, re.I) for answer in row.answers)


_Asked = tuple[Wording, tuple[str, ...]]
"""A wording, and the label of how new it is; training questions have none."""
_Path = tuple[tuple[tuple[Entity, str], ...], Entity, str]
"""Entities with the relations that lead on from them, the entity at the end, and what is asked about it."""


def _place(path: _Path) -> int:
    """Place of the relation that a path asks for among those of its kind of page, from 1."""
    _, entity, key = path
    return 1 + list(KINDS[entity.kind].relations).index(key)


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


def _points_at(fact: Fact, entity: Entity) -> bool:
    """Whether a fact's value is an entity: an answer that the question already names."""
    return fact.target is not None and fact.target.index == entity.index


def _spoken(fact: Fact) -> str:
    """A value inside a question: a name with its article, a phrase without."""
    return fact.target.name if fact.target is not None else fact.answers[0]


def _titles(entity: Entity) -> tuple[str, ...]:
    return tuple(dict.fromkeys((entity.title, entity.name)))


def _listed(entities: Sequence[Entity], joint: str) -> str:
    names = [entity.name for entity in entities]
    return f"{', '.join(names[:-1])} {joint} {names[-1]}"


def _several_row(
    labels: tuple[str, ...], question: str, answers: tuple[str, ...], group: Sequence[Entity], key: str
) -> Row:
    hops = tuple(_hop(entity, key) for entity in group)
    return Row("several", question, answers, tuple(entity.id for entity in group), hops, labels)
