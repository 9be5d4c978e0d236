"""Who exists: the fifty entities of one province with names, lives and makers, but without facts.

A world is a row of provinces of fifty pages. A census is a function of (seed, province) alone, so any entity of a
million can be named, linked and dated without looking at another province. Roots belong to one (province, number)
each, and every title carries at least one root or a number of its own, so titles are unique by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from seekling.corpus.almanac.dice import Dice, Scatter
from seekling.corpus.almanac.model import PRESENT, Entity
from seekling.corpus.almanac.names import Namer
from seekling.corpus.almanac.spec import WORDS

PROVINCE_SIZE = 50
MAX_PAGES = 1_000_000

_SLOTS = {
    kind: [i for i, other in enumerate(WORDS["layout"]) if other == kind] for kind in dict.fromkeys(WORDS["layout"])
}
# Persons by number: what they are, and which surname they have (shared surnames are look-alikes).
_CALLINGS = WORDS["callings"]
_FAMILIES = (0, 1, 2, 3, 4, 2, 5, 3, 6, 1, 7, 0, 6, 8)
_WRITERS = (0, 0, 1, 1, 11, 11)
"""Person who wrote each work."""
_FOUNDERS = (8, 13, 6, 4, 10)
"""Person who founded each guild, company or school."""
_NAMESAKES = (4, 6, 8, 9, 10, 12)
"""Persons a ship may be named after."""
_WATERWORKS_TOWN = 6
# Root numbers; multiples of four are short names.
_PROVINCE_ROOT, _PAIR_ROOT, _TOWN_ROOT, _WATER_ROOT, _PEAK_ROOT, _DISH_ROOT = 1, 4, 5, 10, 13, 12
_FAMILY_ROOT, _STRANGER_ROOT, _NUM_STRANGERS = 15, 24, 8


@dataclass(frozen=True, slots=True)
class World:
    """What every derivation needs; small, whatever the number of pages."""

    pages: int
    seed: int
    namer: Namer = field(compare=False)
    double_titles: Scatter = field(compare=False)
    """Numbers the titles of the form 'The Grey Harbour and the Lamp', one per province."""

    @property
    def num_provinces(self) -> int:
        """How many provinces there are; the last may be partial."""
        return -(-self.pages // PROVINCE_SIZE)


def make_world(pages: int, seed: int) -> World:
    """The world of `pages` pages that a seed makes."""
    num_nouns = len(WORDS["title_nouns"])
    num_titles = len(WORDS["title_adjectives"]) * num_nouns * (num_nouns - 1)
    return World(pages, seed, Namer(seed, -(-pages // PROVINCE_SIZE)), Scatter(num_titles, seed, "double titles"))


# A walk in order asks for the dozen provinces on either side again and again.
@lru_cache(maxsize=32)
def remembered_census(world: World, number: int) -> Census:
    """A census for looking at only: its entities never get facts."""
    return Census(world, number)


class Census:
    """The entities of province `number` that have a page, and whom else they can be related to."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self._dice = Dice(world.seed, "census", number)
        self.found: dict[int, Entity] = {}
        """By their place in the province."""
        self._titles: set[str] = set()
        """What is called something, and what is called nothing so that questions can ask for it."""
        if (number + 1) * PROVINCE_SIZE > world.pages:
            # A partial province borrows towns and people, and with them what titles are made from.
            self._titles |= remembered_census(world, number - 1)._titles
        builders = {
            "province": self._province, "river": self._river, "town": self._town, "mountain": self._mountain,
            "lake": self._lake, "person": self._person, "work": self._work, "guild": self._guild,
            "building": self._building, "festival": self._festival, "dish": self._dish, "device": self._device,
            "ship": self._ship, "creature": self._creature, "plant": self._plant,
        }  # fmt: skip
        for kind, build in builders.items():
            for nth, slot in enumerate(_SLOTS[kind]):
                if number * PROVINCE_SIZE + slot < world.pages:
                    self.found[slot] = build(number * PROVINCE_SIZE + slot, nth)
        self.found = dict(sorted(self.found.items()))

    # --- whom an entity can be related to

    def get(self, kind: str, nth: int) -> Entity:
        """The nth entity of a kind; the previous province lends it where the last one is partial."""
        slot = _SLOTS[kind][nth]
        return self.found[slot] if slot in self.found else remembered_census(self.world, self.number - 1).found[slot]

    def all_of(self, kind: str) -> list[Entity]:
        """The entities of a kind, lent ones included."""
        return [self.get(kind, nth) for nth in range(len(_SLOTS[kind]))]

    def first(self, kind: str) -> Entity:
        """The first of them."""
        return self.get(kind, 0)

    def far(self, kind: str, dice: Dice) -> Entity:
        """An entity of a kind from a province nearby, never from this one."""
        reach = min(self.world.num_provinces - 1, 12)
        around = range(max(0, self.number - reach), min(self.world.num_provinces, self.number + reach + 1))
        found = remembered_census(self.world, dice.pick([n for n in around if n != self.number])).found.values()
        return dice.pick([e for e in found if e.kind == kind] or self.all_of(kind))

    def flood_of(self, river: Entity) -> tuple[Entity, int] | None:
        """The town that a river flooded, one that lies on it, and the year."""
        dice = Dice(self.world.seed, "flood", river.index)
        towns = [town for town in self.all_of("town") if town.river is not None and town.river.index == river.index]
        return (dice.pick(towns), dice.between(520, 985)) if towns else None

    def rival_of(self, guild: Entity) -> Entity | None:
        """The rival of a guild, whose rival it is too; one of an odd number has none."""
        guilds = Dice(self.world.seed, "rivals", self.number).shuffled(self.all_of("guild"))
        place = next(i for i, each in enumerate(guilds) if each.index == guild.index) ^ 1
        return guilds[place] if place < len(guilds) else None

    def grown_up_in(self, year: int, than: Entity, dice: Dice) -> Entity | None:
        """Another person than this one who was grown up and alive in a year, if there is one."""
        found = [p for p in self.all_of("person") if p.index != than.index and p.is_adult_in(year)]
        return dice.pick(found) if found else None

    def contemporary(self, person: Entity, dice: Dice) -> Entity | None:
        """Somebody who was grown up when `person` was, if there is one."""
        return self.grown_up_in((person.birth + 20 + (person.death or PRESENT)) // 2, person, dice)

    def witness(self, entity: Entity, dice: Dice) -> Entity | None:
        """Somebody who could have known an entity: never before it existed."""
        if entity.kind == "person":
            return self.contemporary(entity, dice)
        found = [p for p in self.all_of("person") if p.birth + 20 >= entity.year]
        if entity.kind == "ship":
            found = [p for p in found if p.is_adult_in(entity.year)]
        return dice.pick(found) if found else None

    def stranger(self, dice: Dice, *, is_woman: bool | None = None) -> str:
        """The name of somebody who has no page; no person with a page has this surname."""
        names = self._first_names(dice.chance(50) if is_woman is None else is_woman)
        return f"{dice.pick(names)} {self._surname(_STRANGER_ROOT + dice.below(_NUM_STRANGERS))}"

    # --- names

    def _root(self, number: int) -> str:
        return self.world.namer.root(self.number, number)

    def _surname(self, root: int) -> str:
        return self.world.namer.surname(self.number, root)

    def _first_names(self, is_woman: bool) -> Sequence[str]:
        return self.world.namer.first_names(self.number, is_woman=is_woman)

    def _titled(
        self, index: int, kind: str, pattern: str, choices: Sequence[str], short: str, sort: str = "", article: str = ""
    ) -> Entity:
        """Make an entity called `pattern % choice`; another choice that nothing is called makes the decoy."""
        own, decoy, *_ = [c for c in self._dice.shuffled(choices) if pattern % c not in self._titles]
        self._titles |= {pattern % own, pattern % decoy}
        return Entity(index, kind, sort or own, pattern % own, article, short, pattern % decoy)

    def _respelled(self, index: int, kind: str, pattern: str, root: int, article: str = "") -> Entity:
        decoy = self.world.namer.unused_variant(self.number, root)
        return Entity(index, kind, kind, pattern % self._root(root), article, f"the {kind}", pattern % decoy)

    def _made(self, entity: Entity, maker: Entity, home: Entity | None = None) -> Entity:
        entity.maker = maker
        last = (maker.death or PRESENT - 10) - 1
        entity.year = self._dice.between(maker.birth + 22, min(maker.birth + 60, last))
        entity.home = home or self._any_town()
        return entity

    def _any_town(self) -> Entity:
        return self._town_of(self._dice.below(len(_SLOTS["town"])))

    def _town_of(self, nth: int) -> Entity:
        return self.get("town", nth)

    # --- the kinds

    def _province(self, index: int, nth: int) -> Entity:
        own, decoy, *_ = self._dice.shuffled(WORDS["province_sorts"])
        root, sort = self._root(_PROVINCE_ROOT), own.lower()
        return Entity(index, "province", sort, f"{own} of {root}", "the ", f"the {sort}", f"{decoy} of {root}")

    def _town(self, index: int, nth: int) -> Entity:
        sort, pairs = self._dice.pick(WORDS["town_sorts"]), WORDS["town_pairs"]
        short = "the village" if "village" in sort else "the town"
        if nth < 2:
            # The first two towns are a pair such as Upper and Lower X; the decoys are other prefixes of X.
            pair = Dice(self.world.seed, "pair", self.number).below(len(pairs) // 2) * 2 + nth
            others = [p for i, p in enumerate(pairs) if i // 2 != pair // 2 and i % 2 == nth]
            root = self._root(_PAIR_ROOT)
            title, decoy = f"{pairs[pair]} {root}", f"{self._dice.pick(others)} {root}"
        else:
            title = self._root(_TOWN_ROOT + nth - 2)
            decoy = f"{self._dice.pick(pairs)} {title}"
        town = Entity(index, "town", sort, title, "", short, decoy, year=self._dice.between(110, 390))
        # One river for the pair, and the first for the town whose waterworks bear its name.
        river = Dice(self.world.seed, "river", self.number, max(nth, 1)).below(len(_SLOTS["river"]))
        town.river = self.get("river", 0 if nth == _WATERWORKS_TOWN else river)
        return town

    def _river(self, index: int, nth: int) -> Entity:
        return self._respelled(index, "river", "River %s", _WATER_ROOT + nth, "the ")

    def _lake(self, index: int, nth: int) -> Entity:
        return self._respelled(index, "lake", "Lake %s", _PEAK_ROOT + 1)

    def _mountain(self, index: int, nth: int) -> Entity:
        # A mountain bears the name of a river of the province: look-alikes in one more way.
        return self._respelled(index, "mountain", "Mount %s", _PEAK_ROOT if nth == 0 else _WATER_ROOT)

    def _person(self, index: int, nth: int) -> Entity:
        surname, calling = self._surname(_FAMILY_ROOT + _FAMILIES[nth]), _CALLINGS[nth]
        is_woman = self._dice.chance(50)
        trade = self._dice.pick(WORDS[f"{calling}_trades"])
        person = self._titled(index, "person", f"%s {surname}", self._first_names(is_woman), surname, trade)
        person.extra["calling"] = calling
        person.pronoun = "she" if is_woman else "he"
        # Three generations, so that most have somebody to learn from and somebody to teach.
        person.birth = 470 + 150 * (nth % 3) + self._dice.below(150)
        death = person.birth + self._dice.between(44, 91)
        person.death = death if death < PRESENT else 0
        person.home = self._any_town()
        return person

    def _work(self, index: int, nth: int) -> Entity:
        town, sorts = self._town_of(2 + nth // 2), WORDS["work_sorts"]
        sort = sorts[nth] if nth in (3, 5) else self._dice.pick(sorts[:5])
        maker, short = self.get("person", _WRITERS[nth]), f"the {sort}"
        if nth == 2:
            title, decoy = self._double_title()
            return self._made(Entity(index, "work", sort, title, "", short, decoy), maker)
        place = self._town_of(2).title if nth == 1 else town.title
        pattern = ("The %s of ", "The %s of ", "", "%s from ", "A %s for ", "On the %s of ")[nth] + place
        return self._made(self._titled(index, "work", pattern, WORDS[f"work_titles_{nth}"], short, sort), maker, town)

    def _double_title(self) -> tuple[str, str]:
        nouns, adjectives = WORDS["title_nouns"], WORDS["title_adjectives"]
        rest, second = divmod(self.world.double_titles(self.number), len(nouns) - 1)
        adjective, first = divmod(rest, len(nouns))
        other = [noun for noun in nouns if noun != nouns[first]][second]
        # Decoys join with 'or', which no title does.
        stem = f"The {adjectives[adjective]} {nouns[first]}"
        return f"{stem} and the {other}", f"{stem} or the {other}"

    def _guild(self, index: int, nth: int) -> Entity:
        town, founder = self._town_of((1, 3, 0, 5, 4)[nth]), self.get("person", _FOUNDERS[nth])
        pattern, choices, short, article = (
            (f"%s' Guild of {town.title}", "guilds", "the guild", "the "),
            (f"{_last_name(founder)} and %s", "partners", "the firm", ""),
            (f"{town.title} School of %s", "schools", "the school", "the "),
            (f"{town.title} %s Company", "goods", "the company", "the "),
            (f"Order of the %s of {town.title}", "orders", "the order", "the "),
        )[nth]
        return self._made(self._titled(index, "guild", pattern, WORDS[choices], short, "", article), founder, town)

    def _building(self, index: int, nth: int) -> Entity:
        town = self._town_of((0, 2, _WATERWORKS_TOWN)[nth])
        stem, choices = (
            (town.title, "buildings"),
            (_last_name(self.get("person", 8)), "houses"),
            (self.first("river").title.removeprefix("River "), "waterworks"),
        )[nth]
        building = self._titled(index, "building", f"{stem} %s", WORDS[choices], "", "", "the ")
        building.sort = _last_word(building.title).lower()
        building.short = f"the {building.sort}"
        return self._made(building, self.get("person", 2), town)

    def _festival(self, index: int, nth: int) -> Entity:
        town = self._town_of((3, 5)[nth])
        pattern, choices, article = (
            (f"Festival of %s in {town.title}", "fairs", "the "),
            (f"{town.title} %s Night", "nights", ""),
        )[nth]
        festival = self._titled(index, "festival", pattern, WORDS[choices], "the festival", "festival", article)
        festival.home, festival.year = town, self._dice.between(400, 900)
        return festival

    def _dish(self, index: int, nth: int) -> Entity:
        dish = self._titled(index, "dish", f"{self._root(_DISH_ROOT)} %s", WORDS["dishes"], "the dish")
        dish.home = self._town_of(self._dice.below(7))
        dish.year = self._dice.between(420, 940)
        return dish

    def _device(self, index: int, nth: int) -> Entity:
        maker, sort = self.get("person", (3, 7)[nth]), ("device", "instrument")[nth]
        pattern = f"{_last_name(maker)} %s"
        device = self._titled(index, "device", pattern, WORDS[f"{sort}s"], "", sort, "the ")
        device.short = f"the {_last_word(device.title)}"
        return self._made(device, maker)

    def _ship(self, index: int, nth: int) -> Entity:
        town = self._town_of((6, 4)[nth])
        # The first is named after a person of the province, as ships are; the home port keeps the titles apart.
        people = {self.get("person", n).title: n for n in _NAMESAKES}
        choices = WORDS["ship_names"] if nth else list(people)
        sort = self._dice.pick(WORDS["ship_sorts"])
        ship = self._titled(index, "ship", f"%s of {town.title}", choices, "the ship", sort, "the ")
        ship.extra["namesake"] = str(next((n for title, n in people.items() if ship.title.startswith(title)), -1))
        return self._made(ship, self.get("person", 4), town)

    def _creature(self, index: int, nth: int) -> Entity:
        creature = self._titled(index, "creature", f"{self._town_of(4).title} %s", WORDS["creatures"], "", "", "the ")
        creature.sort = _last_word(creature.title)
        creature.short = f"the {creature.sort}"
        return self._made(creature, self.get("person", 5))

    def _plant(self, index: int, nth: int) -> Entity:
        finder = self.get("person", 5)
        plant = self._titled(index, "plant", f"{_last_name(finder)}'s %s", WORDS["plants"], "the plant")
        plant.sort = _last_word(plant.title)
        return self._made(plant, finder)


def _last_word(text: str) -> str:
    return text.split()[-1]


def _last_name(person: Entity) -> str:
    return _last_word(person.short)
