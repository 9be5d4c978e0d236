"""What is true: the facts of every entity of one province, drawn from its census.

Facts point at entities of the same province (then a two-hop question can follow them) or name entities of other
provinces. Nothing is stated about an entity of another province except its name and what its census says.
"""

from __future__ import annotations

from seekling.corpus.almanac.census import Census, World
from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.kinds import KINDS
from seekling.corpus.almanac.model import PRONOUNS, Entity
from seekling.corpus.almanac.near import Near


class Province:
    """The entities of a province with their facts.

    Args:
        world: the world it lies in.
        number: which province, from 0.
    """

    def __init__(self, world: World, number: int) -> None:
        census = Census(world, number)
        self.number = number
        self.entities: tuple[Entity, ...] = tuple(census.found.values())
        near = Near(world, census)
        for entity in self.entities:
            self._derive(world, near, entity)
        own = {entity.index: entity for entity in self.entities}
        for entity in self.entities:
            for key, fact in entity.facts.items():
                if fact.target is not None and fact.target.index in own:
                    own[fact.target.index].mentions.append((f"{entity.kind}.{key}", entity))

    @staticmethod
    def _derive(world: World, near: Near, entity: Entity) -> None:
        spec = KINDS[entity.kind]
        entity.extra |= PRONOUNS[entity.pronoun]
        facts = spec.derive(entity, near, Dice(world.seed, "facts", entity.index))
        company = Dice(world.seed, "company", entity.index)
        entity.witness, entity.elsewhere = near.witness(entity, company), near.far("town", company)
        dice = Dice(world.seed, "stated", entity.index)
        # Rolled for every relation in a fixed order, so that adding a fact moves no other.
        stated = {key: dice.chance(relation.percent) for key, relation in spec.relations.items()}
        assert facts.keys() <= stated.keys(), (entity.kind, facts.keys() - stated.keys())
        entity.facts = {key: facts[key] for key in spec.relations if key in facts and stated[key]}
        entity.unstated = tuple(key for key in facts if not stated[key])
