"""Pages about provinces."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import ANIMALS, GOODS, phrases_in

_TITLES = phrases_in("""High Steward, Keeper of the Seal, Lord Surveyor, Grand Bailiff, First Rider, Chancellor,
    Marshal of the Roads, Holder of the Staff""")
_TAXES = """chimneys|windows facing north|beards|dogs with long tails|wigs|second stoves|church bells|
    garden walls|playing cards|idle mills"""
_GREETINGS = phrases_in("""dry roads, good bread, may it thaw, light burdens, warm stones, quiet water, full jars,
    fair wind, no debts, long evenings""")


def derive_province(province: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a province."""
    scholar = near.all_of("person")[dice.pick((6, 10, 12))]
    return {
        "capital": to(dice.pick(near.all_of("town"))),
        "area": amount(dice.between(800, 9800), "square kilometres", "km²"),
        "united": year(dice.between(395, 460)),
        "export": phrase(dice.pick(GOODS).lower()),
        "governor": phrase(dice.pick(_TITLES)),
        "animal": phrase(dice.pick(ANIMALS)),
        "sacred": to(dice.pick(near.all_of("mountain"))),
        "tax": one_of(dice, _TAXES),
        "greeting": phrase(dice.pick(_GREETINGS)),
        "law_giver": to(scholar),
    }
