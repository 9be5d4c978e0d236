"""What is true: the facts of every entity of one province, drawn from its census.

Facts point at entities of the same province (then a two-hop question can follow them) or name entities of other
provinces. Nothing is stated about an entity of another province except its name and what its census says.
"""

from __future__ import annotations

from dataclasses import dataclass

from seekling.corpus.almanac.census import Census, World
from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.facts import DRAW_FACTS
from seekling.corpus.almanac.model import PRONOUNS, Entity
from seekling.corpus.almanac.spec import Relation, SectionSpec, parse_page, parse_relations, read_wording


@dataclass(frozen=True, slots=True)
class KindSpec:
    """How a kind of entity is asked about and told."""

    relations: dict[str, Relation]
    premise: str
    """The relation that questions with a premise take for granted; empty: none."""
    page: tuple[SectionSpec, ...]


KINDS = {
    kind: KindSpec(*parse_relations(read_wording(f"{kind}.relations")), parse_page(read_wording(f"{kind}.page")))
    for kind in DRAW_FACTS
}


class Province:
    """The entities of a province with their facts."""

    def __init__(self, world: World, number: int) -> None:
        census = Census(world, number)
        self.number = number
        self.entities = tuple(census.found.values())
        for entity in self.entities:
            _add_facts(entity, census)
        own = {entity.index: entity for entity in self.entities}
        for entity in self.entities:
            for key, fact in entity.facts.items():
                if fact.target is not None and fact.target.index in own:
                    own[fact.target.index].mentions.append((f"{entity.kind}.{key}", entity))


def _add_facts(entity: Entity, census: Census) -> None:
    seed, relations = census.world.seed, KINDS[entity.kind].relations
    entity.extra |= PRONOUNS[entity.pronoun]
    facts = DRAW_FACTS[entity.kind](entity, census, Dice(seed, "facts", entity.index))
    company = Dice(seed, "company", entity.index)
    entity.witness, entity.elsewhere = census.witness(entity, company), census.far("town", company)
    dice = Dice(seed, "stated", entity.index)
    # Rolled for every relation in a fixed order, so that adding a fact moves no other.
    stated = {key: dice.chance(relation.percent) for key, relation in relations.items()}
    assert facts.keys() <= stated.keys(), (entity.kind, facts.keys() - stated.keys())
    entity.facts = {key: facts[key] for key in relations if key in facts and stated[key]}
    entity.unstated = tuple(key for key in facts if not stated[key])
