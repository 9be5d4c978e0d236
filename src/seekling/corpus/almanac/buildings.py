"""Buildings and waterworks."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import ANIMALS, PERILS, STONES, WATERWORKS

_GHOSTS = """a drowned mason|a baker's wife|a headless clerk|an impatient bride|a bell ringer|a cheated carpenter|
    a blind cat|a tax collector|two sisters|an unpaid painter"""
_USES = """a music school|a grain store|a museum|a courthouse|a youth hostel|an archive|a dance hall|a weather station|
    a bakery|a toll office|a library|a sheep shed"""


def derive_building(building: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a building."""
    guilds = [g for g in near.all_of("guild") if g.year <= building.year]
    facts = {
        "architect": to(building.maker or dice.pick(near.all_of("person"))),
        "built": year(building.year),
        "height": amount(dice.between(7, 96), "metres", "m"),
        "stone": phrase(dice.pick(STONES)),
        "steps": amount(dice.between(24, 390)),
        "ornament": phrase(dice.pick(ANIMALS)),
        "damaged_by": phrase(dice.pick(PERILS[:5])),
        "cost": amount(dice.between(9, 240) * 100, "crowns"),
        "purpose_now": one_of(dice, _USES),
        "ghost": one_of(dice, _GHOSTS),
    }
    if building.sort.capitalize() in WATERWORKS:
        facts["river"] = to((building.home and building.home.river) or near.all_of("river")[0])
        del facts["steps"], facts["ornament"]
    elif building.home:
        facts["town"] = to(building.home)
    if guilds:
        facts["commissioned"] = to(dice.pick(guilds))
    return facts
