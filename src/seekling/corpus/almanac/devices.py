"""Inventions, musical instruments and ships."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import ANIMALS, COLOURS, GOODS, phrases_in

_METALS = "brass|walnut wood|cast iron|copper|pear wood|tin|ash wood|steel|bronze|horn|ivory|maple wood"
_IDEAS = """a child's toy|the wing of a beetle|a broken clock|the sound of rain|a water wheel|a loose door hinge|
    a spinning coin|a coffee mill|the ribs of a boat|a dripping tap|a street organ|a mole trap"""
_FLAWS = """its loud noise|its smell|the weak spring|leaking joints|its short life|the fragile handle|its high price|
    rust|its thirst for oil|a tendency to overheat|its slow start|the crooked axle"""


def derive_device(device: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a device."""
    device.extra["a_sort"] = "a musical instrument" if device.sort == "instrument" else "a device"
    return {
        "inventor": to(device.maker or near.all_of("person")[0]),
        "invented": year(device.year),
        "material": one_of(dice, _METALS),
        "weight": amount(dice.between(2, 95), "pounds"),
        "inspired_by": one_of(dice, _IDEAS),
        "first_used": to(device.home or near.all_of("town")[0]),
        "flaw": one_of(dice, _FLAWS),
        "price": amount(dice.between(3, 120), "crowns"),
        "maker": to(dice.pick(near.all_of("guild"))),
        "copies": amount(dice.between(14, 4200)),
        "kept_in": to(near.far("town", dice)),
    }


_FATES = """ran onto a reef|burned at anchor|sank in a storm|was crushed by ice|was sold for firewood|
    was taken by pirates|
    capsized in harbour|vanished in fog|struck a sandbank|was rammed by a ferry"""
_CATS = phrases_in("Biscuit, Admiral, Pepper, Tar, Madam, Button, Thunder, Anchovy, Bishop, Soot, Mustard, Ballast")


def derive_ship(ship: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a ship."""
    captain = ship.maker or near.all_of("person")[0]
    facts = {
        "port": to(ship.home or near.all_of("town")[0]),
        "launched": year(ship.year),
        "captain": to(captain),
        "length": amount(dice.between(14, 78), "metres", "m"),
        "crew": amount(dice.between(9, 160)),
        "cargo": phrase(dice.pick(GOODS).lower()),
        "figurehead": phrase(dice.pick(ANIMALS)),
        "sails": phrase(dice.pick(COLOURS)),
        "fate": one_of(dice, _FATES),
        "lost": year(dice.between(ship.year + 3, min(ship.year + 60, 995))),
        "cat": phrase(dice.pick(_CATS)),
        "owner": to(dice.pick([g for g in near.all_of("guild") if g.year <= ship.year] or near.all_of("guild"))),
    }
    number = int(ship.extra.pop("namesake"))
    if number >= 0:
        facts["namesake"] = to(near.all_of("person")[number])
    return facts
