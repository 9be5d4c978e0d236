"""Festivals and dishes."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, count, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import COLOURS, MONTHS

_MARKS = """the end of a long frost|the return of the fishing fleet|the defeat of a robber band|
    the opening of the mines|
    a rain after years of drought|the burial of a miser|the birth of triplets|a lost battle|
    the first bread after a famine|
    the rescue of a drowned bell|the arrival of the first settlers|the repeal of a tax"""
_CONTESTS = """stone lifting|barrel rolling|whistling|stilt walking|pie eating|goose racing|lantern carrying|
    rope climbing|
    blindfolded rowing|storytelling|log sawing|kite flying"""
_GIFTS = """a live goose|a wreath of onions|a silver whistle|a cheese wheel|a pair of red boots|a year without taxes|
    a painted drum|a barrel of cider|a copper kettle|a hat with feathers"""
_BURNED = """a straw bear|an old boat|a wooden tower|a paper dragon|a worn-out cart|a chest of unpaid bills|
    a straw bishop|
    last year's wreath|a heap of brooms"""
_BANS = """say one's own name|light a candle|carry money|speak of the weather|lend anything|
    wear shoes indoors|use knives|
    turn a neighbour away|count aloud"""


def derive_festival(festival: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a festival."""
    starters = [p for p in near.all_of("person") if p.birth + 22 <= 985]
    starter = dice.pick(starters)
    festival.year = dice.between(starter.birth + 22, min(starter.birth + 43, 990))
    return {
        "town": to(festival.home or near.all_of("town")[0]),
        "first_held": year(festival.year),
        "month": phrase(dice.pick(MONTHS)),
        "days": count(dice.between(2, 12), "days"),
        "marks": one_of(dice, _MARKS),
        "food": to(near.all_of("dish")[0]) if dice.chance(60) else to(near.far("dish", dice)),
        "colour": phrase(dice.pick(COLOURS)),
        "contest": one_of(dice, _CONTESTS),
        "winner_gets": one_of(dice, _GIFTS),
        "started_by": to(starter),
        "burned": one_of(dice, _BURNED),
        "forbidden": one_of(dice, _BANS),
    }


_FOODS = """smoked eel|barley|red cabbage|goose liver|chestnuts|salted cod|turnips|beans|wild mushrooms|
    mutton|pumpkin|rye bread|tripe|leeks|carp|lentils"""
_SPICES = "juniper|caraway|saffron|black pepper|dill|wild garlic|mustard seed|cloves|mint|anise|sorrel|horseradish"
_SIDES = """sour cream|pickled beets|boiled potatoes|plum sauce|white bread|fried onions|apple slices|
    buckwheat|cold beer|soft cheese"""
_VESSELS = """a copper pan|a clay pot|an iron kettle|a soapstone bowl|a hollow pumpkin|a bread oven|
    a wooden barrel|a tin box"""
_DAYS = """weddings|funerals|the first snow|market days|the birth of a child|the last day of harvest|
    the new moon|baptisms"""
_BARRED = "widowers|tax collectors|apprentices|bridegrooms|judges|children under seven|sailors before a voyage|the cook"


def derive_dish(dish: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a dish."""
    inventor = dice.pick(near.all_of("person"))
    dish.year = dice.between(inventor.birth + 22, 995)
    return {
        "origin": to(dish.home or near.all_of("town")[0]),
        "first_recorded": year(dish.year),
        "main_part": one_of(dice, _FOODS),
        "spice": one_of(dice, _SPICES),
        "cooked_for": count(dice.between(2, 9), "hours"),
        "served_with": one_of(dice, _SIDES),
        "vessel": one_of(dice, _VESSELS),
        "invented_by": to(inventor),
        "served_on": one_of(dice, _DAYS),
        "forbidden_to": one_of(dice, _BARRED),
    }
