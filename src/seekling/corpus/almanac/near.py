"""What an entity can be related to: its neighbours in the province, and names from further away."""

from __future__ import annotations

from seekling.corpus.almanac.census import SLOTS, Census, World, remembered_census
from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import PRESENT, Entity, Fact


class Near:
    """Chooses related entities for the entities of one province."""

    def __init__(self, world: World, census: Census) -> None:
        self._world, self._census = world, census

    def all_of(self, kind: str) -> list[Entity]:
        """Return the province's entities of a kind."""
        return self._census.all_of(kind)

    def other(self, kind: str, than: Entity, dice: Dice) -> Entity:
        """Return an entity of a kind that is not `than`."""
        return dice.pick([e for e in self.all_of(kind) if e.index != than.index])

    def far(self, kind: str, dice: Dice) -> Entity:
        """Return an entity of a kind from a province nearby, never from this one."""
        reach = min(self._world.num_provinces - 1, 12)
        number = self._census.number
        around = range(max(0, number - reach), min(self._world.num_provinces, number + reach + 1))
        others = [n for n in around if n != number]
        wanted = [e for e in remembered_census(self._world, dice.pick(others)).found.values() if e.kind == kind]
        return dice.pick(wanted) if wanted else dice.pick(self.all_of(kind))

    def flood_of(self, river: Entity) -> tuple[Entity, int] | None:
        """Return the town that a river flooded, one that lies on it, and the year."""
        dice = Dice(self._world.seed, "flood", river.index)
        towns = [town for town in self.all_of("town") if town.river is not None and town.river.index == river.index]
        return (dice.pick(towns), dice.between(520, 985)) if towns else None

    def rival_of(self, guild: Entity) -> Entity | None:
        """Return the rival of a guild, whose rival it is too; one of an odd number has none."""
        guilds = Dice(self._world.seed, "rivals", self._census.number).shuffled(self.all_of("guild"))
        place = next(i for i, each in enumerate(guilds) if each.index == guild.index) ^ 1
        return guilds[place] if place < len(guilds) else None

    def contemporary(self, person: Entity, dice: Dice) -> Entity | None:
        """Return somebody of the province who was grown up when `person` was, if there is one."""
        start, end = person.birth + 20, person.death or PRESENT
        found = [p for p in self.all_of("person") if p.index != person.index and p.is_adult_in((start + end) // 2)]
        return dice.pick(found) if found else None

    def witness(self, entity: Entity, dice: Dice) -> Entity | None:
        """Return somebody of the province who could have known an entity: never before it existed."""
        if entity.kind == "person":
            return self.contemporary(entity, dice)
        found = [p for p in self.all_of("person") if p.birth + 20 >= entity.year]
        if entity.kind == "ship":
            found = [p for p in found if p.is_adult_in(entity.year)]
        return dice.pick(found) if found else None

    def elder(self, person: Entity, dice: Dice) -> Entity | None:
        """Return somebody who could have taught `person`: grown up and alive when they were sixteen."""
        found = [p for p in self.all_of("person") if p.index != person.index and p.is_adult_in(person.birth + 16)]
        return dice.pick(found) if found else None

    def stranger(self, dice: Dice, *, is_woman: bool | None = None) -> Fact:
        """Return somebody without a page."""
        name = self._census.stranger(dice, is_woman=is_woman)
        return Fact(name, (name,))

    def made_by(self, person: Entity) -> list[Entity]:
        """Return the works, things and houses that a person made, in page order."""
        kinds = [kind for kind in ("work", "device", "building", "plant", "guild") if kind in SLOTS]
        return [e for kind in kinds for e in self.all_of(kind) if e.maker is not None and e.maker.index == person.index]
