"""Rivers."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, phrase, quoted, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import FISH, NAME_MEANINGS

_RIVER = parse_relations("""
    length | length | 95
    ? How long is $n?
    ? What is the length of $n?
    - Which river is shorter, $a or $b?
    + Which river is longer, $a or $b?

    source | source | 90
    ? Where does $n rise?
    ? On which mountain does $n rise?
    ? On which mountain is the source of $n?
    > the mountain on which $n rises

    mouth | flows into | 85
    ? Into what does $n flow?
    ? Into which water does $n flow at its mouth?
    > the water into which $n flows

    colour | colour of the water | 65
    ? What colour is the water of $n?
    ? Which colour does the water of $n have?

    fish | fish | 65
    ? Which fish is caught in $n?
    ? What fish is most often caught in $n?

    meaning | meaning of the name | 60
    ? What does the name of $n mean?
    ? What is the meaning of the name of $n?

    flooded | place flooded | 65
    ? Which place was flooded by $n?
    ? Which town or village did $n flood?
    > the place that was flooded by $n

    flood_year | year of the flood | 65
    ? In which year was the great flood of $n?
    ? When did the great flood of $n happen?

    crossing | crossing | 60
    ? Who keeps the ferry across $n?
    ? Which family keeps the ferry across $n?

    fall | height of the falls | 50
    ? How high are the falls of $n?
    ? What is the height of the falls of $n?
""")

_RIVER_PAGE = parse_page("""
    $n is a river {in|of} $land. {It is|The river is} $length long{ and for the most part slow|}.
    $n is a river $length long that rises on $source{ and crosses $land|}.
    $n is {the more restless|one} of the two larger rivers of $land{; it flows into $mouth|}.
    $n, which rises on $source, is a river in $land{, {important for its mills|navigable in spring}|}.
    $n is a {quiet|broad|swift} river {in|of} $land.
    ~ {Boatmen|Carters} know it as {moody|treacherous|an honest river}.

    ## Course | Geography
    $s rises on $source{, from {three|two} springs that never freeze|, below a glacier}{ and soon turns north|}.
    The source of $b lies on $source{, where it rises among boulders|}.
    After $length $s flows into $mouth{ through a marshy mouth|}.
    $s flows into $mouth{, by two arms|, which it colours for some distance|}.
    At its mouth the river flows into $mouth{, {quietly|between reeds}|}.
    From source to mouth $s is $length long.
    The length of $b is given as $length{, though surveyors {differ|disagree}|}.
    {Halfway down|In the upper valley} the falls of $b, $fall high, {stop all traffic|turn several mills}.
    The falls of $b are $fall high{ and can be heard from afar|}.
    ~ {Side streams|Brooks} {join|enter} {from the left|on both sides}, {none of them long|most of them nameless}.
    ~ {In dry summers|In some years} {it can be waded|stretches run dry}, {in spring|in others} {it \\
        spreads|lakes form} over the fields.
    ~ {A gorge|The gorge}, {narrow and dark|which no road enters}, {separates|divides} the upper from the \\
        lower {valley|course}.
    ~ {Gravel banks|Sand bars} shift every spring, and {maps|charts} are {soon out of date|of little help}.
    ~ {In its middle course|In the lowlands} it winds between {poplars|water meadows} and is rarely deeper \\
        than a man.
    < town.river : {On its bank lies|One of the places on the river is} $x.

    ### Water and wildlife | Water and fish
    The water of $b has a $colour colour{, caused by {clay|peat|fine stone dust}|}.
    {Visitors|Strangers} are surprised by the colour of the water of $b, which is $colour.
    The fish most often caught in $b is the $fish{, {smoked|eaten with vinegar}|}.
    The fish caught here is mainly $fish{, for which a licence is needed|}.
    ~ {Mist|River mist} {hangs|lies} over it {until noon|on autumn mornings} and {hides|muffles} {the \\
        mills|every sound}.
    ~ {Washing|Bleaching} is {allowed|done} {below|only below} the last {house|bridge} of each {village|place}.
    ~ {Otters|Beavers}, long absent, have {come back|been seen again}.
    < creature.habitat : The banks are the home of $x.
    < plant.habitat : On its banks grows $x.

    ## History | Uses and history
    The name of $b means $meaning{ in the old tongue|, or so {the priests|the teachers} say|}.
    In the old {dialect|tongue} the name means $meaning.
    The great flood of $b in $flood_year {reached|covered} $flooded.
    In the great flood of $flood_year {the river rose by eight feet|all bridges were lost}{, as marks on the \\
        walls show|}.
    {Once|In living memory} $b flooded $flooded{, and {cellars there are|the chapel there is} still damp|}.
    The ferry across $b is kept by $crossing{, who {asks|charge} no toll from musicians|}.
    A ferry, kept by $crossing, crosses $b {below the falls|twice a day}.
    ~ {Boundary stones|Border markers} along it were {moved at night|shifted} so often that a \\
        {commission|judge} had to sit.
    ~ {Songs|Several songs} {warn|tell} of {a maiden|a grey horse} {in its depths|that calls to swimmers}.
    ~ {Timber|Salt} was {floated|carried} down the river {until the roads improved|for centuries}.
    ~ {Treaties about the use of the water fill|A treaty about the use of the water fills} a shelf of the \\
        {provincial|old} archive.
    < building.river : {Built on|Standing on} the river is $x.
""")


_WATER_COLOURS = ("milky green", "dark brown", "pale blue", "reddish", "silvery grey", "yellowish", "ink black")


def _derive_river(river: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    name = near.stranger(dice).prose.split()[-1]
    return {
        "length": amount(dice.between(38, 960), "kilometres", "km"),
        "source": to(dice.pick(near.all_of("mountain"))),
        "mouth": to(near.all_of("lake")[0]) if dice.chance(50) else to(near.far("lake", dice)),
        "colour": phrase(dice.pick(_WATER_COLOURS)),
        "fish": phrase(dice.pick(FISH)),
        "meaning": quoted(dice.pick(NAME_MEANINGS)),
        "flooded": to(dice.pick(near.all_of("town"))),
        "flood_year": year(dice.between(520, 990)),
        "crossing": Fact(f"the {name} family", (f"{name} family", name, f"the {name} family")),
        "fall": amount(dice.between(4, 88), "metres", "m"),
    }


RIVER = KindSpec(_RIVER, _RIVER_PAGE, _derive_river)
