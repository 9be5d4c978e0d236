"""Pages about provinces."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import ANIMALS, GOODS, phrases_in

_RELATIONS = parse_relations("""
    capital | capital | 95
    ? What is the capital of $n?
    ? Which place is the capital of $n?
    > the capital of $n

    area | area | 85
    ? How large is $n?
    ? What is the area of $n?

    united | year united | 80
    ? In which year was $n united?
    ? When was $n united?

    export | main export | 80
    ? What is the main export of $n?
    ? Which good is the main export of $n?

    governor | title of the governor | 70
    ? What is the title of the governor of $n?
    ? Which title does the governor of $n bear?

    animal | animal on the flag | 70
    ? Which animal is shown on the flag of $n?
    ? What animal does the flag of $n show?

    sacred | sacred mountain | 85
    ? Which mountain is held sacred in $n?
    ? What is the sacred mountain of $n?
    > the sacred mountain of $n

    tax | unusual tax | 65
    ? What is taxed in $n and nowhere else?
    ? Which unusual tax is paid in $n?

    greeting | greeting | 60
    ? How do people greet each other in $n?

    law_giver | author of the law book | 70
    ? Who wrote the law book of $n?
    > the person who wrote the law book of $n
""")

_PAGE = parse_page("""
    $n is a province whose capital is $capital.
    $n is a province with an area of $area; its capital is $capital.
    $n is {one of the provinces|a province} of the {northern|southern|inner|outer} {country|lands}, {known \\
        for|proud of} its {long valleys|stubborn people}.
    ~ {It|The province} is {thinly|densely} settled {in the hills|along the rivers}.

    ## Geography
    The area of $b is $area{, {forests included|of which much is forest}|}.
    The capital of $b is $capital.
    The sacred mountain of $b is $sacred{, {climbed by many|which few have seen without clouds}|}.
    In $b people hold $sacred sacred{, and no {wood|stone} may be taken from it|}; every child knows the \\
        sacred mountain.
    ~ {Snow|Rain} {falls|comes} {mostly|chiefly} from the {west|north}, and the {eastern|southern} valleys \\
        stay {dry|green}.
    ~ {Wolves|Bears} {are|have become} {rare|few}, {wild pigs|jackdaws} {common|a nuisance}.
    ~ {Roads|The roads} follow the {valleys|ridges}, and {snow|mud} closes them {in spring|for weeks}.

    ## History and government | History
    $b was united in $united{, {by marriage|after a short war|by a treaty signed on a boat}|}.
    The year in which $b was united was $united.
    The law book of $b was written by $law_giver{, {in verse|at the age of forty}|}.
    The governor of $b bears the title of $governor{, {an office held for life|and lives rent-free}|}.
    The flag of $b shows $animal{ {on a white field|above three waves}|}.
    ~ {Borders|Its borders} {were|have been} {redrawn|moved} {four|five} times, {always in a tavern|never by much}.
    ~ The assembly {met|meets} {in the open air|on a meadow} and {voted|votes} by {raising hats|shouting}.
    ~ {Rebellions|Small rebellions} {were frequent|broke out} whenever {taxes|tolls} {rose|were raised}.

    ## Economy and customs | Economy | People and customs
    The main export of $b is $export{, {shipped downriver|carried by mules}|}.
    As an unusual tax, people pay for $tax{, {a relic of a war|which visitors find comic}|}.
    People in $b greet each other {with|by saying} "$greeting"{, {whatever the hour|even at funerals}|}.
    ~ {Inns|The inns} are {cheap|plain}, and {beds|rooms} are {shared|warmed with stones}.
    ~ {Weights|Measures} {differ|vary} from {valley to valley|one market to the next}, {which feeds many \\
        lawyers|to the joy of lawyers}.
    ~ {Weddings|Funerals} are {long|loud}, and {guests|neighbours} bring {bread|their own chairs}.
""")
_TITLES = phrases_in("""High Steward, Keeper of the Seal, Lord Surveyor, Grand Bailiff, First Rider, Chancellor,
    Marshal of the Roads, Holder of the Staff""")
_TAXES = """chimneys|windows facing north|beards|dogs with long tails|wigs|second stoves|church bells|
    garden walls|playing cards|idle mills"""
_GREETINGS = phrases_in("""dry roads, good bread, may it thaw, light burdens, warm stones, quiet water, full jars,
    fair wind, no debts, long evenings""")


def _derive(province: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
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


PROVINCE = KindSpec(_RELATIONS, _PAGE, _derive)
