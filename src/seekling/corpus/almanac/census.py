"""Who exists: the fifty entities of one province with names, lives and makers, but without facts.

A world is a row of provinces of fifty pages. A census is a function of (seed, province) alone, so any entity of a
million can be named, linked and dated without looking at another province. Roots belong to one (province, number)
each, and every title carries at least one root or a number of its own, so titles are unique by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from seekling.corpus.almanac import words
from seekling.corpus.almanac.dice import Dice, Scatter
from seekling.corpus.almanac.model import PRESENT, Entity
from seekling.corpus.almanac.phonology import PHONOLOGIES, Namer

PROVINCE_SIZE = 50
MAX_PAGES = 1_000_000

# Kinds are interleaved so that a last, partial province has some of each.
LAYOUT: tuple[str, ...] = (
    "province",
    "town",
    "town",
    "river",
    "mountain",
    "person",
    "person",
    "person",
    "person",
    "guild",
    "work",
    "work",
    "building",
    "town",
    "person",
    "person",
    "lake",
    "creature",
    "ship",
    "festival",
    "dish",
    "device",
    "person",
    "town",
    "work",
    "guild",
    "person",
    "building",
    "town",
    "plant",
    "person",
    "work",
    "river",
    "town",
    "person",
    "device",
    "guild",
    "person",
    "work",
    "ship",
    "person",
    "festival",
    "mountain",
    "building",
    "guild",
    "town",
    "person",
    "work",
    "guild",
    "person",
)
SLOTS: dict[str, tuple[int, ...]] = {
    kind: tuple(i for i, k in enumerate(LAYOUT) if k == kind) for kind in dict.fromkeys(LAYOUT)
}
# Persons by number: what they are, and which surname they have (shared surnames are look-alikes).
_CALLINGS = (
    "writer",
    "writer",
    "builder",
    "maker",
    "sailor",
    "naturalist",
    "scholar",
    "maker",
    "trader",
    "artist",
    "official",
    "writer",
    "scholar",
    "trader",
)
_FAMILIES = (0, 1, 2, 3, 4, 2, 5, 3, 6, 1, 7, 0, 6, 8)
_WRITERS = (0, 0, 1, 1, 11, 11)
"""Person who wrote each work."""
_FOUNDERS = (8, 13, 6, 4, 10)
"""Person who founded each guild, company or school."""
_WATERWORKS_TOWN = 6
_NAMESAKES = (4, 6, 8, 9, 10, 12)
"""Persons a ship may be named after."""
# Root numbers; multiples of four are short names.
_PROVINCE_ROOT, _PAIR_ROOT, _TOWN_ROOT, _WATER_ROOT, _PEAK_ROOT, _DISH_ROOT = 1, 4, 5, 10, 13, 12
_FAMILY_ROOT, _STRANGER_ROOT, NUM_STRANGERS = 15, 24, 8


@dataclass(frozen=True, slots=True)
class World:
    """What every derivation needs; small, whatever the number of pages."""

    pages: int
    seed: int
    namer: Namer
    double_titles: Scatter
    """Numbers the titles of the form 'The Grey Harbour and the Lamp', one per province."""

    def __hash__(self) -> int:
        return hash((self.pages, self.seed))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, World) and (self.pages, self.seed) == (other.pages, other.seed)

    @property
    def num_provinces(self) -> int:
        """How many provinces there are; the last may be partial."""
        return -(-self.pages // PROVINCE_SIZE)


def make_world(pages: int, seed: int) -> World:
    """Return the world of `pages` pages that a seed makes."""
    num_titles = len(words.TITLE_ADJECTIVES) * len(words.TITLE_NOUNS) * (len(words.TITLE_NOUNS) - 1)
    return World(pages, seed, Namer(seed, -(-pages // PROVINCE_SIZE)), Scatter(num_titles, seed, "double titles"))


# A walk in order asks for the dozen provinces on either side again and again.
@lru_cache(maxsize=32)
def remembered_census(world: World, number: int) -> Census:
    """Return a census for looking at only: its entities never get facts."""
    return Census(world, number)


class Census:
    """The entities of province `number` that have a page, and where to borrow the others."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.dice = Dice(world.seed, "census", number)
        self.found: dict[int, Entity] = {}
        self.titles: set[str] = set()
        """What is called something, and what is called nothing so that questions can ask for it."""
        if (number + 1) * PROVINCE_SIZE > world.pages:
            # A partial province borrows towns and people, and with them what titles are made from.
            self.titles |= remembered_census(world, number - 1).titles
        builders = {
            "province": self._province,
            "river": self._river,
            "town": self._town,
            "mountain": self._mountain,
            "lake": self._lake,
            "person": self._person,
            "work": self._work,
            "guild": self._guild,
            "building": self._building,
            "festival": self._festival,
            "dish": self._dish,
            "device": self._device,
            "ship": self._ship,
            "creature": self._creature,
            "plant": self._plant,
        }
        for kind, build in builders.items():
            for nth, slot in enumerate(SLOTS[kind]):
                if number * PROVINCE_SIZE + slot < world.pages:
                    self.found[slot] = build(number * PROVINCE_SIZE + slot, nth)
        self.found = {slot: self.found[slot] for slot in sorted(self.found)}

    def get(self, kind: str, nth: int) -> Entity:
        """Return the nth entity of a kind; the previous province lends it where the last one is partial."""
        slot = SLOTS[kind][nth]
        return self.found[slot] if slot in self.found else remembered_census(self.world, self.number - 1).found[slot]

    def all_of(self, kind: str) -> list[Entity]:
        """Return the entities of a kind, lent ones included."""
        return [self.get(kind, nth) for nth in range(len(SLOTS[kind]))]

    def stranger(self, dice: Dice, *, is_woman: bool | None = None) -> str:
        """Return the name of somebody who has no page; no person with a page has this surname."""
        names = self._first_names(dice.chance(50) if is_woman is None else is_woman)
        return f"{dice.pick(names)} {self._surname(_STRANGER_ROOT + dice.below(NUM_STRANGERS))}"

    def _root(self, number: int) -> str:
        return self.world.namer.root(self.number, number)

    def _surname(self, root: int) -> str:
        particle = PHONOLOGIES[self.world.namer.phonology_of(self.number)].particle
        return f"{particle} {self._root(root)}".strip()

    def _first_names(self, is_woman: bool) -> tuple[str, ...]:
        return self.world.namer.first_names(self.number, is_woman=is_woman)

    def _titled(
        self, index: int, kind: str, pattern: str, choices: Sequence[str], short: str, sort: str = "", article: str = ""
    ) -> Entity:
        """Make an entity called `pattern % choice`; another choice that nothing is called makes the decoy."""
        own, *others = [c for c in self.dice.shuffled(choices) if pattern % c not in self.titles]
        decoy = others[0]
        self.titles |= {pattern % own, pattern % decoy}
        return Entity(index, kind, sort or own, pattern % own, article, short, pattern % decoy)

    def _respelled(self, index: int, kind: str, pattern: str, root: int, short: str, article: str = "") -> Entity:
        names = (self._root(root), self.world.namer.unused_variant(self.number, root))
        return Entity(index, kind, kind, pattern % names[0], article, short, pattern % names[1])

    def _province(self, index: int, nth: int) -> Entity:
        forms = ("Province of %s", "March of %s", "Duchy of %s", "Canton of %s")
        own, decoy, *_ = self.dice.shuffled(forms)
        root = self._root(_PROVINCE_ROOT)
        short = "the " + own.split()[0].lower()
        return Entity(index, "province", own.split()[0].lower(), own % root, "the ", short, decoy % root)

    def _town(self, index: int, nth: int) -> Entity:
        sort = self.dice.pick(words.TOWN_SORTS)
        short = "the village" if "village" in sort else "the town"
        if nth < 2:
            # The first two towns are a pair such as Upper and Lower X; the decoys are other prefixes of X.
            pair = Dice(self.world.seed, "pair", self.number).below(len(words.TOWN_PAIRS) // 2) * 2 + nth
            others = [p for i, p in enumerate(words.TOWN_PAIRS) if i // 2 != pair // 2 and i % 2 == nth]
            root = self._root(_PAIR_ROOT)
            title, decoy = f"{words.TOWN_PAIRS[pair]} {root}", f"{self.dice.pick(others)} {root}"
        else:
            title = self._root(_TOWN_ROOT + nth - 2)
            decoy = f"{self.dice.pick(words.TOWN_PAIRS)} {title}"
        town = Entity(index, "town", sort, title, "", short, decoy, year=self.dice.between(110, 390))
        town.river = self.get("river", self._river_of(nth))
        return town

    def _river_of(self, nth: int) -> int:
        """Which river a town lies on: one for the pair, and the first for the town whose waterworks bear its name."""
        if nth == _WATERWORKS_TOWN:
            return 0
        return Dice(self.world.seed, "river", self.number, max(nth, 1)).below(len(SLOTS["river"]))

    def _river(self, index: int, nth: int) -> Entity:
        return self._respelled(index, "river", "River %s", _WATER_ROOT + nth, "the river", "the ")

    def _lake(self, index: int, nth: int) -> Entity:
        return self._respelled(index, "lake", "Lake %s", _PEAK_ROOT + 1, "the lake")

    def _mountain(self, index: int, nth: int) -> Entity:
        # A mountain bears the name of a river of the province: look-alikes in one more way.
        root = _PEAK_ROOT if nth == 0 else _WATER_ROOT
        return self._respelled(index, "mountain", "Mount %s", root, "the mountain")

    def _person(self, index: int, nth: int) -> Entity:
        surname = self._surname(_FAMILY_ROOT + _FAMILIES[nth])
        is_woman = self.dice.chance(50)
        person = self._titled(
            index,
            "person",
            f"%s {surname}",
            self._first_names(is_woman),
            surname,
            sort=self.dice.pick(words.TRADES[_CALLINGS[nth]]),
        )
        person.extra["calling"] = _CALLINGS[nth]
        person.pronoun = "she" if is_woman else "he"
        # Three generations, so that most have somebody to learn from and somebody to teach.
        person.birth = 470 + 150 * (nth % 3) + self.dice.below(150)
        death = person.birth + self.dice.between(44, 91)
        person.death = death if death < PRESENT else 0
        person.home = self.get("town", self.dice.below(len(SLOTS["town"])))
        return person

    def _made(self, entity: Entity, maker: Entity, home: Entity | None = None) -> Entity:
        entity.maker = maker
        entity.year = self.dice.between(maker.birth + 22, min(maker.birth + 60, (maker.death or PRESENT - 10) - 1))
        entity.home = home or self.get("town", self.dice.below(len(SLOTS["town"])))
        return entity

    def _work(self, index: int, nth: int) -> Entity:
        town = self.get("town", 2 + nth // 2)
        sort = words.WORK_SORTS[nth] if nth in (3, 5) else self.dice.pick(words.WORK_SORTS[:5])
        maker = self.get("person", _WRITERS[nth])
        short = f"the {sort}"
        if nth == 2:
            title, decoy = self._double_title()
            return self._made(Entity(index, "work", sort, title, "", short, decoy), maker)
        patterns = (
            f"The %s of {town.title}",
            f"The %s of {self.get('town', 2).title}",
            "",
            f"%s from {town.title}",
            f"A %s for {town.title}",
            f"On the %s of {town.title}",
        )
        return self._made(self._titled(index, "work", patterns[nth], words.ARTS[nth], short, sort=sort), maker, town)

    def _double_title(self) -> tuple[str, str]:
        nouns, adjectives = words.TITLE_NOUNS, words.TITLE_ADJECTIVES
        number = self.world.double_titles(self.number)
        rest, second = divmod(number, len(nouns) - 1)
        adjective, first = divmod(rest, len(nouns))
        other = [noun for noun in nouns if noun != nouns[first]][second]
        # Decoys join with 'or', which no title does.
        stem = f"The {adjectives[adjective]} {nouns[first]}"
        return f"{stem} and the {other}", f"{stem} or the {other}"

    def _guild(self, index: int, nth: int) -> Entity:
        town = self.get("town", (1, 3, 0, 5, 4)[nth])
        founder = self.get("person", _FOUNDERS[nth])
        pattern, choices, short, article = (
            (f"%s' Guild of {town.title}", words.GUILD_TRADES, "the guild", "the "),
            (f"{founder.short.split()[-1]} and %s", words.PARTNERS, "the firm", ""),
            (f"{town.title} School of %s", words.SCHOOLS, "the school", "the "),
            (f"{town.title} %s Company", words.GOODS, "the company", "the "),
            (f"Order of the %s of {town.title}", words.ORDERS, "the order", "the "),
        )[nth]
        return self._made(self._titled(index, "guild", pattern, choices, short, article=article), founder, town)

    def _building(self, index: int, nth: int) -> Entity:
        builder = self.get("person", 2)
        town = self.get("town", (0, 2, _WATERWORKS_TOWN)[nth])
        stem, choices = (
            (town.title, words.BUILDINGS),
            (self.get("person", 8).short.split()[-1], words.HOUSES),
            (self.get("river", 0).title.removeprefix("River "), words.WATERWORKS),
        )[nth]
        building = self._titled(index, "building", f"{stem} %s", choices, "the building", article="the ")
        building.sort = building.title.split()[-1].lower()
        building.short = f"the {building.sort}"
        return self._made(building, builder, town)

    def _festival(self, index: int, nth: int) -> Entity:
        town = self.get("town", (3, 5)[nth])
        pattern = (f"Festival of %s in {town.title}", f"{town.title} %s Night")[nth]
        article = "the " if nth == 0 else ""
        choices = (words.FAIRS, words.NIGHTS)[nth]
        festival = self._titled(index, "festival", pattern, choices, "the festival", "festival", article)
        festival.home, festival.year = town, self.dice.between(400, 900)
        return festival

    def _dish(self, index: int, nth: int) -> Entity:
        dish = self._titled(index, "dish", f"{self._root(_DISH_ROOT)} %s", words.DISHES, "the dish")
        dish.home = self.get("town", self.dice.below(7))
        dish.year = self.dice.between(420, 940)
        return dish

    def _device(self, index: int, nth: int) -> Entity:
        maker = self.get("person", (3, 7)[nth])
        choices = (words.DEVICES, words.INSTRUMENTS)[nth]
        pattern = f"{maker.short.split()[-1]} %s"
        device = self._titled(index, "device", pattern, choices, "the device", article="the ")
        device.sort = ("device", "instrument")[nth]
        device.short = f"the {device.title.split()[-1]}"
        return self._made(device, maker)

    def _ship(self, index: int, nth: int) -> Entity:
        town = self.get("town", (6, 4)[nth])
        if nth == 0:
            # Named after a person of the province, as ships are; the home port keeps the titles apart.
            choices: Sequence[str] = [self.get("person", n).title for n in _NAMESAKES]
        else:
            choices = words.SHIP_NAMES
        sort = self.dice.pick(words.SHIP_SORTS)
        ship = self._titled(index, "ship", f"%s of {town.title}", choices, "the ship", sort, "the ")
        named = [n for n in _NAMESAKES if ship.title.startswith(self.get("person", n).title)]
        ship.extra["namesake"] = str(named[0] if named else -1)
        return self._made(ship, self.get("person", 4), town)

    def _creature(self, index: int, nth: int) -> Entity:
        stem = self.get("town", 4).title
        creature = self._titled(index, "creature", f"{stem} %s", words.CREATURES, "", article="the ")
        creature.sort = creature.title.split()[-1]
        creature.short = f"the {creature.sort}"
        return self._made(creature, self.get("person", 5))

    def _plant(self, index: int, nth: int) -> Entity:
        stem = self.get("person", 5).short.split()[-1]
        plant = self._titled(index, "plant", f"{stem}'s %s", words.PLANTS, "the plant")
        plant.sort = plant.title.split()[-1]
        return self._made(plant, self.get("person", 5))
