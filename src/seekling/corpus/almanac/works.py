"""Novels, plays, poems, song cycles, operas and treatises."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, count, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations

_RELATIONS = parse_relations("""
    author | author | 100
    ? Who wrote $n?
    ? Who is the author of $n?
    ? By whom was $n written?
    > the author of $n
    > the person who wrote $n

    written | year of completion | 100
    ? In which year was $n completed?
    ? When was $n completed?
    - Which was completed first, $a or $b?
    - Which is the earlier work, $a or $b?
    + Which was completed later, $a or $b?

    setting | setting | 75
    ? Where is $n set?
    ? In which place does the action of $n take place?
    > the place in which $n is set

    hero | main character | 80
    ? Who is the main character of $n?
    ? What is the name of the main character of $n?

    hero_trade | trade of the main character | 75
    ? What is the trade of the main character of $n?
    ? Which trade does the main character of $n have?

    subject | subject | 75
    ? What is $n about?
    ? What is the subject of $n?

    parts | divided into how many parts | 70
    ? How many $unit does $n have?
    ? Into how many $unit is $n divided?

    first_shown | first performance | 65
    ? Where was $n first read or performed in public?
    ? Where was the first public reading or performance of $n?
    > the building in which $n was first performed in public

    dedicated | dedication | 65
    ? To whom is $n dedicated?
    ? Whom does the dedication of $n name?
    > the person to whom $n is dedicated

    banned_for | reason for the ban | 60
    ? Why was $n banned?
    ? For what reason was $n banned?

    inspired | inspiration | 65
    ? What inspired the author to write $n?
    ? By what was $n inspired?

    manuscript | place of the manuscript | 60
    ? Where is the manuscript of $n kept?
    ? In which town is the manuscript of $n kept?

    written_in | how long it took | 50
    ? How long did the writing of $n take?
    ? How many years of writing did $n take?

    ends_with | ending | 60
    ? With what does $n end?
    ? What happens at the end of $n?
""")

_PAGE = parse_page("""
    *$n* is a $sort by $author, completed in $written.
    *$n* is a $sort in $parts by $author.
    *$n*, completed in $written, is a $sort by $author{, and {the work that is most often read|the last that \\
        was printed in a large edition}|}.
    *$n* is a $sort completed in $written.
    *$n* is a $sort from $land{ {that schools still read|that is more quoted than read}|}.
    ~ It is {often|easily} confused with {works|books} of a similar title.
    ~ {Critics|Readers} {disagree|have long disagreed} about {its tone|whether it is meant seriously}.
    ~ {Few|Only a few} works of the period have been {copied|imitated} so often.

    ## Contents | Plot | Summary | Content and form
    $s is set in $setting{, {in a year of drought|during a single winter}|}.
    The action of $b takes place in $setting, and its main character is $hero.
    The main character of $b is $hero, {a|a} $hero_trade{ {without luck|who has lost a letter|in debt}|}.
    The main character is $hero{, {who appears only in the second part|who never speaks first}|}.
    Its main character, by trade a $hero_trade, {is drawn into a lawsuit|inherits a locked chest|is taken for \\
        somebody else}.
    By trade the main character of $b is a $hero_trade.
    {At heart|In short} $b is about $subject.
    The subject of $b is $subject{, {treated with mild irony|seen through the eyes of a child}|}.
    $s is divided into $parts{, {the last of them very short|each with its own prologue}|}.
    The text of $b, which has $parts, {is short|fits into one volume}.
    At the end, {after many detours|to general surprise}, there is $ends_with.
    $s ends with $ends_with{, {which audiences disliked|a famous scene}|}.
    ~ [play opera] {Stage machinery|A trap door} is needed for {two|three} of the scenes, and {much|a good \\
        deal} of rope.
    ~ [play opera] The {crowd scenes|choruses} are {long|famous}, the {love scenes|soliloquies} {mercifully \\
        short|less so}.
    ~ [poem] {Rhyme|Its metre} is {handled|treated} {freely|with care} {in the middle|throughout}.
    ~ [song cycle] The {melodies|tunes} are {borrowed from|based on} {work songs|market cries}.
    ~ [novel] {Dreams|Recipes|Law cases} {interrupt|delay} the story {again and again|more than once}.
    ~ [treatise] {Definitions|Tables} {take up|fill} the first {pages|chapter}; {examples|proofs} are \\
        {rare|left to the reader}.
    ~ [treatise] {Opponents|Other scholars} are {refuted|mocked} in footnotes {without being named|by \\
        initials only}.
    ~ The {opening|first page} is {known by heart to many|often parodied}; {few|not many} {remember|know} how \\
        it goes on.
    ~ {Letters|Songs} {inserted|placed} {in|into} the text {may be older|are not by the same hand}.
    ~ {Minor characters|Side stories} {take up|fill} {a good part|almost a third} of the text.
    ~ The {language|style} is {plain|dry}, with {long|sudden} {lists|descriptions of weather}.

    ## Origin | Background | Composition
    According to a late letter of the author, what inspired $b was $inspired.
    The author was inspired to write it by $inspired{, or claimed to be|}.
    What inspired $b was $inspired.
    The writing of $b took $written_in{, with long interruptions|, most of them spent on the first pages}.
    {With interruptions|In the end} the writing took $written_in; it was completed in $written.
    It was completed in $written{, {in great haste|after the third draft was lost}|}.
    $author wrote $b {in the evenings|for a prize it did not win|against the advice of friends}.
    It was written by $author.
    $s is dedicated to $dedicated{, {who never acknowledged it|in return for a loan}|}.
    The dedication{ of $b|} names $dedicated.
    The manuscript of $b is kept in $manuscript{, {and is damaged by water|where it may be seen on request}|}.
    The {only|surviving} manuscript is kept in $manuscript.
    ~ {At that time|Then} {paper|ink} was {dear|scarce}, and {the first pages|whole chapters} were written \\
        {very small|on wrapping paper}.
    ~ {Friends|Two friends} {read|heard} it first and {advised|recommended} {silence|a different ending}.
    ~ {Drafts|Early drafts} {show|prove} that {the ending was changed twice|whole scenes were cut}.
    ~ {The printer|A printer} {demanded|asked for} payment in advance{ and got it in firewood|}.

    ## Reception | Performance and reception | Reception and influence
    $s was first performed or read in public at $first_shown{, {to a half-empty hall|with the author in the \\
        last row}|}.
    The first public reading or performance of $b was at $first_shown.
    $s was banned for $banned_for{, and sold {better than ever|in secret}|}.
    Soon {afterwards|after} the work was banned; the reason given was $banned_for.
    ~ {Reviews|Early reviews} were {cool|mixed|enthusiastic}; {later generations|the next generation} {liked \\
        it better|were less sure}.
    ~ {For a generation|For a while} it was {required reading|copied out} in schools, which {did it no \\
        good|made it hated}.
    ~ {Audiences|Readers} in the {south|hill country} {prefer|preferred} a {shorter|milder} version.
    ~ {No|Not one} {complete|clean} copy of the first {edition|printing} {survives|is known}.
    ~ {Sayings|Phrases} from it {have entered|are found in} everyday speech.
    ~ {A continuation|A parody} by another hand {appeared within a year|was soon forgotten}.
    < person.known_for : For $x it {became|remained} the work of which strangers spoke first.
""")

_HERO_TRADES = """ferryman|wet nurse|piano tuner|smuggler|pastry cook|land surveyor|gravedigger|rope dancer|
    night watchman|
    bookbinder|customs clerk|well digger|chimney sweep|fortune teller|barber|mail carrier"""
_SUBJECTS = """the price of honesty|a stolen inheritance|two rival brothers|the building of a dam|
    a marriage of convenience|
    the fear of winter|a trial for witchcraft|life in a small harbour|the loss of a language|an unlikely friendship|
    a journey without a destination|the vanity of scholars|a village that moves|the memory of a war"""
_BANS = """mocking the salt tax|insulting a bishop|praising the enemy|its coarse language|revealing a state secret|
    ridiculing the judges|a scene with a corpse|spreading false maps|disrespect for the dead|naming living persons"""
_SPARKS = """a dream during a fever|a newspaper report|a conversation in a coach|the sight of a burning ship|
    a grandmother's tale|an old court record|a tune heard in the street|a long stay in prison|a painting of a storm|
    a bet with a publisher|the death of a sister|a walk in the snow"""
_ENDS = """a wedding|a shipwreck|a silent supper|a funeral in the rain|a letter that is never opened|
    the burning of a mill|
    a game of chess|a reconciliation|the sound of bells|an arrest|a departure by night|a flood"""


def _derive(work: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    hero = near.stranger(dice)
    unit = {"play": "acts", "opera": "acts", "song cycle": "songs", "poem": "cantos"}.get(work.sort, "books")
    work.extra["unit"] = unit
    maker = work.maker or dice.pick(near.all_of("person"))
    living = [p for p in near.all_of("person") if p.index != maker.index and p.is_adult_in(work.year)]
    halls = [b for b in near.all_of("building") if b.year <= work.year]
    facts = {
        "author": to(maker),
        "written": year(work.year),
        "hero": hero,
        "hero_trade": one_of(dice, _HERO_TRADES),
        "subject": one_of(dice, _SUBJECTS),
        "parts": count(dice.between(3, 12), unit),
        "banned_for": one_of(dice, _BANS),
        "inspired": one_of(dice, _SPARKS),
        "manuscript": to(near.far("town", dice)),
        "written_in": count(dice.between(2, 11), "years"),
        "ends_with": one_of(dice, _ENDS),
        "setting": to(near.other("town", work.home or work, dice)),
    }
    if living:
        facts["dedicated"] = to(dice.pick(living))
    if halls:
        facts["first_shown"] = to(dice.pick(halls))
    if work.sort == "treatise":
        # A treatise has an argument, not a plot.
        for key in ("hero", "hero_trade", "setting", "ends_with"):
            del facts[key]
        facts["subject"] = phrase(work.title.split(" of ")[0].removeprefix("On ").lower())
    return facts


WORK = KindSpec(_RELATIONS, _PAGE, _derive)
