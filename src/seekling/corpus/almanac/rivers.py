"""Rivers."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, phrase, quoted, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import FISH, NAME_MEANINGS

_WATER_COLOURS = ("milky green", "dark brown", "pale blue", "reddish", "silvery grey", "yellowish", "ink black")


def derive_river(river: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a river."""
    name = near.stranger(dice).prose.split()[-1]
    facts = {
        "length": amount(dice.between(38, 960), "kilometres", "km"),
        "source": to(dice.pick(near.all_of("mountain"))),
        "mouth": to(near.all_of("lake")[0]) if dice.chance(50) else to(near.far("lake", dice)),
        "colour": phrase(dice.pick(_WATER_COLOURS)),
        "fish": phrase(dice.pick(FISH)),
        "meaning": quoted(dice.pick(NAME_MEANINGS)),
        "crossing": Fact(f"the {name} family", (f"{name} family", name, f"the {name} family")),
        "fall": amount(dice.between(4, 88), "metres", "m"),
    }
    if flood := near.flood_of(river):
        facts["flooded"], facts["flood_year"] = to(flood[0]), year(flood[1])
    return facts
