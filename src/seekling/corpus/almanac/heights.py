"""Mountains and lakes."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, one_of, phrase, quoted, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import ANIMALS, FISH, MONTHS, NAME_MEANINGS, ORES, STONES


def derive_mountain(mountain: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a mountain."""
    people = near.all_of("person")
    climber = dice.pick([people[4], people[5], people[6]])
    return {
        "height": amount(dice.between(640, 4980), "metres", "m"),
        "first_climber": to(climber),
        "climbed": year(dice.between(climber.birth + 20, climber.birth + 42)),
        "rock": phrase(dice.pick(STONES[:6])),
        "ore": phrase(dice.pick(ORES)),
        "meaning": quoted(dice.pick(NAME_MEANINGS)),
        "hut": phrase(f"{near.stranger(dice).prose.split()[-1]} {dice.pick(('Hut', 'House', 'Shelter', 'Rest'))}"),
        "legend": phrase(dice.pick(ANIMALS)),
        "seen_from": to(dice.pick(near.all_of("town"))),
    }


def derive_lake(lake: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a lake."""
    sights = "a black hump|a floating lantern|a giant eel|a white bull|a sunken bell tower|a headless swan"
    isle = near.stranger(dice).prose.split()[-1]
    return {
        "area": amount(dice.between(3, 640), "square kilometres", "km²"),
        "depth": amount(dice.between(5, 390), "metres", "m"),
        "island": Fact(f"{isle} Island", (f"{isle} Island", isle)),
        "fish": phrase(dice.pick(FISH)),
        "frozen": phrase(dice.pick(MONTHS)),
        "shore": to(dice.pick(near.all_of("town"))),
        "monster": one_of(dice, sights),
        "monster_year": year(dice.between(700, 990)),
        "depth_by": to(near.all_of("person")[dice.pick((5, 6, 12))]),
    }
