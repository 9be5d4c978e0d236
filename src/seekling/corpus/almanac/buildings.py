"""Buildings and waterworks."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import ANIMALS, PERILS, STONES, WATERWORKS

_RELATIONS = parse_relations("""
    architect | architect | 100
    ? Who was the architect of $n?
    ? Who designed $n?
    > the architect of $n
    > the person who designed $n

    built | year of completion | 100
    ? In which year was $n completed?
    ? When was $n completed?
    - Which was completed first, $a or $b?
    + Which was completed later, $a or $b?

    town | location | 100
    > the place where $n stands

    river | river | 100
    > the river on which $n was built

    height | height | 80
    ? How high is $n?
    ? What is the height of $n?
    - Which building is lower, $a or $b?
    + Which building is higher, $a or $b?

    stone | building material | 75
    ? What is $n built of?
    ? Of which material is $n built?

    steps | number of steps | 65
    ? How many steps lead to the top of $n?
    ? How many steps does the staircase of $n have?

    ornament | figure on the roof | 65
    ? Which animal crowns the roof of $n?
    ? What animal stands on the roof of $n?

    commissioned | who paid | 70
    ? Who paid for the building of $n?
    ? Which body paid for $n?
    > the body that paid for $n

    damaged_by | damage | 65
    ? What damaged $n?
    ? By what was $n damaged?

    cost | cost | 60
    ? How much did $n cost?
    ? What was the cost of $n?

    purpose_now | present use | 60
    ? What is $n used as today?
    ? What does $n serve as today?

    ghost | ghost | 50
    ? Whose ghost is said to haunt $n?
    ? Which ghost haunts $n?
""")

_PAGE = parse_page("""
    $n is a $sort in $town, designed by $architect.
    $n is a $sort in $town, completed in $built{ and much altered since|}.
    $n is a $sort {in|of} $land, the work of the architect $architect.
    $n is a $sort in $land, completed in $built.
    $n, {a $sort|a well-known $sort} in $land, {appears|is shown} on {coins|the oldest views of the region}.
    ~ {Locals|The neighbours} {call|have always called} it simply "the $sort".
    ~ {It|The building} is {listed|protected}, which has {saved it twice|not prevented several changes}.

    ## History | Construction | Building history
    $s was designed by the architect $architect and completed in $built.
    The architect of $b was $architect{, who {was dismissed|resigned} before the roof was on|}.
    $architect designed $b{ {for less than the usual fee|after a visit to the coast}|}.
    It was completed in $built{, {four|six} years late|, in time for the harvest fair|}.
    The building was paid for by $commissioned{, which {quarrelled over every bill|wanted its emblem on each \\
        door}|}.
    $commissioned paid for the building of $b.
    The cost of $b was $cost{, {twice the estimate|a scandal at the time}|}.
    $s cost $cost{, not counting the foundations|}.
    It was {badly|heavily} damaged by $damaged_by{ and {repaired|patched up} in a hurry|}.
    Later $damaged_by damaged $b{, leaving cracks that can still be seen|}.
    ~ {Stone|Timber} was {hauled|brought} {over the ice|by oxen}, {and two bridges had to be strengthened|at \\
        night, to avoid tolls}.
    ~ {The foundations|Its foundations} rest on {piles|rock}, {as drillings have shown|which was discovered \\
        by chance}.
    ~ {Plans|Drawings} of {an earlier|a larger} design {survive|exist}, with {a second wing|twice the windows}.
    ~ {Workmen|The masons} left {signs|scratched faces} on {many|hidden} {stones|beams}.
    ~ {Work|Building} stopped {twice|for two winters} because {the money ran out|the masons left}.
    ~ {An earlier building|A wooden predecessor} on the {site|spot} is {mentioned in one deed|known from a drawing}.

    ## Description | Architecture | Appearance
    $s stands in $town, {next to the corn market|a little apart from the other houses|at the end of a lime avenue}.
    The place where $b stands is $town.
    $s was built on the river it is named after, $river.
    It belongs to $river{, above whose bed it stands on piles|, like several others of its kind}; here $b was built.
    $s is built of $stone and is $height high.
    $s is built of $stone{, {cut without mortar|from the ruins of a wall}|}.
    It reaches a height of $height.
    With a height of $height $s {was long the tallest around|is higher than it looks}.
    A staircase of $steps steps leads to the top{ of $b|}.
    Those who climb $b count $steps steps{ to the top|}.
    The roof of $b is crowned by $ornament {of gilded copper|of lead|in beaten iron}.
    On the roof stands $ornament, {which turns with the wind|made by an unknown smith}.
    ~ [lighthouse tower] {From the top|At the top} one sees {four|seven} {steeples|villages} {in clear \\
        weather|and, they say, the sea}.
    ~ [theatre] The {boxes|seats} are {narrow|hard}, the {acoustics|curtain} {excellent|famous}.
    ~ [library] {Chained|Locked} books {fill|occupy} {two|three} of the {halls|rooms}, and {ladders|lamps} \\
        are {forbidden|few}.
    ~ [observatory] The {dome|roof slit} {turns|opens} {by hand|with a groan} and {jams|sticks} in frost.
    ~ [hospital bathhouse] {Pipes|Lead pipes} {still|once} {carry|carried} warm water {to every floor|under \\
        the tiles}.
    ~ [bridge viaduct aqueduct] {Piers|The piers} {shaped like|in the form of} {prows|wedges} {split|break} \\
        the {ice|floods}.
    ~ [mill weir lock] {Its|The} {wheel|gate} {creaks|groans} {day and night|so loudly that dogs avoid it}.
    ~ {The façade|The front} {leans|bulges} {slightly|a little} to {one side|the left}, which {was \\
        intended|nobody minds}.
    ~ {Inside|In the interior} {little|almost nothing} of the first furnishing is left.
    ~ {Small|Uneven} windows and {thick walls|low doors} make it look {older than it is|like a fortress}.
    < work.first_shown : The $x_sort $x was first {heard|presented to the public} here.

    ## Today | Use and legends | Present use
    Today $b is used as $purpose_now{, {at least in summer|for want of a better idea}|}.
    $s serves as $purpose_now today.
    {The ghost|A story has it that the ghost} of $ghost haunts $b{, {on windless nights|but only the cellar}|}.
    The building is said to be haunted by the ghost of $ghost.
    ~ Repairs {cost more every year|swallow large sums}, and {a lottery|a beer tax} {pays for them|covers \\
        part of it}.
    ~ {Wedding parties|Students} {like to|often} {pose|meet} {in front of it|on its threshold}.
    ~ {Guided tours|Tours} {are held|take place} {on rest days|when the keeper is in the mood}.
""")

_GHOSTS = """a drowned mason|a baker's wife|a headless clerk|an impatient bride|a bell ringer|a cheated carpenter|
    a blind cat|a tax collector|two sisters|an unpaid painter"""
_USES = """a music school|a grain store|a museum|a courthouse|a youth hostel|an archive|a dance hall|a weather station|
    a bakery|a toll office|a library|a sheep shed"""


def _derive(building: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    guilds = [g for g in near.all_of("guild") if g.year <= building.year]
    facts = {
        "architect": to(building.maker or dice.pick(near.all_of("person"))),
        "built": year(building.year),
        "height": amount(dice.between(7, 96), "metres", "m"),
        "stone": phrase(dice.pick(STONES)),
        "steps": amount(dice.between(24, 390)),
        "ornament": phrase(dice.pick(ANIMALS)),
        "damaged_by": phrase(dice.pick(PERILS[:5])),
        "cost": amount(dice.between(9, 240) * 100, "crowns"),
        "purpose_now": one_of(dice, _USES),
        "ghost": one_of(dice, _GHOSTS),
    }
    if building.sort.capitalize() in WATERWORKS:
        facts["river"] = to(near.all_of("river")[0])
        del facts["steps"], facts["ornament"]
    elif building.home:
        facts["town"] = to(building.home)
    if guilds:
        facts["commissioned"] = to(dice.pick(guilds))
    return facts


BUILDING = KindSpec(_RELATIONS, _PAGE, _derive)
