"""Towns and villages."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import ANIMALS, FLOOD, PERILS, STONES, WEEKDAYS

_PRODUCTS = """blue glass|smoked eel|goat cheese|felt hats|pear brandy|cast bells|walnut furniture|
    honey cakes|fine paper|
    wooden clocks|linen lace|black pottery|sheep bells|pickled plums|leather gloves|juniper gin|silver thread|
    playing cards|barley beer|copper kettles|dried mushrooms|rope and nets|beeswax candles|plum jam"""
_HEADS = "Reeve|Lord Steward|First Neighbour|Bell Keeper|Warden|Speaker|Elder of the Well|Provost|Key Bearer|Bailiff"
_MUSEUMS = """the history of salt|locks and keys|the craft of dyeing|shipwrecks|the history of weights|puppets|
    musical clocks|the fur trade|beekeeping|old maps|the river ferries|fishing nets|bread ovens|winter clothing"""


def derive_town(town: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a town."""
    size = dice.pick((300, 900, 2500, 8000, 20000)) if "village" not in town.sort else dice.pick((90, 250, 600))
    river = town.river or near.all_of("river")[0]
    flood = near.flood_of(river)
    is_flooded = flood is not None and flood[0].index == town.index
    return {
        "population": amount(dice.between(size, size * 3)),
        "founded": year(town.year),
        "founder": near.stranger(dice),
        "river": to(river),
        "product": one_of(dice, _PRODUCTS),
        "altitude": amount(dice.between(4, 1400), "metres", "m"),
        "emblem": phrase(dice.pick(ANIMALS)),
        "stone": phrase(dice.pick(STONES)),
        "peril": phrase(FLOOD if is_flooded else dice.pick(PERILS)),
        "peril_year": year(flood[1] if flood and is_flooded else dice.between(town.year + 60, 985)),
        "head": one_of(dice, _HEADS),
        "market": phrase(dice.pick(WEEKDAYS)),
        "twin": to(near.far("town", dice)),
        "road_from": to(near.other("town", town, dice)),
        "library": one_of(dice, _MUSEUMS),
    }
