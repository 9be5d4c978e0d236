"""Guilds, firms, schools, companies and orders."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, amount, one_of, phrase, quoted, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import ANIMALS, COLOURS, words_in

_MOTTO = (
    words_in("Slow Late Honest Cold Steady Few Patient Open"),
    words_in("Hands Words Tools Eyes Weights Doors"),
    words_in("Long Sound Light Quiet Good Straight"),
    words_in("Work Sleep Bread Paths Debts Winters"),
)
_RULES = """whistle indoors|marry in winter|lend money to cousins|eat eels|own a dog|sell on credit|
    wear gloves in summer|
    speak at breakfast|keep caged birds|gamble with dice|shave before noon|travel by sea"""
_FEES = """a barrel of butter|a silver spoon|two geese|a hand-written song|a sack of salt|a new ladder|seven candles|
    a pair of boots|a day of stone carrying|a cheese|a wooden chair|a roll of linen"""
_TREASURES = """a cracked bell|a golden thimble|the sword of a bishop|a map on sealskin|a glass flute|a walrus tusk|
    the first account book|a jewelled egg|a silver nutcracker|a letter from a queen|a clock without hands"""
_CLOSURES = """unpaid taxes|a scandal over false weights|an outbreak of fever|a quarrel about seating|
    a fire in the archive|
    forged diplomas|a duel between members|the theft of the seal|a strike of the apprentices"""
_WHATS = {"firm": "trading firm", "school": "school", "company": "trading company", "order": "charitable order"}


def derive_guild(guild: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a guild."""
    kind = guild.short.removeprefix("the ")
    guild.extra["what"] = f"guild of {guild.sort.lower()}" if kind == "guild" else _WHATS[kind]
    first, second, third, fourth = (dice.pick(words) for words in _MOTTO)
    facts = {
        "founded": year(guild.year),
        "founder": to(guild.maker) if guild.maker else near.stranger(dice),
        "seat": to(guild.home) if guild.home else phrase("the capital"),
        "members": amount(dice.between(12, 480)),
        "motto": quoted(f"{first} {second}, {third} {fourth}"),
        "emblem": phrase(dice.pick(ANIMALS)),
        "colour": phrase(dice.pick(COLOURS)),
        "rule": one_of(dice, _RULES),
        "fee": one_of(dice, _FEES),
        "treasure": one_of(dice, _TREASURES),
        "closed_for": one_of(dice, _CLOSURES),
    }
    if rival := near.rival_of(guild):
        facts["rival"] = to(rival)
    return facts
