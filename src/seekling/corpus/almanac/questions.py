"""Asks about a province: single-hop, bridge, comparison and unanswerable questions with their decomposition.

All entities that a question names or looks up lie in one province, so a split by province is a split by entity.
"""

from __future__ import annotations

from dataclasses import dataclass

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.kinds import KINDS
from seekling.corpus.almanac.model import Entity, Fact
from seekling.corpus.almanac.province import Province
from seekling.corpus.almanac.spec import Relation, Wording

QUESTION_KINDS = ("single", "bridge", "comparison", "unanswerable")
UNKNOWN = ("unknown", "not found", "not known", "not stated", "unanswerable")


@dataclass(frozen=True, slots=True)
class Hop:
    """One look-up that a question needs."""

    query_subject: str
    """Title of the entity to look up, which may be one that no page has."""
    relation: str
    """Short words for what is asked about it."""
    answer: str
    """As the page states it; 'unknown' when no page does."""
    document_id: str
    """The entity's page; empty when there is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """A question without its id."""

    kind: str
    question: str
    answers: tuple[str, ...]
    supporting_ids: tuple[str, ...]
    hops: tuple[Hop, ...]


def ask(province: Province, kind: str, wanted: int, seed: int) -> list[Row]:
    """Make questions of one kind about one province.

    Args:
        province: whose entities are asked about.
        kind: one of QUESTION_KINDS.
        wanted: how many; fewer come back when the province has no more.
        seed: the world's seed.

    Returns:
        Distinct questions in a random order.
    """
    dice = Dice(seed, "questions", kind, province.number)
    makers = {"single": _single, "bridge": _bridge, "comparison": _comparison, "unanswerable": _unanswerable}
    return makers[kind](province, wanted, dice)


def _relation(entity: Entity, key: str) -> Relation:
    return KINDS[entity.kind].relations[key]


def _askable(entity: Entity) -> list[tuple[str, Fact]]:
    return [(key, fact) for key, fact in entity.facts.items() if _relation(entity, key).asks]


def _write(wording: Wording, dice: Dice, entity: Entity, **slots: str) -> str:
    text = wording.write(entity.extra | slots, dice)
    return text[0].upper() + text[1:]


def _hop(entity: Entity, key: str) -> Hop:
    return Hop(entity.title, _relation(entity, key).label, entity.facts[key].answers[0], entity.id)


def _single(province: Province, wanted: int, dice: Dice) -> list[Row]:
    found = [(entity, key, fact) for entity in province.entities for key, fact in _askable(entity)]
    rows = []
    for entity, key, fact in dice.shuffled(found)[:wanted]:
        question = _write(dice.pick(_relation(entity, key).asks), dice, entity, n=entity.name)
        rows.append(Row("single", question, fact.answers, (entity.id,), (_hop(entity, key),)))
    return rows


def _bridge(province: Province, wanted: int, dice: Dice) -> list[Row]:
    own = {entity.index: entity for entity in province.entities}
    found = []
    for first in province.entities:
        for via, link in first.facts.items():
            second = own.get(link.target.index) if link.target else None
            # 'The work for which X is best known' does not fit what was founded or found.
            is_odd = second is not None and via == "known_for" and second.kind in ("guild", "plant")
            if second is None or is_odd or not _relation(first, via).vias:
                continue
            # An answer that is the first entity would ask for what the question already says.
            ends = [
                (key, fact) for key, fact in _askable(second) if fact.target is None or fact.target.index != first.index
            ]
            found += [(first, via, second, key, fact) for key, fact in ends]
    rows = []
    for first, via, second, key, fact in dice.shuffled(found)[:wanted]:
        name = dice.pick(_relation(first, via).vias).write(first.extra | {"n": first.name}, dice)
        question = _write(dice.pick(_relation(second, key).asks), dice, second, n=name)
        hops = (_hop(first, via), _hop(second, key))
        rows.append(Row("bridge", question, fact.answers, (first.id, second.id), hops))
    return rows


def _comparison(province: Province, wanted: int, dice: Dice) -> list[Row]:
    found = []
    for i, one in enumerate(province.entities):
        for other in province.entities[i + 1 :]:
            if one.kind != other.kind:
                continue
            for key, fact in one.facts.items():
                numbers = (fact.number, other.facts[key].number) if key in other.facts else (None, None)
                if _relation(one, key).smaller and None not in numbers and numbers[0] != numbers[1]:
                    found.append((one, other, key))
    rows = []
    for pair in dice.shuffled(found)[:wanted]:
        *entities, key = pair
        first, second = dice.shuffled([e for e in entities if isinstance(e, Entity)])
        wants_larger = dice.chance(50)
        relation = _relation(first, key)
        low, high = sorted((first, second), key=lambda e: e.facts[key].number or 0)
        answer = high if wants_larger else low
        wording = dice.pick(relation.larger if wants_larger else relation.smaller)
        question = _write(wording, dice, first, a=first.name, b=second.name)
        answers = tuple(dict.fromkeys((answer.title, answer.name)))
        rows.append(Row("comparison", question, answers, (first.id, second.id), (_hop(first, key), _hop(second, key))))
    return rows


def _unanswerable(province: Province, wanted: int, dice: Dice) -> list[Row]:
    gaps = [
        (entity, key, entity.name, entity.title, entity.id)
        for entity in province.entities
        for key in entity.unstated
        if _relation(entity, key).asks
    ]
    decoys = [
        (entity, key, entity.article + entity.decoy, entity.decoy, "")
        for entity in province.entities
        for key, _ in _askable(entity)
    ]
    half = min(wanted // 2, len(gaps))
    chosen = dice.shuffled(gaps)[:half] + dice.shuffled(decoys)[: wanted - half]
    rows = []
    for entity, key, name, title, page_id in dice.shuffled(chosen):
        relation = _relation(entity, key)
        question = _write(dice.pick(relation.asks), dice, entity, n=name)
        rows.append(Row("unanswerable", question, UNKNOWN, (), (Hop(title, relation.label, UNKNOWN[0], page_id),)))
    return rows
