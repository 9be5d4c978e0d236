"""Persons: lives, teachers, deeds, habits."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.words import PARENT_TRADES, words_in

_LEAVING = """a quarrel over water rights|the failure of the harvest|an unhappy love affair|a debt at cards|
    the closing of the mine|a dispute about an inheritance|the arrival of the fever|a broken apprenticeship|
    a wager with an uncle|the burning of the family house|a false accusation of theft|the noise of the mills"""
_COLLECTIONS = """door knockers|bird feathers|broken clocks|sea glass|tavern signs|old keys|pressed flowers|
    coins with holes|
    snail shells|street songs|ship figureheads|maps of imaginary islands|wooden spoons|letters of strangers|
    coloured sand|bells of cattle|paper kites|misprinted books"""
_PETS = """a one-eyed goose|a tame raven|a three-legged dog|a blind tortoise|a white hedgehog|a talkative starling|
    a small brown bear|a pair of ferrets|a lame heron|a grey parrot|an old donkey|a toad in a jar|a piebald goat"""
_NICKNAMES = (
    words_in("Patient Quiet Long Red Left-Handed Sleepless Honest Crooked Barefoot Second Last Deaf"),
    words_in("Heron Fox Ladder Lantern Bellows Badger Teapot Owl Anchor Whistle Sparrow Wheel"),
)
_PRIZES = (
    words_in("Silver Golden Bronze Ivory Crystal Blue"),
    words_in("Compass Feather Hourglass Wheel Laurel Key Anchor"),
)
_DEATHS = """pneumonia|a fall from a ladder|lung fever|a stroke|food poisoning|an infected wound|swamp fever|old age|
    a fall from a horse|the winter cough|heart failure|drowning"""
_BURIALS = """under an old elm outside the walls|beside the north gate|in the garden of the school|
    on a small river island|
    behind the old salt works|in a family vault at the harbour|below the watchtower|at the edge of an apple orchard|
    in an unmarked plot near the mill|next to the pilgrims' well"""


def derive_person(person: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    """Draw the facts of a person."""
    facts = {
        "trade": phrase(person.sort),
        "birth_year": year(person.birth),
        "birthplace": to(person.home) if person.home else phrase("the road"),
        "parent": phrase(dice.pick(PARENT_TRADES)),
        "studied": to(near.far("town", dice)),
        "left_because": one_of(dice, _LEAVING),
        "spouse": near.stranger(dice, is_woman=person.pronoun == "he"),
        "nickname": phrase(f"the {dice.pick(_NICKNAMES[0])} {dice.pick(_NICKNAMES[1])}"),
        "collected": one_of(dice, _COLLECTIONS),
        "pet": one_of(dice, _PETS),
        "prize": phrase(f"the {dice.pick(_PRIZES[0])} {dice.pick(_PRIZES[1])}"),
    }
    if teacher := near.elder(person, dice):
        facts["teacher"] = to(teacher)
    if friend := near.contemporary(person, dice):
        facts["friend"] = to(friend)
    if made := near.made_by(person):
        facts["known_for"] = to(dice.pick(made))
    if person.death:
        facts["death_year"] = year(person.death)
        facts["death_place"] = to(near.other("town", person.home or person, dice))
        facts["death_cause"] = one_of(dice, _DEATHS)
        facts["burial"] = one_of(dice, _BURIALS)
        person.extra["age"] = str(person.death - person.birth)
    person.extra["lived"] = f"{person.birth}\u2013{person.death}" if person.death else f"born {person.birth}"
    person.extra["is"] = "was" if person.death else "is"
    return facts
