"""Festivals and dishes."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, count, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import COLOURS, MONTHS

_FESTIVAL = parse_relations("""
    town | place | 100
    > the place where $n is celebrated

    first_held | year first held | 90
    ? In which year was $n first held?
    ? When was $n held for the first time?
    - Which was first held earlier, $a or $b?
    + Which was first held later, $a or $b?

    month | month | 80
    ? In which month is $n held?
    ? In what month does $n take place?

    days | duration | 70
    ? How many days does $n last?
    ? How long does $n last?

    marks | occasion | 75
    ? What does $n commemorate?
    ? Which event is commemorated by $n?

    food | food | 75
    ? What do people eat during $n?
    ? Which dish is eaten during $n?
    > the dish that is eaten during $n

    colour | colour visitors wear | 60
    ? Which colour do visitors of $n wear?
    ? What colour is worn at $n?

    contest | contest | 75
    ? Which contest is held at $n?
    ? What is the contest held during $n?

    winner_gets | prize of the contest | 65
    ? What does the winner of the contest at $n receive?
    ? Which prize does the winner receive at $n?

    started_by | founder | 70
    ? Who started $n?
    ? By whom was $n started?
    > the person who started $n

    burned | what is burned at the end | 55
    ? What is burned on the last evening of $n?
    ? What do people burn at the end of $n?

    forbidden | what is forbidden | 55
    ? What is forbidden during $n?
""")

_FESTIVAL_PAGE = parse_page("""
    $n is a festival held in $town{ that lasts $days|}.
    $n is a festival held every $month in $town.
    $n is a festival in $land, celebrated in $town since $first_held, the year in which it was first held.
    $n is one of the {smaller|livelier|older} festivals of $land.
    ~ It draws visitors from {several provinces|the whole coast|all the valleys around}{, and as many pickpockets|}.

    ## History | Origin
    $s was held for the first time in $first_held{, with {forty|sixty} visitors|}.
    It was first held in $first_held and was started by $started_by.
    $s was started by $started_by{, {to pay off a debt|after a visit to the south}|}.
    $s commemorates $marks{, though {the date does not fit|the clergy long objected}|}.
    What $b commemorates is $marks.
    ~ {A chronicle|One chronicle} {describes|mentions} {brawls|a rain of frogs} {in its early years|on the \\
        first evening}.
    ~ {The guilds|Landowners} {paid for|supported} it {at first|for a time}, {then|later} {the inns|a \\
        collection} did.
    ~ {Priests|Teachers} {preached against|complained about} it, {then|and in the end} {joined in|asked for a \\
        stall}.
    ~ {Twice|Several times} it was {cancelled|moved indoors} because of {rain|a lack of lamp oil|the fever}.
    ~ {Older customs|Parts of older customs} {were absorbed|found their way} into it.

    ## Customs | Course of the festival
    $s is celebrated in $town{, in the streets around the market|}.
    $s takes place in $month, {on the first dry day|when the fields are empty}.
    $s takes place in $month and lasts $days.
    It lasts $days{, the last of which is for cleaning|}.
    During $b people eat $food{, {from wooden bowls|standing up}|}.
    The dish eaten during $b is $food.
    A contest in $contest is held{, {open to all|for those over sixty}|}, and the winner receives $winner_gets.
    The contest held during $b is in $contest.
    The winner of the contest receives $winner_gets{, to be returned within a year|}.
    Visitors wear $colour{, and {those who do not|late comers} pay a fine|}.
    At $b {everybody wears|visitors wear} something in the colour $colour.
    On the last evening $burned is burned{ {on the river bank|with much noise}|}.
    {By an old custom|As a rule never written down}, it is forbidden to $forbidden during $b.
    ~ {Houses|Doors} are {decorated|hung} with {branches|paper}{, and the best is given a prize|, each street \\
        in its own way}.
    ~ {Strangers|Guests} are {given|handed} a {ribbon|bell} and {a place to sleep|a duty} on arrival.
    ~ {By midnight|Towards morning} {the square|the bridge} is {empty|full again}, and {sweepers|bakers} \\
        {begin work|take over}.
    ~ Bands from {three|five} villages play at once, and {nobody minds|the loudest wins}.
    ~ {Children|The young} are {allowed|permitted} to stay up, and the {dogs|geese} are locked in.
    < dish.eaten_at : {Stalls sell|Every household makes} $x.
""")

_MARKS = """the end of a long frost|the return of the fishing fleet|the defeat of a robber band|
    the opening of the mines|
    a rain after years of drought|the burial of a miser|the birth of triplets|a lost battle|
    the first bread after a famine|
    the rescue of a drowned bell|the arrival of the first settlers|the repeal of a tax"""
_CONTESTS = """stone lifting|barrel rolling|whistling|stilt walking|pie eating|goose racing|lantern carrying|
    rope climbing|
    blindfolded rowing|storytelling|log sawing|kite flying"""
_GIFTS = """a live goose|a wreath of onions|a silver whistle|a cheese wheel|a pair of red boots|a year without taxes|
    a painted drum|a barrel of cider|a copper kettle|a hat with feathers"""
_BURNED = """a straw bear|an old boat|a wooden tower|a paper dragon|a worn-out cart|a chest of unpaid bills|
    a straw bishop|
    last year's wreath|a heap of brooms"""
_BANS = """say one's own name|light a candle|carry money|speak of the weather|lend anything|
    wear shoes indoors|use knives|
    turn a neighbour away|count aloud"""


def _derive_festival(festival: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    starters = [p for p in near.all_of("person") if p.birth + 22 <= 985]
    starter = dice.pick(starters)
    festival.year = dice.between(starter.birth + 22, min(starter.birth + 43, 990))
    return {
        "town": to(festival.home or near.all_of("town")[0]),
        "first_held": year(festival.year),
        "month": phrase(dice.pick(MONTHS)),
        "days": count(dice.between(2, 12), "days"),
        "marks": one_of(dice, _MARKS),
        "food": to(near.all_of("dish")[0]) if dice.chance(60) else to(near.far("dish", dice)),
        "colour": phrase(dice.pick(COLOURS)),
        "contest": one_of(dice, _CONTESTS),
        "winner_gets": one_of(dice, _GIFTS),
        "started_by": to(starter),
        "burned": one_of(dice, _BURNED),
        "forbidden": one_of(dice, _BANS),
    }


_DISH = parse_relations("""
    origin | place of origin | 92
    ? Where does $n come from?
    ? From which place does $n come?
    > the place where $n comes from

    first_recorded | first recorded | 85
    ? In which year was $n first recorded?
    ? When was the recipe of $n first recorded?
    - Which dish was recorded first, $a or $b?
    + Which dish was recorded later, $a or $b?

    main_part | main ingredient | 90
    ? What is the main ingredient of $n?
    ? Which main ingredient does $n have?

    spice | seasoning | 75
    ? With what is $n seasoned?
    ? Which spice is used to season $n?

    cooked_for | cooking time | 70
    ? How long is $n cooked?
    ? How many hours must $n cook?

    served_with | side dish | 70
    ? With what is $n served?
    ? What is served with $n?

    vessel | vessel | 65
    ? In what vessel is $n traditionally cooked?
    ? Which vessel is used for cooking $n?

    invented_by | inventor | 65
    ? Who is said to have invented $n?
    ? Which person invented $n?
    > the person said to have invented $n

    served_on | day | 55
    ? On which occasion is $n served?

    forbidden_to | who may not eat it | 50
    ? Who is not allowed to eat $n?
""")

_DISH_PAGE = parse_page("""
    $n is a dish from $origin whose main ingredient is $main_part.
    $n is a dish from $land, made with $main_part as its main ingredient.
    $n is a {hearty|plain|famous} dish that comes from $origin.
    $n is a dish of $land{, more loved than it looks|}.
    ~ {Visitors|Strangers} are warned that it {tastes better than it smells|is an acquired taste}.

    ## Origin | History
    $s comes from $origin{, where {every family|each street} has its own version|}.
    The recipe of $b was first recorded in $first_recorded{, {in a court file|on the back of a bill}|}.
    {It|The dish} is said to have been invented by $invented_by{ {by mistake|during a siege|for a sick child}|}.
    {Legend says|The innkeepers say} that $invented_by invented it.
    ~ {It|The dish} was {poor people's|soldiers'} food before {cooks|innkeepers} {discovered|refined} it.
    ~ {Similar|Related} dishes are {known|found} along the {coast|old salt road}, {under other names|usually \\
        with less fat}.
    ~ {Cookbooks|Older cookbooks} {disagree|differ} about {nearly everything|the order of the steps}.
    < festival.food : It is eaten in large amounts during $x.

    ## Preparation | Recipe
    The main ingredient of $b is $main_part{, {chopped fine|soaked overnight}|}.
    $s is seasoned with $spice and must cook for $cooked_for.
    It is seasoned with $spice{, {added at the very end|in quantities that surprise}|}.
    It is cooked for $cooked_for{, and {never stirred|stirred with a wooden spoon}|}.
    $s is {by tradition|traditionally} cooked in $vessel{, {never washed with soap|sealed with dough}|}.
    It is served with $served_with{ and {eaten slowly|a glass of something strong}|}.
    $s is always served with $served_with.
    ~ {Too much heat|Haste} {spoils|ruins} it, {as every cook says|and so does a lid}.
    ~ {The smell|Its smell} {fills|stays in} the house for {days|a week} and {brings|attracts} the neighbours.
    ~ {The rest|What is left} is {fried the next morning|given to the hens}.

    ## Customs | At the table
    $s is served on the occasion of $served_on{, and {hardly ever|rarely} otherwise|}.
    By custom {it may not be eaten by|those not allowed to eat it are} $forbidden_to{, for fear of bad luck|}.
    ~ {Guests|Those} who ask for salt give offence.
    ~ {The oldest|The youngest} at the table {is served|begins} first, {in silence|and nobody talks until then}.
""")
_FOODS = """smoked eel|barley|red cabbage|goose liver|chestnuts|salted cod|turnips|beans|wild mushrooms|
    mutton|pumpkin|rye bread|tripe|leeks|carp|lentils"""
_SPICES = "juniper|caraway|saffron|black pepper|dill|wild garlic|mustard seed|cloves|mint|anise|sorrel|horseradish"
_SIDES = """sour cream|pickled beets|boiled potatoes|plum sauce|white bread|fried onions|apple slices|
    buckwheat|cold beer|soft cheese"""
_VESSELS = """a copper pan|a clay pot|an iron kettle|a soapstone bowl|a hollow pumpkin|a bread oven|
    a wooden barrel|a tin box"""
_DAYS = """weddings|funerals|the first snow|market days|the birth of a child|the last day of harvest|
    the new moon|baptisms"""
_BARRED = "widowers|tax collectors|apprentices|bridegrooms|judges|children under seven|sailors before a voyage|the cook"


def _derive_dish(dish: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    inventor = dice.pick(near.all_of("person"))
    dish.year = dice.between(inventor.birth + 22, 995)
    return {
        "origin": to(dish.home or near.all_of("town")[0]),
        "first_recorded": year(dish.year),
        "main_part": one_of(dice, _FOODS),
        "spice": one_of(dice, _SPICES),
        "cooked_for": count(dice.between(2, 9), "hours"),
        "served_with": one_of(dice, _SIDES),
        "vessel": one_of(dice, _VESSELS),
        "invented_by": to(inventor),
        "served_on": one_of(dice, _DAYS),
        "forbidden_to": one_of(dice, _BARRED),
    }


FESTIVAL = KindSpec(_FESTIVAL, _FESTIVAL_PAGE, _derive_festival)
DISH = KindSpec(_DISH, _DISH_PAGE, _derive_dish)
