"""What is true of each kind of entity: its facts, drawn in a fixed order, and entities of the province to point at.

The order of the draws is part of what a seed promises.
"""

from __future__ import annotations

from collections.abc import Callable

from seekling.corpus.almanac.census import Census
from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, count, one_of, phrase, quoted, to, year
from seekling.corpus.almanac.spec import WORDS


def _any(near: Census, kind: str, dice: Dice) -> Fact:
    return to(dice.pick(near.all_of(kind)))


def _other_town(near: Census, than: Entity, dice: Dice) -> Fact:
    return to(dice.pick([town for town in near.all_of("town") if town.index != than.index]))


def _nobody(near: Census, dice: Dice, *, is_woman: bool | None = None) -> Fact:
    """Somebody without a page."""
    name = near.stranger(dice, is_woman=is_woman)
    return Fact(name, (name,))


def _province(province: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    law_giver = near.all_of("person")[dice.pick((6, 10, 12))]
    return {
        "capital": _any(near, "town", dice),
        "area": amount(dice.between(800, 9800), "square kilometres", "km²"),
        "united": year(dice.between(395, 460)),
        "export": phrase(dice.pick(WORDS["goods"]).lower()),
        "governor": one_of(dice, "governors"),
        "animal": one_of(dice, "animals"),
        "sacred": _any(near, "mountain", dice),
        "tax": one_of(dice, "taxes"),
        "greeting": one_of(dice, "greetings"),
        "law_giver": to(law_giver),
    }


def _town(town: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    size = dice.pick((300, 900, 2500, 8000, 20000)) if "village" not in town.sort else dice.pick((90, 250, 600))
    river = town.river or near.first("river")
    flood = near.flood_of(river)
    if flood and flood[0].index != town.index:
        flood = None
    return {
        "population": amount(dice.between(size, size * 3)),
        "founded": year(town.year),
        "founder": _nobody(near, dice),
        "river": to(river),
        "product": one_of(dice, "products"),
        "altitude": amount(dice.between(4, 1400), "metres", "m"),
        "emblem": one_of(dice, "animals"),
        "stone": one_of(dice, "stones"),
        "peril": phrase("a flood") if flood else one_of(dice, "perils"),
        "peril_year": year(flood[1] if flood else dice.between(town.year + 60, 985)),
        "head": one_of(dice, "heads"),
        "market": one_of(dice, "weekdays"),
        "twin": to(near.far("town", dice)),
        "road_from": _other_town(near, town, dice),
        "library": one_of(dice, "museums"),
    }


def _river(river: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    name = near.stranger(dice).split()[-1]
    facts = {
        "length": amount(dice.between(38, 960), "kilometres", "km"),
        "source": _any(near, "mountain", dice),
        "mouth": to(near.first("lake") if dice.chance(50) else near.far("lake", dice)),
        "colour": one_of(dice, "water_colours"),
        "fish": one_of(dice, "fish"),
        "meaning": quoted(dice.pick(WORDS["name_meanings"])),
        "crossing": Fact(f"the {name} family", (f"{name} family", name, f"the {name} family")),
        "fall": amount(dice.between(4, 88), "metres", "m"),
    }
    if flood := near.flood_of(river):
        facts["flooded"], facts["flood_year"] = to(flood[0]), year(flood[1])
    return facts


def _mountain(mountain: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    climber = dice.pick(near.all_of("person")[4:7])
    return {
        "height": amount(dice.between(640, 4980), "metres", "m"),
        "first_climber": to(climber),
        "climbed": year(dice.between(climber.birth + 20, climber.birth + 42)),
        "rock": one_of(dice, "rocks"),
        "ore": one_of(dice, "ores"),
        "meaning": quoted(dice.pick(WORDS["name_meanings"])),
        "hut": phrase(f"{near.stranger(dice).split()[-1]} {dice.pick(WORDS['huts'])}"),
        "legend": one_of(dice, "animals"),
        "seen_from": _any(near, "town", dice),
    }


def _lake(lake: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    isle = near.stranger(dice).split()[-1]
    return {
        "area": amount(dice.between(3, 640), "square kilometres", "km²"),
        "depth": amount(dice.between(5, 390), "metres", "m"),
        "island": Fact(f"{isle} Island", (f"{isle} Island", isle)),
        "fish": one_of(dice, "fish"),
        "frozen": one_of(dice, "months"),
        "shore": _any(near, "town", dice),
        "monster": one_of(dice, "monsters"),
        "monster_year": year(dice.between(700, 990)),
        "depth_by": to(near.all_of("person")[dice.pick((5, 6, 12))]),
    }


def _person(person: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    facts = {
        "trade": phrase(person.sort),
        "birth_year": year(person.birth),
        "birthplace": to(person.home) if person.home else phrase("the road"),
        "parent": one_of(dice, "parents"),
        "studied": to(near.far("town", dice)),
        "left_because": one_of(dice, "reasons_to_leave"),
        "spouse": _nobody(near, dice, is_woman=person.pronoun == "he"),
        "nickname": phrase(f"the {one_of(dice, 'nicknames_1', 'nicknames_2').prose}"),
        "collected": one_of(dice, "collections"),
        "pet": one_of(dice, "pets"),
        "prize": phrase(f"the {one_of(dice, 'prizes_1', 'prizes_2').prose}"),
    }
    if teacher := near.grown_up_in(person.birth + 16, person, dice):
        facts["teacher"] = to(teacher)
    if friend := near.contemporary(person, dice):
        facts["friend"] = to(friend)
    things = [e for kind in ("work", "device", "building", "plant", "guild") for e in near.all_of(kind)]
    if made := [e for e in things if e.maker is not None and e.maker.index == person.index]:
        facts["known_for"] = to(dice.pick(made))
    if person.death:
        facts["death_year"] = year(person.death)
        facts["death_place"] = _other_town(near, person.home or person, dice)
        facts["death_cause"] = one_of(dice, "deaths")
        facts["burial"] = one_of(dice, "burials")
        person.extra["age"] = str(person.death - person.birth)
    person.extra["lived"] = f"{person.birth}\u2013{person.death}" if person.death else f"born {person.birth}"
    person.extra["is"] = "was" if person.death else "is"
    return facts


_GUILDS = {"firm": "trading firm", "school": "school", "company": "trading company", "order": "charitable order"}


def _guild(guild: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    guild.extra["what"] = _GUILDS.get(guild.short.removeprefix("the "), f"guild of {guild.sort.lower()}")
    first, second = (one_of(dice, f"motto_{number}", f"motto_{number + 1}").prose for number in (1, 3))
    facts = {
        "founded": year(guild.year),
        "founder": to(guild.maker) if guild.maker else _nobody(near, dice),
        "seat": to(guild.home) if guild.home else phrase("the capital"),
        "members": amount(dice.between(12, 480)),
        "motto": quoted(f"{first}, {second}"),
        "emblem": one_of(dice, "animals"),
        "colour": one_of(dice, "colours"),
        "rule": one_of(dice, "rules"),
        "fee": one_of(dice, "fees"),
        "treasure": one_of(dice, "treasures"),
        "closed_for": one_of(dice, "closures"),
    }
    if rival := near.rival_of(guild):
        facts["rival"] = to(rival)
    return facts


_PARTS = {"play": "acts", "opera": "acts", "song cycle": "songs", "poem": "cantos"}


def _work(work: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    hero = _nobody(near, dice)
    work.extra["unit"] = unit = _PARTS.get(work.sort, "books")
    maker = work.maker or near.first("person")
    living = [p for p in near.all_of("person") if p.index != maker.index and p.is_adult_in(work.year)]
    halls = [b for b in near.all_of("building") if b.year <= work.year]
    facts = {
        "author": to(maker),
        "written": year(work.year),
        "hero": hero,
        "hero_trade": one_of(dice, "hero_trades"),
        "subject": one_of(dice, "subjects"),
        "parts": count(dice.between(3, 12), unit),
        "banned_for": one_of(dice, "bans"),
        "inspired": one_of(dice, "sparks"),
        "manuscript": to(near.far("town", dice)),
        "written_in": count(dice.between(2, 11), "years"),
        "ends_with": one_of(dice, "endings"),
        "setting": _other_town(near, work.home or work, dice),
    }
    if living:
        facts["dedicated"] = to(dice.pick(living))
    if halls:
        facts["first_shown"] = to(dice.pick(halls))
    if work.sort == "treatise":
        # A treatise has an argument, not a plot.
        for key in ("hero", "hero_trade", "setting", "ends_with"):
            del facts[key]
        facts["subject"] = phrase(work.title.split(" of ")[0].removeprefix("On ").lower())
    return facts


def _building(building: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    guilds = [g for g in near.all_of("guild") if g.year <= building.year]
    facts = {
        "architect": to(building.maker or near.first("person")),
        "built": year(building.year),
        "height": amount(dice.between(7, 96), "metres", "m"),
        "stone": one_of(dice, "stones"),
        "steps": amount(dice.between(24, 390)),
        "ornament": one_of(dice, "animals"),
        "damaged_by": one_of(dice, "damages"),
        "cost": amount(dice.between(9, 240) * 100, "crowns"),
        "purpose_now": one_of(dice, "uses"),
        "ghost": one_of(dice, "ghosts"),
    }
    if building.sort.capitalize() in WORDS["waterworks"]:
        facts["river"] = to((building.home and building.home.river) or near.first("river"))
        del facts["steps"], facts["ornament"]
    elif building.home:
        facts["town"] = to(building.home)
    if guilds:
        facts["commissioned"] = to(dice.pick(guilds))
    return facts


def _device(device: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    device.extra["a_sort"] = "a musical instrument" if device.sort == "instrument" else "a device"
    return {
        "inventor": to(device.maker or near.first("person")),
        "invented": year(device.year),
        "material": one_of(dice, "materials"),
        "weight": amount(dice.between(2, 95), "pounds"),
        "inspired_by": one_of(dice, "ideas"),
        "first_used": to(device.home or near.first("town")),
        "flaw": one_of(dice, "flaws"),
        "price": amount(dice.between(3, 120), "crowns"),
        "maker": _any(near, "guild", dice),
        "copies": amount(dice.between(14, 4200)),
        "kept_in": to(near.far("town", dice)),
    }


def _ship(ship: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    guilds = near.all_of("guild")
    facts = {
        "port": to(ship.home or near.first("town")),
        "launched": year(ship.year),
        "captain": to(ship.maker or near.first("person")),
        "length": amount(dice.between(14, 78), "metres", "m"),
        "crew": amount(dice.between(9, 160)),
        "cargo": phrase(dice.pick(WORDS["goods"]).lower()),
        "figurehead": one_of(dice, "animals"),
        "sails": one_of(dice, "colours"),
        "fate": one_of(dice, "fates"),
        "lost": year(dice.between(ship.year + 3, min(ship.year + 60, 995))),
        "cat": one_of(dice, "cats"),
        "owner": to(dice.pick([g for g in guilds if g.year <= ship.year] or guilds)),
    }
    if (number := int(ship.extra.pop("namesake"))) >= 0:
        facts["namesake"] = to(near.all_of("person")[number])
    return facts


_SIZES = {
    "heron": (60, 98),
    "hare": (38, 66),
    "otter": (55, 99),
    "goat": (80, 140),
    "marten": (35, 60),
    "owl": (30, 70),
}


def _species(entity: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    habitats = near.all_of(dice.pick(("lake", "river", "mountain")))
    return {
        "described": to(entity.maker or near.first("person")),
        "described_in": year(entity.year),
        "habitat": to(dice.pick(habitats)),
        "colour": one_of(dice, "colours"),
        "saying": one_of(dice, "omens"),
        "threat": one_of(dice, "threats"),
        "shown_on": one_of(dice, "shown_on"),
        "also_called": one_of(dice, "other_names"),
    }


def _creature(creature: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    return _species(creature, near, dice) | {
        "size": amount(dice.between(*_SIZES.get(creature.sort, (5, 24))), "centimetres", "cm"),
        "food": one_of(dice, "creature_foods"),
        "sound": one_of(dice, "sounds"),
        "young": count(dice.between(2, 9), "young"),
        "sleeps": one_of(dice, "beds"),
    }


def _plant(plant: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    return _species(plant, near, dice) | {
        "size": amount(dice.between(4, 180), "centimetres", "cm"),
        "flowers_in": one_of(dice, "months"),
        "use": one_of(dice, "ills"),
        "scent": one_of(dice, "scents"),
    }


def _festival(festival: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    starter = dice.pick([p for p in near.all_of("person") if p.birth + 22 <= 985])
    festival.year = dice.between(starter.birth + 22, min(starter.birth + 43, 990))
    return {
        "town": to(festival.home or near.first("town")),
        "first_held": year(festival.year),
        "month": one_of(dice, "months"),
        "days": count(dice.between(2, 12), "days"),
        "marks": one_of(dice, "occasions"),
        "food": to(near.first("dish") if dice.chance(60) else near.far("dish", dice)),
        "colour": one_of(dice, "colours"),
        "contest": one_of(dice, "contests"),
        "winner_gets": one_of(dice, "gifts"),
        "started_by": to(starter),
        "burned": one_of(dice, "burned"),
        "forbidden": one_of(dice, "forbidden"),
    }


def _dish(dish: Entity, near: Census, dice: Dice) -> dict[str, Fact]:
    inventor = dice.pick(near.all_of("person"))
    dish.year = dice.between(inventor.birth + 22, 995)
    return {
        "origin": to(dish.home or near.first("town")),
        "first_recorded": year(dish.year),
        "main_part": one_of(dice, "foods"),
        "spice": one_of(dice, "spices"),
        "cooked_for": count(dice.between(2, 9), "hours"),
        "served_with": one_of(dice, "sides"),
        "vessel": one_of(dice, "vessels"),
        "invented_by": to(inventor),
        "served_on": one_of(dice, "served_on"),
        "forbidden_to": one_of(dice, "barred"),
    }


DRAW_FACTS: dict[str, Callable[[Entity, Census, Dice], dict[str, Fact]]] = {
    "province": _province, "town": _town, "river": _river, "mountain": _mountain, "lake": _lake, "person": _person,
    "guild": _guild, "work": _work, "building": _building, "ship": _ship, "creature": _creature, "plant": _plant,
    "festival": _festival, "dish": _dish, "device": _device,
}  # fmt: skip
"""By kind, in the order in which questions go through the kinds."""
