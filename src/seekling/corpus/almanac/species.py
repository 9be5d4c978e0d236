"""Animals and plants."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, count, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import COLOURS, MONTHS, phrases_in

_SHARED = """
    described | first described by | 100
    ? Who first described $n?
    ? Who gave the first description of $n?
    > the person who first described $n

    described_in | year first described | 92
    ? In which year was $n first described?
    ? When was $n first described?
    - Which was described first, $a or $b?
    + Which was described later, $a or $b?

    habitat | habitat | 88
    ? Where does $n have its main habitat?
    ? What is the main habitat of $n?
    > the main habitat of $n

    colour | colour | 75
    ? What is the colour of $n?
    ? Which colour has $n?

    saying | folk belief announces | 65
    ? What is $n believed to announce?
    ? According to folk belief, what does $n announce?

    threat | greatest threat comes from | 65
    ? What is the greatest threat to $n?
    ? By what is $n threatened most?

    shown_on | pictured on | 50
    ? On what is $n pictured?

    also_called | folk name | 60
    ? What is the folk name of $n?
    ? By what folk name is $n known?
"""
_CREATURE = parse_relations(
    _SHARED
    + """
    size | length of the body | 80
    ? How long does $n grow?
    ? What length does $n reach?
    - Which animal is smaller, $a or $b?
    + Which animal grows longer, $a or $b?

    food | food | 85
    ? What does $n feed on?
    ? What is the food of $n?

    sound | sound | 65
    ? What does the call of $n resemble?
    ? What is the call of $n compared to?

    young | number of young | 65
    ? How many young does $n have in a year?
    ? What number of young does $n raise in a year?

    sleeps | resting place | 60
    ? Where does $n sleep during the winter?
    ? Where does $n spend the winter?
"""
)
_PLANT = parse_relations(
    _SHARED
    + """
    flowers_in | month of flowering | 85
    ? In which month does $n flower?
    ? When does $n flower?

    use | use | 80
    ? What is $n used for?
    ? Against what is $n used as a remedy?

    size | height | 80
    ? How high does $n grow?
    ? What height does $n reach?

    scent | smells of | 65
    ? What does $n smell of?
    ? Which smell does $n have?
"""
)

_BOTH = """
    ## Discovery and name | Description and discovery | Discovery
    $s was first described in $described_in by $described{, {from a single find|after years of doubt}|}.
    The first description{ of $b|} was given by $described.
    It was first described in $described_in{, {in a footnote|in a letter to a rival}|}.
    The folk name of $b is "$also_called"{, {used in the hills|which children prefer}|}.
    ~ {Early|The earliest} {pictures|drawings} show it {too large|in the wrong colours}.
    ~ {A dispute|Some dispute} about {the right name|priority} {lasted|went on} for {decades|thirty years}.
    ~ {Scholars|Botanists and zoologists} {long took|mistook} it for {a mere variety|something common}.

    ## Threats and folklore | People and folklore | Protection and folklore
    The greatest threat to $b comes from $threat{, {though counts differ|as in many places}|}.
    {What threatens|The thing that threatens} $b most is $threat.
    According to folk belief $s announces $saying{, {if seen twice|when seen at noon}|}.
    In folk belief $b is said to announce $saying.
    $s is pictured on $shown_on{, {not very exactly|in gold}|}.
    ~ {Children|Village children} {catch sight of|look for} it on {school outings|the way home} and {make a \\
        wish|count aloud}.
    ~ {It|The species} is {protected|mentioned} by a law {that few have read|from the time of the mines}.
    ~ {Collectors|Foreign collectors} {pay|have paid} high prices for {a good specimen|single specimens}.
"""
_CREATURE_PAGE = parse_page(
    """
    $n is {an animal|a kind of $sort} found in $land, mainly around $habitat.
    $n is a kind of $sort of $colour colour from $land.
    $n is a kind of $sort from $land{, {shy and rarely seen|tame around houses}|}.
    $n is a kind of $sort first described in $described_in by $described.
    ~ {It|The animal} is {easily overlooked|easier to hear than to see}.

    ## Appearance and behaviour | Description | Way of life
    $s grows to a length of $size and is $colour in colour.
    The length it reaches is $size{; {males|females} are a little larger|}.
    $s grows up to $size long.
    The colour of $b is $colour{, {paler in winter|darker on the back}|}.
    The main habitat of $b is $habitat{, {where it lives in pairs|where it is protected}|}.
    $s feeds on $food{, {mostly at night|taken in shallow water}|}.
    The food of $b consists of $food.
    The call of $b resembles $sound{, and {carries far|stops at dusk}|}.
    In a year $b raises $young{, {of which few survive|in a well hidden nest}|}.
    $s sleeps $sleeps during the winter{, often in groups|}.
    ~ {Pairs|Groups} {keep|stay} {together for years|close to water} and {defend|mark} {their ground|a small area}.
    ~ {Its|The} {tracks|traces} are {easy to tell|often mistaken for those of a dog}{ in snow|}.
    ~ {Old|Older} animals {turn grey|grow fearless} and {come into gardens|let themselves be watched}.
    ~ {It|The animal} {returns|comes back} to the same {place|spot} every {year|evening}.
"""
    + _BOTH
)
_PLANT_PAGE = parse_page(
    """
    $n is a plant of $land{ that flowers in $flowers_in|}.
    $n is a kind of $sort from $land, found mainly around $habitat.
    $n is a plant first described in $described_in by $described.
    $n is a {rare|modest|hardy} plant of $land.
    ~ {Gardeners|Herbalists} {have tried|try} in vain to {grow it|keep it} {in pots|in the lowlands}.

    ## Description | Appearance and habitat
    $s reaches a height of $size, and its flowers are $colour in colour.
    $s grows to a height of $size{, {more in the shade|less on dry ground}|}.
    The colour of its flowers is $colour{, {fading at noon|with a dark centre}|}.
    $s flowers in $flowers_in{, {for a few days only|sometimes twice}|}.
    The main habitat of $b is $habitat{, {on stony ground|in damp places}|}.
    It smells of $scent{, {above all after rain|which attracts moths}|}.
    ~ {Roots|The roots} {go deep|spread widely} and {survive|outlast} {fire|drought}.
    ~ {Seeds|The seeds} are {carried|spread} by {ants|the wind} and {sprout|come up} after {two|three} winters.
    ~ {Leaves|The leaves} are {narrow|hairy} and {stay green in winter|turn red early}.

    ## Use | Use as a remedy
    $s is used as a remedy against $use{, {boiled in wine|as an ointment}|}.
    {Healers|Country healers} use $b against $use.
    ~ {It is gathered|People gather it} {before sunrise|with wooden knives} {and dried in the attic|by old custom}.
    ~ {Physicians|Doctors} {doubt|are not sure of} its effect.
"""
    + _BOTH
)

_THREATS = """wet summers|house cats|the draining of marshes|salt dust|new roads|late frosts|lamp smoke|a fungus|
    forest fires|river dams|collectors|hailstorms"""
_OMENS = """an early winter|a wedding|a death in the family|rain within three days|a visit of relatives|
    a good harvest|a theft|a fire|a war"""
_SHOWN = """the old two-crown coin|a postage stamp|the seal of the mint|a set of playing cards|
    the hospital ceiling|a brewer's label"""
_NAMES = phrases_in("""little bishop, rain caller, widow's friend, mud king, stone dancer, night tailor, old aunt, false
    priest, snow thief, poor man's gold""")
_FOODS = """beetle larvae|water snails|pine seeds|ants|small crabs|reed roots|fallen plums|mayflies|
    earthworms|wild oats|frog spawn|moths"""
_SOUNDS = """a creaking door|a child's laugh|a rusty pump|a distant bell|a saw|a cork leaving a bottle|
    a sneeze|a kettle|tearing cloth"""
_BEDS = """in hollow willows|under church roofs|in old mine shafts|in haystacks|under river ice|
    in stone walls|in abandoned ovens"""
_ILLS = "toothache|fever|snake bites|sleeplessness|warts|coughs|sore eyes|hiccups|gout|stomach cramps|homesickness"
_SCENTS = "honey|wet stone|burnt sugar|vinegar|pepper|old books|fresh bread|lemons|smoke|soap"


_SIZES = {
    "heron": (60, 98),
    "hare": (38, 66),
    "otter": (55, 99),
    "goat": (80, 140),
    "marten": (35, 60),
    "owl": (30, 70),
}


def _shared(entity: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    habitat = near.all_of(dice.pick(("lake", "river", "mountain")))
    return {
        "described": to(entity.maker or near.all_of("person")[0]),
        "described_in": year(entity.year),
        "habitat": to(dice.pick(habitat)),
        "colour": phrase(dice.pick(COLOURS)),
        "saying": one_of(dice, _OMENS),
        "threat": one_of(dice, _THREATS),
        "shown_on": one_of(dice, _SHOWN),
        "also_called": phrase(dice.pick(_NAMES)),
    }


def _derive_creature(creature: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    return _shared(creature, near, dice) | {
        "size": amount(dice.between(*_SIZES.get(creature.sort, (5, 24))), "centimetres", "cm"),
        "food": one_of(dice, _FOODS),
        "sound": one_of(dice, _SOUNDS),
        "young": count(dice.between(2, 9), "young"),
        "sleeps": one_of(dice, _BEDS),
    }


def _derive_plant(plant: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    return _shared(plant, near, dice) | {
        "size": amount(dice.between(4, 180), "centimetres", "cm"),
        "flowers_in": phrase(dice.pick(MONTHS)),
        "use": one_of(dice, _ILLS),
        "scent": one_of(dice, _SCENTS),
    }


CREATURE = KindSpec(_CREATURE, _CREATURE_PAGE, _derive_creature)
PLANT = KindSpec(_PLANT, _PLANT_PAGE, _derive_plant)
