"""Novels, plays, poems, song cycles, operas and treatises."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, count, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near

_HERO_TRADES = """ferryman|wet nurse|piano tuner|smuggler|pastry cook|land surveyor|gravedigger|rope dancer|
    night watchman|
    bookbinder|customs clerk|well digger|chimney sweep|fortune teller|barber|mail carrier"""
_SUBJECTS = """the price of honesty|a stolen inheritance|two rival brothers|the building of a dam|
    a marriage of convenience|
    the fear of winter|a trial for witchcraft|life in a small harbour|the loss of a language|an unlikely friendship|
    a journey without a destination|the vanity of scholars|a village that moves|the memory of a war"""
_BANS = """mocking the salt tax|insulting a bishop|praising the enemy|its coarse language|revealing a state secret|
    ridiculing the judges|a scene with a corpse|spreading false maps|disrespect for the dead|naming living persons"""
_SPARKS = """a dream during a fever|a newspaper report|a conversation in a coach|the sight of a burning ship|
    a grandmother's tale|an old court record|a tune heard in the street|a long stay in prison|a painting of a storm|
    a bet with a publisher|the death of a sister|a walk in the snow"""
_ENDS = """a wedding|a shipwreck|a silent supper|a funeral in the rain|a letter that is never opened|
    the burning of a mill|
    a game of chess|a reconciliation|the sound of bells|an arrest|a departure by night|a flood"""


def derive_work(work: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a work."""
    hero = near.stranger(dice)
    unit = {"play": "acts", "opera": "acts", "song cycle": "songs", "poem": "cantos"}.get(work.sort, "books")
    work.extra["unit"] = unit
    maker = work.maker or dice.pick(near.all_of("person"))
    living = [p for p in near.all_of("person") if p.index != maker.index and p.is_adult_in(work.year)]
    halls = [b for b in near.all_of("building") if b.year <= work.year]
    facts = {
        "author": to(maker),
        "written": year(work.year),
        "hero": hero,
        "hero_trade": one_of(dice, _HERO_TRADES),
        "subject": one_of(dice, _SUBJECTS),
        "parts": count(dice.between(3, 12), unit),
        "banned_for": one_of(dice, _BANS),
        "inspired": one_of(dice, _SPARKS),
        "manuscript": to(near.far("town", dice)),
        "written_in": count(dice.between(2, 11), "years"),
        "ends_with": one_of(dice, _ENDS),
        "setting": to(near.other("town", work.home or work, dice)),
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
