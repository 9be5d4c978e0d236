"""Mountains and lakes."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, one_of, phrase, quoted, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import ANIMALS, FISH, MONTHS, NAME_MEANINGS, ORES, STONES

_MOUNTAIN = parse_relations("""
    height | height | 95
    ? How high is $n?
    ? What is the height of $n?
    - Which mountain is lower, $a or $b?
    + Which mountain is higher, $a or $b?

    first_climber | first climbed by | 80
    ? Who was the first to climb $n?
    ? Who first reached the summit of $n?
    > the first person to climb $n
    > the person who first reached the summit of $n

    climbed | year of the first ascent | 80
    ? In which year was $n first climbed?
    ? When was the first ascent of $n?
    - Which mountain was climbed first, $a or $b?
    + Which mountain was climbed later, $a or $b?

    rock | rock | 65
    ? Which rock does $n consist of?
    ? Of what rock is $n made?

    ore | mineral mined | 65
    ? What was mined on $n?
    ? Which mineral was mined on $n?

    meaning | meaning of the name | 60
    ? What does the name of $n mean?
    ? What is the meaning of the name of $n?

    hut | refuge | 55
    ? What is the name of the refuge on $n?
    ? What is the refuge on $n called?

    legend | creature of the legend | 60
    ? Which animal lives inside $n according to legend?
    ? According to legend, which animal sleeps under $n?

    seen_from | best view | 55
    ? From which place is $n best seen?
    ? Which place offers the best view of $n?
    > the place from which $n is best seen
""")

_MOUNTAIN_PAGE = parse_page("""
    $n is a mountain in $land, $height high.
    $n is a mountain of $rock in $land{, visible from afar|}.
    $n is a mountain in $land, best seen from $seen_from.
    $n ($height) is a mountain in $land{ with {two summits|a flat top}|}.
    $n is a {solitary|broad} mountain in the {north|south|east|west} of $land.
    ~ {Its|The} shape has been compared to {a loaf|a saddle|a sleeping animal|an upturned boat}.
    ~ {Painters|Shepherds} {love|respect} it, {map makers|surveyors} {less so|do not}.

    ## Geography | Situation and shape
    $s rises to a height of $height{; {snow lies until early summer|the summit is usually in cloud}|}.
    The height of $b was {measured|fixed} at $height{ after a long dispute|}.
    $s consists {mainly|almost entirely} of $rock{, which {weathers to needles|breaks into slabs}|}.
    The rock of the mountain is $rock.
    It is best seen from $seen_from{, {on clear evenings|in early spring}|}.
    The best view of $b is had from $seen_from.
    ~ {Clouds|Storms} {gather|form} {early in the day|without warning}, and {shepherds|guides} {read|watch} \\
        them {closely|like a clock}.
    ~ {Two|Three} ridges {meet|join} {near the top|at a stone man}, {the longest|the sharpest} of which \\
        {points|runs} to the {south|east}.
    ~ {Meadows|Alpine meadows} {reach|climb} {high up|to the rocks}, {dotted|scattered} with {huts|hay barns}.
    ~ {Screes|Fields of boulders} cover the {northern|western} side, {pine woods|larches} the other.
    ~ {A small glacier|A tarn} {lies below|hides under} the summit{ and shrinks every year|, fed by snow}.
    < river.source : {Here|On its slopes} rises $x.
    < plant.habitat : The slopes are known for $x, which grows here.
    < creature.habitat : $x lives on its {upper|lower} slopes.

    ### Mining | Mines and minerals
    On $b {they mined|people mined} $ore{ for {two|three} centuries|, with little profit}{ until the shafts \\
        filled|}.
    For {generations|a long time} $ore was mined on $b{; {seven|eleven} galleries remain|}.
    ~ {The old galleries|Most galleries} are {closed|flooded} and {said to be haunted|home to bats}.

    ## Climbing | Ascents | Climbing history
    $b was first climbed in $climbed by $first_climber{, {alone|with a guide}|}.
    The first to climb $b was $first_climber{, who {left a coin|planted a flag} on the summit|}.
    The first ascent of $b {was made|took place} in $climbed{, in {thick fog|sandals}|}.
    It was $first_climber who first reached the summit{ of $b|}.
    The refuge on $b is called $hut{, and sleeps {twelve|twenty}|}.
    Climbers {spend the night|rest} at the refuge, which has the name $hut.
    ~ {Ropes|Iron rungs} {help over|secure} the {worst|steepest} {places|wall}, {though some are loose|since \\
        an accident}.
    ~ A {book|tin box} {at|on} the summit {holds|contains} {the names of visitors|signatures and bad poems}.
    ~ {Several|Two} earlier attempts failed {because of the weather|at the last wall}.
    ~ The {usual|easiest} path takes {a long day|five hours} and asks for {good shoes|a head for heights}.

    ## Name and legends | Legends
    The name of $b means $meaning{ in the old tongue|}.
    {Linguists|Scholars} explain the name of $b as $meaning, {which fits|though few agree}; that at least is \\
        its usual meaning.
    {According to legend|Legend says that} $legend {sleeps|lives} inside $b{ and {turns|stirs} once in a century|}.
    According to legend $legend sleeps under the mountain{, guarding {a bell|a well}|}.
    ~ {Fires|Bonfires} are {lit|seen} on its {shoulder|ridge} {at midsummer|on the longest night}.
    ~ {Hermits|A hermit} {lived|is said to have lived} {near the spring|in a cave} and {sold|gave away} \\
        {advice|honey}.
    ~ {Until recently|For a long time} {nobody whistled|it was forbidden to whistle} on its slopes.
""")


def _derive_mountain(mountain: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    people = near.all_of("person")
    climber = dice.pick([people[4], people[5], people[6]])
    return {
        "height": amount(dice.between(640, 4980), "metres", "m"),
        "first_climber": to(climber),
        "climbed": year(dice.between(climber.birth + 20, climber.birth + 42)),
        "rock": phrase(dice.pick(STONES[:6])),
        "ore": phrase(dice.pick(ORES)),
        "meaning": quoted(dice.pick(NAME_MEANINGS)),
        "hut": phrase(f"{near.stranger(dice).prose.split()[-1]} {dice.pick(('Hut', 'House', 'Shelter', 'Rest'))}"),
        "legend": phrase(dice.pick(ANIMALS)),
        "seen_from": to(dice.pick(near.all_of("town"))),
    }


_LAKE = parse_relations("""
    area | area | 90
    ? How large is $n?
    ? What is the area of $n?
    - Which lake is smaller, $a or $b?
    + Which lake is larger, $a or $b?

    depth | depth | 85
    ? How deep is $n?
    ? What is the greatest depth of $n?
    - Which lake is less deep, $a or $b?
    + Which lake is deeper, $a or $b?

    island | island | 75
    ? What is the name of the island in $n?
    ? Which island lies in $n?

    fish | fish | 70
    ? Which fish is caught in $n?
    ? What fish do people catch in $n?

    frozen | month of freezing | 65
    ? In which month does $n freeze?
    ? When does $n freeze over?

    shore | place on the shore | 80
    ? Which place lies on the shore of $n?
    ? Which town or village lies on the shore of $n?
    > the place on the shore of $n

    monster | sighted animal | 60
    ? What was sighted in $n?
    ? What did witnesses sight in $n?

    monster_year | year of the sighting | 60
    ? In which year was there a famous sighting in $n?
    ? When was the famous sighting in $n?

    depth_by | who measured the depth | 60
    ? Who measured the depth of $n?
    > the person who measured the depth of $n
""")

_LAKE_PAGE = parse_page("""
    $n is a lake in $land with an area of $area.
    $n is a lake in $land{, {long and narrow|nearly round}|}; $shore lies on its shore.
    $n is a {quiet|deep|cold} lake in $land.
    ~ {Its|The} water is {clear|soft} and {famously cold|good for dyeing}.

    ## Geography | Shores and water
    The area of $b is $area{, {less|more} after a wet winter|}.
    $s has an area of $area and a greatest depth of $depth.
    The greatest depth of $b is $depth{, near the {eastern|northern} shore|}.
    The depth of $b was measured by $depth_by{ with {a bell on a rope|lead lines}|}.
    It was $depth_by who measured the depth{, from a raft|}.
    On the shore of $b lies $shore{, {and some boathouses|among reeds}|}.
    $shore lies on the shore{ of $b|}.
    An island{ in the lake|}, called $island, {belongs to fishermen|is left to the birds}.
    The only island in $b {bears the name|is named} $island.
    ~ A sudden wind rises {around noon|before storms} and has {sunk|surprised} many {boats|crews}.
    ~ {The bottom|Its bed} {falls away|drops} {steeply|in steps}, {as divers report|and anchors do not hold}.
    ~ {Reeds|Alders} {line|hide} most of the shore{, so that it is best seen from a boat|}.
    < river.mouth : $x flows into the lake.
    < creature.habitat : The reeds are the home of $x.
    < plant.habitat : On its shores grows $x.

    ## Life on the lake | Fishing and ice
    The fish caught in $b is {above all|mainly} the $fish.
    People catch $fish in $b{, {at night, by lamp|with long nets}|}; it is the fish of the poor.
    $s usually freezes in $frozen{, and {carts|sledges} cross it|}.
    In $frozen, when $b freezes, {a market is held on the ice|the ferries stop}.
    ~ {Fishing rights|Rights to the reeds} are {inherited|drawn by lot} and {jealously guarded|never sold}.
    ~ {Boats|The boats} are {flat|black} and {tarred|painted} {each spring|by the children}.
    ~ {Swimming|Bathing} was {forbidden|thought unhealthy} until {recently|a generation ago}.

    ## The sighting | Stories
    In $monster_year there was a famous sighting in $b: witnesses {swore|said} they had seen $monster.
    The famous sighting of $monster_year {brought|drew} {crowds|journalists} to the lake.
    Witnesses sighted $monster in $b{, {probably a log|never explained}|}.
    ~ {Postcards|Carved figures} are {still sold|on sale} {at the landing|in the inn}.
    ~ {An inquiry|A commission} {heard|questioned} {thirty|forty} people and {came to no result|went home}.
""")


def _derive_lake(lake: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    sights = "a black hump|a floating lantern|a giant eel|a white bull|a sunken bell tower|a headless swan"
    isle = near.stranger(dice).prose.split()[-1]
    return {
        "area": amount(dice.between(3, 640), "square kilometres", "km²"),
        "depth": amount(dice.between(5, 390), "metres", "m"),
        "island": Fact(f"{isle} Island", (f"{isle} Island", isle)),
        "fish": phrase(dice.pick(FISH)),
        "frozen": phrase(dice.pick(MONTHS)),
        "shore": to(dice.pick(near.all_of("town"))),
        "monster": one_of(dice, sights),
        "monster_year": year(dice.between(700, 990)),
        "depth_by": to(near.all_of("person")[dice.pick((5, 6, 12))]),
    }


MOUNTAIN = KindSpec(_MOUNTAIN, _MOUNTAIN_PAGE, _derive_mountain)
LAKE = KindSpec(_LAKE, _LAKE_PAGE, _derive_lake)
