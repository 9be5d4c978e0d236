"""Animals and plants."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, count, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import COLOURS, MONTHS, phrases_in

_THREATS = """wet summers|house cats|the draining of marshes|salt dust|new roads|late frosts|lamp smoke|a fungus|
    forest fires|river dams|collectors|hailstorms"""
_OMENS = """an early winter|a wedding|a death in the family|rain within three days|a visit of relatives|
    a good harvest|a theft|a fire|a war"""
_SHOWN = """the old two-crown coin|a postage stamp|the seal of the mint|a set of playing cards|
    the hospital ceiling|a brewer's label"""
_NAMES = phrases_in("""little bishop, rain caller, widow's friend, mud king, stone dancer, night tailor, old aunt, false
    priest, snow thief, poor man's gold""")
_FOODS = """beetle larvae|water snails|pine seeds|ants|small crabs|reed roots|fallen plums|mayflies|
    earthworms|wild oats|frog spawn|moths"""
_SOUNDS = """a creaking door|a child's laugh|a rusty pump|a distant bell|a saw|a cork leaving a bottle|
    a sneeze|a kettle|tearing cloth"""
_BEDS = """in hollow willows|under church roofs|in old mine shafts|in haystacks|under river ice|
    in stone walls|in abandoned ovens"""
_ILLS = "toothache|fever|snake bites|sleeplessness|warts|coughs|sore eyes|hiccups|gout|stomach cramps|homesickness"
_SCENTS = "honey|wet stone|burnt sugar|vinegar|pepper|old books|fresh bread|lemons|smoke|soap"


_SIZES = {
    "heron": (60, 98),
    "hare": (38, 66),
    "otter": (55, 99),
    "goat": (80, 140),
    "marten": (35, 60),
    "owl": (30, 70),
}


def _shared(entity: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    habitat = near.all_of(dice.pick(("lake", "river", "mountain")))
    return {
        "described": to(entity.maker or near.all_of("person")[0]),
        "described_in": year(entity.year),
        "habitat": to(dice.pick(habitat)),
        "colour": phrase(dice.pick(COLOURS)),
        "saying": one_of(dice, _OMENS),
        "threat": one_of(dice, _THREATS),
        "shown_on": one_of(dice, _SHOWN),
        "also_called": phrase(dice.pick(_NAMES)),
    }


def derive_creature(creature: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a creature."""
    return _shared(creature, near, dice) | {
        "size": amount(dice.between(*_SIZES.get(creature.sort, (5, 24))), "centimetres", "cm"),
        "food": one_of(dice, _FOODS),
        "sound": one_of(dice, _SOUNDS),
        "young": count(dice.between(2, 9), "young"),
        "sleeps": one_of(dice, _BEDS),
    }


def derive_plant(plant: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a plant."""
    return _shared(plant, near, dice) | {
        "size": amount(dice.between(4, 180), "centimetres", "cm"),
        "flowers_in": phrase(dice.pick(MONTHS)),
        "use": one_of(dice, _ILLS),
        "scent": one_of(dice, _SCENTS),
    }
