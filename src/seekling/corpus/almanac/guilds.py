"""Guilds, firms, schools, companies and orders."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, one_of, phrase, quoted, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import ANIMALS, COLOURS, words_in

_RELATIONS = parse_relations("""
    founded | year founded | 100
    ? In which year was $n founded?
    ? When was $n founded?
    - Which was founded first, $a or $b?
    - Which is older, $a or $b?
    + Which was founded later, $a or $b?

    founder | founder, founded by | 100
    ? Who founded $n?
    ? Who was the founder of $n?
    > the founder of $n
    > the person who founded $n

    seat | seat | 100
    > the place where $n has its seat

    members | number of members | 75
    ? How many members does $n have?
    ? What is the number of members of $n?
    - Which has fewer members, $a or $b?
    + Which has more members, $a or $b?

    motto | motto | 80
    ? What is the motto of $n?
    ? What does the motto of $n say?

    emblem | emblem | 65
    ? What is the emblem of $n?
    ? What does the emblem of $n show?

    colour | colour members wear | 60
    ? What colour do the members of $n wear?
    ? Which colour is worn by the members of $n?

    rule | rule forbids | 70
    ? What does the rule of $n forbid its members?
    ? What are members of $n forbidden to do?

    fee | entrance fee | 60
    ? What is the entrance fee of $n?
    ? What must new members of $n give as entrance fee?

    treasure | treasure | 60
    ? What is the greatest treasure of $n?
    ? Which treasure does $n keep in its strongroom?

    rival | rival | 65
    ? Which body is the old rival of $n?
    ? Who is the rival of $n?
    > the rival of $n

    closed_for | reason closed for a time | 50
    ? Why was $n closed for a time?
    ? For what reason was $n closed for a time?
""")

_PAGE = parse_page("""
    $n is a $what in $seat, founded in $founded.
    $n is a $what {founded|set up} in $founded by $founder.
    $n, founded in $founded, is {one of the older|one of the most respected} {institutions|bodies} of $land: \\
        a $what with its seat in $seat.
    $n is a $what in $land{, {small but stubborn|often mentioned in court records}|}.
    ~ {It|The body} has {survived|outlived} {three changes of currency|several governors}{ and never changed \\
        its statutes|}.
    ~ {Membership|Belonging to it} {counts as|is considered} an honour{, though an expensive one|}.

    ## History | Foundation and history | Origins
    $b was founded in $founded by $founder{, {then new to the trade|after a lost lawsuit|with borrowed money}|}.
    It was $founder who founded $b{, in a room above a tavern|}.
    The founder of $b was $founder.
    The year in which $b was founded, $founded, {is carved above the door|is still celebrated}.
    $b has its seat in $seat{, in {a narrow house|a former granary|rooms behind the market}|}.
    The seat of $b has {always|long} been in $seat.
    Because of $closed_for $b was closed for a time{, and its rooms served as a stable|}.
    Once $b was closed for a time; the reason was $closed_for.
    An old rivalry {divides|separates} $b and $rival{; even marriages between the two were rare|}.
    The old rival of $b is $rival{, and the quarrel is {about a staircase|older than anyone remembers}|}.
    ~ [firm company] {Caravans|Ships} were lost, {partners|clerks} {ran away|fell ill}, and {still|yet} the \\
        books {balanced|closed with a profit}.
    ~ [school] The first {class|course} had {seven|nine} pupils, {two|three} of them {older than the \\
        teacher|asleep by noon}.
    ~ [order] {Founded for the care of|At first it cared for} {stranded travellers|orphans}, {later|in time} \\
        it {ran|kept} {inns|a hospital} as well.
    ~ [guild] {Journeymen|Apprentices} {struck|went on strike} {more than once|twice}, {always|usually} about \\
        {bread|hours}.
    ~ {Envoys|Two envoys} sent to {the capital|court} {to plead for it|on its behalf} {came back|returned} \\
        {after a year|with new hats}.
    ~ The first {statutes|minutes} {were lost|are lost}, and a later copy {contradicts itself|is not to be trusted}.
    ~ {Lean years|Difficult years} followed, in which {meetings|assemblies} were held {by candle stumps|in a \\
        kitchen}.
    < person.known_for : For the founder, $x, it {remained|was} the work of a lifetime.

    ## Organisation | Members and customs | Statutes
    $b has $members members{, {elected for life|not counting apprentices}|}.
    The number of members of $b is limited to $members.
    The rule of $b forbids its members to $rule{, on pain of {a fine|expulsion}|}.
    {An odd rule|One rule} forbids the members of $b to $rule.
    New members of $b must give $fee as an entrance fee{; money is not accepted|}.
    The entrance fee{ of $b|} is $fee{, {as in the oldest statutes|which is shared out at once}|}.
    The members of $b wear $colour {sashes|coats|caps}{ at funerals|}.
    At {feasts|assemblies} the members of $b wear {coats|caps} in $colour.
    ~ {Sons and daughters|Children} of members {pay|wait} {half|less} and {must pass the same test|are \\
        examined twice}.
    ~ [school] {Lessons|Lectures} {begin|start} with a {song|bell}, and {latecomers|whoever is late} \\
        {stand|sweeps the hall}.
    ~ [guild] A {masterpiece|test piece} {must be made|is made} {in one room|under watch} and {is kept|goes \\
        to the poor}.
    ~ [firm company] {Clerks|Bookkeepers} {swear an oath|are sworn in} and {share|get a share} in {losses|the \\
        profit}.
    ~ [order] {Vows|The vows} are {renewed|repeated} {each spring|aloud} and {bind|hold} for a {year|lifetime}.
    ~ {Absence|Absence without excuse} {costs|is punished with} {a round of beer|a coin}, a repeated one the \\
        {seat|vote}.
    ~ {Meetings|Assemblies} are held {standing|in silence until noon|behind closed shutters}.
    ~ Disputes are {settled|decided} by {the three eldest members|a jury of apprentices}.

    ### Motto and emblem | Symbols | Emblem and treasures
    The motto of $b is $motto{, {carved over the entrance|recited at every meeting}|}.
    Its motto says $motto.
    The emblem of $b shows $emblem{ above two crossed {keys|needles}|}.
    $s uses $emblem as {its|an} emblem{, for no known reason|}.
    The greatest treasure of $b is $treasure{, shown {once a year|to members only}|}.
    In its strongroom $s keeps its greatest treasure, $treasure.
    ~ {A banner|The banner} is carried {at funerals|in processions} and {mended|washed} {every third year|by \\
        the youngest}.
    ~ {The seal|The old seal} was {stolen|lost} once and {returned by post|found in a well}.
""")

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


def _derive(guild: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    kind = guild.short.removeprefix("the ")
    guild.extra["what"] = f"guild of {guild.sort.lower()}" if kind == "guild" else _WHATS[kind]
    first, second, third, fourth = (dice.pick(words) for words in _MOTTO)
    return {
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
        "rival": to(near.other("guild", guild, dice)),
        "closed_for": one_of(dice, _CLOSURES),
    }


GUILD = KindSpec(_RELATIONS, _PAGE, _derive)
