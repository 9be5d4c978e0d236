"""Towns and villages."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import ANIMALS, PERILS, STONES, WEEKDAYS

_RELATIONS = parse_relations("""
    population | population, inhabitants | 92
    ? How many people live in $n?
    ? What is the population of $n?
    ? How many inhabitants does $n have?
    - Which place has fewer inhabitants, $a or $b?
    + Which place has more inhabitants, $a or $b?
    + Which has the larger population, $a or $b?

    founded | year founded | 90
    ? In which year was $n founded?
    ? When was $n founded?
    - Which place was founded first, $a or $b?
    - Which is the older place, $a or $b?
    + Which place was founded later, $a or $b?

    founder | founder, founded by | 65
    ? Who founded $n?
    ? Who was the founder of $n?
    ? By whom was $n founded?

    river | river | 80
    ? On which river does $n lie?
    ? Which river flows through $n?
    > the river on which $n lies
    > the river that flows through $n

    product | known for which product | 85
    ? For which product is $n known?
    ? What product is $n known for?
    ? Which product made $n known?

    altitude | altitude | 60
    ? At what altitude does $n lie?
    ? How high above the sea does $n lie?
    - Which place lies lower above the sea, $a or $b?
    + Which place lies higher above the sea, $a or $b?

    emblem | animal in the coat of arms | 70
    ? Which animal is shown in the coat of arms of $n?
    ? What animal does the coat of arms of $n show?

    stone | old houses built of | 60
    ? What are the old houses of $n built of?
    ? Of which material are the old houses of $n built?

    peril | what destroyed a large part | 75
    ? What destroyed a large part of $n?
    ? Which disaster destroyed much of $n?

    peril_year | year a large part was destroyed | 80
    ? In which year was a large part of $n destroyed?
    ? When was much of $n destroyed?

    head | title of the head of the town | 55
    ? What is the title of the head of the council of $n?
    ? What title does the head of the council bear in $n?

    market | market day | 55
    ? On which day is the market of $n held?
    ? What is the market day of $n?

    twin | treaty of friendship with | 60
    ? With which town has $n a treaty of friendship?
    ? Which town is bound to $n by a treaty of friendship?

    road_from | start of the road | 65
    ? From which place does the old road lead to $n?
    ? In which place does the old road to $n begin?
    > the place where the old road to $n begins

    library | museum | 50
    ? What is the museum of $n devoted to?
    ? To what is the museum of $n devoted?
""")

_PAGE = parse_page("""
    $n is a $sort {in|of} $land, on $river, known for its $product.
    $n is a $sort in $land{ with $population inhabitants|}.
    $n is a $sort in $land. {It|The place} is known {above all|chiefly|mainly} for its $product.
    $n, a $sort in $land, is {best known|known} for its $product{ and for little else|, as every traveller is \\
        told|}.
    The $sort of $n lies in $land{, a day's walk from the nearest harbour|, off the main road|}.
    ~ {Travellers|Guidebooks} tend to {mention it in passing|confuse it with places of similar name}.
    ~ {Its|The} inhabitants are said to be {thrifty|talkative|hard to impress|fond of lawsuits}.

    ## Geography | Situation | Location and landscape
    $s lies on $river{, which {turns two mills here|is crossed here by a ferry}|}.
    $s lies on $river, at an altitude of $altitude above the sea.
    $s lies at an altitude of $altitude above the sea{, which keeps the summers cool|, on a broad terrace|}.
    $river flows through $b{ and divides it into two unequal halves|, between banks of willow|}.
    An old road leads to $b from $road_from{, half a day away|, over a low pass|}.
    The old road that leads from $road_from ends {at the south gate|on the main square} of $b.
    ~ [mining] {Spoil heaps|Old shafts} {surround|mark} the {upper|eastern} end, and {cellars|gardens} \\
        {sink|subside} {now and then|without warning}.
    ~ [fishing river port] {Nets|Boats} {dry|lie} on every {wall|landing} {in fair weather|except on feast days}.
    ~ [hill] {Stairs|Steep lanes} {replace|take the place of} streets, and {mules|porters} {that|who} of carts.
    ~ [spa] {Warm|Sulphurous} springs {rise|come up} {below the square|in four places} and {smell|steam} in winter.
    ~ [farming] {Barns|Haystacks} {outnumber|are more numerous than} houses, and {lanes|paths} end in fields.
    ~ [walled] {The ring|A double ring} of walls {keeps out|holds off} the wind{ and most of the light|, if \\
        nothing else}.
    ~ {Water|Drinking water} comes from {nine|six} public wells, {each|every one} with a {name|guardian} of its own.
    ~ {Storks|Swallows} {nest|return} {early|in great numbers}, which is {taken as a good sign|noted in a book}.
    ~ {Orchards|Hop gardens|Terraced fields} {reach down|come close} to the first houses.
    ~ {Fog is common|Winters are long} and {springs are late|the summers are short}, but the {soil is \\
        good|air is dry}.
    ~ {Behind the last houses|To the west} the land rises {steeply|gently} towards {a wooded ridge|bare hills}.

    ### Townscape | Buildings | Streets and houses
    The old houses of $b are built of $stone, {with steep roofs|with painted shutters|three storeys high at most}.
    Most {old houses|of the old houses} in $b are built of $stone{, which was carried here by boat|}.
    The museum of $b is devoted to $library{; it opens {on request|twice a week}|}.
    A small museum{ near the market|} is devoted to $library.
    ~ {House numbers|Street names} were {introduced|changed} {against resistance|late}, and {few|not all} \\
        {use|know} them.
    ~ {A clock|The clock} on the {council house|granary} {has|shows} {one hand only|the wrong hour on purpose}.
    ~ Fires and {new roads|wide carts} have spared the {old centre|inner lanes}, {almost by accident|so far}.
    ~ {Two|Three} of the {four|five} gates are {still standing|preserved}{, though one leans|}.
    ~ {Arcades|Covered stairs} {run along|surround} the main square.
    < building.town : {One landmark is|A landmark is} $x{, {built|completed} in $x_year|}.

    ## History | Past
    $b was founded in $founded by $founder{, who is honoured with a fountain|, if the chronicle is right|}.
    $b was founded in $founded{ as {a toll post|a shelter for drovers|a camp for salt carriers}|}.
    {The founder|The founder of $b} is said to have been $founder{, about whom nothing else is known|}.
    {Tradition|The chronicle} names $founder as the person who founded $b.
    In $peril_year a large part of $b was destroyed by $peril{, and rebuilding took {a decade|twelve years}|}.
    In $peril_year $b was struck by $peril, which destroyed a large part of it.
    The worst year of $b was $peril_year, when $peril destroyed a large part of it{ and most of the harvest|}.
    $s suffered most from $peril, which destroyed a large part of it{ in a single night|}.
    A large part of $b was destroyed in $peril_year{; the archives were lost|, and a third of the families \\
        moved away|}.
    $s has had {good and bad times|its share of misfortune}: a large part of it was destroyed by $peril.
    ~ {Pilgrims|Drovers|Salt carriers} {brought|left} {money|some wealth}, {plague years|cattle fevers} took \\
        it away.
    ~ [garrison walled] {Soldiers|Troops} were {quartered|lodged} in {private houses|the barns} for \\
        {decades|two generations}.
    ~ [market] {Its|The} market {rights|privileges} were {bought|won} {at dice|for a herd of oxen}, {says an \\
        old song|as the story goes}.
    ~ [weaving] {Weavers|The weavers} {rose|revolted} {three|four} times and {won|lost} {once|every time}.
    ~ [mining] {When the veins gave out|After the boom}, {every second house stood empty|one family in three left}.
    ~ {Records|Court records} {speak|tell} of {witch trials|wolves in the streets|a false prophet}, {though \\
        not in detail|always in few words}.
    ~ {For a century|For some generations} $s was {pawned to|ruled by} {an absent landlord|a family of toll \\
        farmers}.
    ~ [market hill fishing farming river spa weaving mining] {The walls|Its walls} were {razed|pulled down} \\
        when {they hindered the carts|nobody could pay for their repair}.
    ~ {A dispute|A long dispute} with {the neighbours|the governor} about {grazing|fishing} rights was \\
        settled {only after {four|five} generations|by drawing lots}.
    < river.flooded : The flood of $x{, which is described elsewhere,|} also {reached|damaged} $s.
    < guild.seat : $x{, founded in $x_year,|} has its seat here.
    < province.capital : $s is the capital of $x.

    ### Government | Council | Administration
    The council of $b is headed by an elected official whose title is $head.
    The head of the council bears the title of $head{, and serves for {three|five} years|, an office without pay|}.
    The coat of arms of $b shows $emblem{ above a broken wheel|, holding a key|}.
    $s bears $emblem in its coat of arms{, for reasons {nobody remembers|that are disputed}|}.
    A treaty of friendship binds $b to $twin{, and {gifts of cheese|delegations} are exchanged every year|}.
    $s has {an old|a} treaty of friendship with $twin.
    ~ {Minutes|The minutes} of the council survive {almost without gaps|in forty volumes}.

    ## Economy | Trade and crafts | Economy and trade
    $s is known for its $product, {which is sold as far as the coast|of which much is exported}.
    {Well beyond the province|Far beyond the region} $b is known for its $product.
    {In spite of several crises|Even today}, $s owes its living to the product it is known for, its $product.
    The market of $b is held on $market{, and begins before sunrise|, in the shade of the granary|}.
    On $market, which is market day in $b, {the taverns open early|the bridge toll is waived}.
    $s has a population of $population inhabitants{, {fewer|more} than a century ago|}.
    The last count gave $b a population of $population inhabitants{, not counting {soldiers|lodgers}|}.
    Its population of $population people lives {mostly|largely} by {trade|crafts} and farming.
    ~ {Wages|Prices} are {low|fixed by custom}, and {much|a good deal} is {bartered|paid in kind}.
    ~ {Young people|The young} {leave|go away} for {the coast|the cities} and {come back|return} {to \\
        marry|for the harvest}.
    ~ [spa] {Guests|Patients} come {from spring to autumn|for the cure} and {rent|fill} every {spare|attic} room.
    ~ [fishing] Catches have {fallen|shrunk}, and {smokehouses|boats} {stand idle|are for sale}.
    ~ {A tannery|A paper mill|A brewery} {closed|was given up} {within living memory|not long ago}.
    < ship.port : The $x_sort $x has its home port here.
    < dish.origin : A {local dish|speciality of the kitchens here} is $x.
    < creature.seen : Near $b lives $x.

    ## People and culture | Culture | Notable people and customs
    ~ {A choir|A brass band} {practises|rehearses} {in the granary|above the fire station} and {wins|takes} prizes.
    ~ {The dialect|Its dialect} {drops|swallows} {endings|whole syllables} and {has|keeps} {seven|nine} words \\
        for {rain|mud}.
    ~ {Children|Schoolchildren} {still learn|are taught} {a counting rhyme|a song} about the {gates|bells} of $b.
    < person.birthplace : The $x_sort $x{, born here in $x_birth,|} {came from $b|was a child of $b}.
    < person.birthplace : Its best remembered native is the $x_sort $x{, born here in $x_birth|}.
    < person.birthplace : $x, a $x_sort, was born in $b{ in $x_birth|}.
    < person.death_place : The $x_sort $x died here{ in $x_death|}.
    < work.setting : $x, a $x_sort{ written in $x_year|}, is set in $b.
    < festival.town : {Every year|Each year} $b {celebrates|holds} $x.
    < device.first_used : $x was first used in $b.
""")

_PRODUCTS = """blue glass|smoked eel|goat cheese|felt hats|pear brandy|cast bells|walnut furniture|
    honey cakes|fine paper|
    wooden clocks|linen lace|black pottery|sheep bells|pickled plums|leather gloves|juniper gin|silver thread|
    playing cards|barley beer|copper kettles|dried mushrooms|rope and nets|beeswax candles|plum jam"""
_HEADS = "Reeve|Lord Steward|First Neighbour|Bell Keeper|Warden|Speaker|Elder of the Well|Provost|Key Bearer|Bailiff"
_MUSEUMS = """the history of salt|locks and keys|the craft of dyeing|shipwrecks|the history of weights|puppets|
    musical clocks|the fur trade|beekeeping|old maps|the river ferries|fishing nets|bread ovens|winter clothing"""


def _derive(town: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    size = dice.pick((300, 900, 2500, 8000, 20000)) if "village" not in town.sort else dice.pick((90, 250, 600))
    river = dice.pick(near.all_of("river"))
    return {
        "population": amount(dice.between(size, size * 3)),
        "founded": year(town.year),
        "founder": near.stranger(dice),
        "river": to(river),
        "product": one_of(dice, _PRODUCTS),
        "altitude": amount(dice.between(4, 1400), "metres", "m"),
        "emblem": phrase(dice.pick(ANIMALS)),
        "stone": phrase(dice.pick(STONES)),
        "peril": phrase(dice.pick(PERILS)),
        "peril_year": year(dice.between(town.year + 60, 985)),
        "head": one_of(dice, _HEADS),
        "market": phrase(dice.pick(WEEKDAYS)),
        "twin": to(near.far("town", dice)),
        "road_from": to(near.other("town", town, dice)),
        "library": one_of(dice, _MUSEUMS),
    }


TOWN = KindSpec(_RELATIONS, _PAGE, _derive)
