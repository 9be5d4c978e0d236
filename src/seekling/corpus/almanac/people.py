"""Persons: lives, teachers, deeds, habits."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.people_page import PERSON_PAGE
from seekling.corpus.almanac.spec import parse_relations
from seekling.corpus.almanac.words import PARENT_TRADES, words_in

_RELATIONS = parse_relations("""
    trade | profession | 100
    ? What was the profession of $n?
    ? What was $n by profession?
    ? Which profession did $n have?

    birth_year | year born | 100
    ? In which year was $n born?
    ? When was $n born?
    ? What is the year of birth of $n?
    - Who was born first, $a or $b?
    - Which of the two was born earlier, $a or $b?
    + Who was born later, $a or $b?

    birthplace | place born | 92
    ? Where was $n born?
    ? In which town or village was $n born?
    ? What is the birthplace of $n?
    > the place where $n was born
    > the birthplace of $n

    death_year | year died | 100
    ? In which year did $n die?
    ? When did $n die?
    - Who died first, $a or $b?
    + Who died later, $a or $b?

    death_place | place died | 70
    ? Where did $n die?
    ? In which place did $n die?
    > the place where $n died

    parent | child of which parent | 75
    ? Whose $child was $n?
    ? As whose $child did $n grow up?
    ? What was the trade of the parent whose $child $n was?

    teacher | teacher taught by | 80
    ? Who taught $n?
    ? Who was the teacher of $n?
    ? Under which teacher did $n learn as a pupil?
    > the teacher of $n
    > the person who taught $n

    studied | place of study, went to study | 55
    ? Where did $n spend $his years of study?
    ? In which town did $n study?

    left_because | reason for leaving home | 55
    ? Why did $n leave home?
    ? For what reason did $n leave home?
    ? What made $n leave home?

    spouse | married to | 65
    ? Whom did $n marry?
    ? To whom was $n married?
    ? Which person was married to $n?

    known_for | best known for | 100
    ? What is $n best known for?
    ? For what is $n best known today?
    > the work for which $n is best known

    nickname | nickname | 55
    ? What was the nickname of $n?
    ? By what nickname was $n known?
    ? Which nickname did people give to $n?

    collected | collection | 60
    ? What did $n collect?
    ? What objects did $n collect?

    pet | animal kept at home | 45
    ? Which animal was kept by $n at home?
    ? Which animal kept $n company at home?

    prize | prize awarded | 50
    ? Which prize was awarded to $n?
    ? What prize did $n receive?

    friend | wrote letters to | 65
    ? To whom did $n write letters?
    ? Who received the letters that $n wrote?
    > the person to whom $n wrote letters

    death_cause | cause of death | 60
    ? What was the cause of the death of $n?
    ? What did $n die of?

    burial | buried, grave | 50
    ? Where is $n buried?
    ? Where is the grave of $n?
""")

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


def _derive(person: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
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


PERSON = KindSpec(_RELATIONS, PERSON_PAGE, _derive)
