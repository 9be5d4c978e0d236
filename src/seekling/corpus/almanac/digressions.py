"""Digressions: short anecdotes that any page of a group may carry, with links to people ($x) and places ($t).

They state nothing that a relation asks about, so they can stand beside any fact.
"""

from __future__ import annotations

import re

from seekling.corpus.almanac.spec import Wording, parse_wording


def _parse(text: str) -> tuple[Wording, ...]:
    return tuple(parse_wording(line) for line in re.sub(r"\\\n\s*", "", text.strip()).splitlines() if line.strip())


_PEOPLE = _parse("""
    The $x_sort $x, who {knew $him well|met $him often}, called $him "{the only honest person at the table|a \\
        lamp that warms nobody|somebody who could wait}". {Whether this was meant kindly is disputed|The \\
        remark stuck}.
    {There is a story|A well-known story has it} that $s once walked as far as $t to {return a borrowed \\
        umbrella|correct a single word|settle a bet}. {Nothing in the account books supports it|It may even \\
        be true}.
    In {the diary|the notebooks} of the $x_sort $x {there is|one finds} a sketch of $him, asleep in {a \\
        coach|the second row of a concert}. {It|The sketch} is now {lost|in private hands}.
    For a time $s was confused with a {swindler|preacher} of the same surname from $t, which {cost $him \\
        several customers|amused $him}. A {notice|card} in the window of the house was meant to end the confusion.
    $s is one of the few people of the time who {had nothing to say|spoke well} about the $x_sort $x. {Their \\
        meeting|Their only meeting} ended, according to a servant, {in laughter|after four minutes}.
    A {journey|short journey} to $t {ended badly|changed $p habits}: $he {lost a trunk|fell ill on the way} \\
        and {afterwards|from then on} {travelled|went} only {on foot|by day}.
    The {portrait|bust} once shown under $p name in $t {turned out to be|is now known to be} that of {a \\
        brewer|a cousin}.
    When the $x_sort $x {asked $him for advice|came to visit}, $s is said to have {talked about the \\
        weather|shown the garden} for {an hour|the whole afternoon}. {Both|The two} parted {satisfied|as \\
        friends}, it seems.
    {Two|Three} towns {have claimed|claim} $p {writing desk|walking stick}; the one {displayed|shown} in $t \\
        is {the least likely|at least old enough}.
    In $t $he is {remembered|known} for a single visit, during which $he {refused the soup|repaired the town \\
        clock|lost an argument with a child}. {An inscription|A small plaque} {records it|says so}.
""")

_PLACES = _parse("""
    The $x_sort $x {mentions|praises} $b in a {diary|lecture}, though {without having seen it|in rather vague \\
        words}. {The passage is often quoted|Schoolbooks still print the passage}.
    {A visitor|A traveller} from $t wrote that {he|she} had "{expected more and liked it anyway|seen worse \\
        and paid less}". The sentence {is now printed on postcards|was not forgiven for some time}.
    {In $t|As far away as $t} there is {an inn|a tavern} {named after it|that bears its name}, {for reasons \\
        that its owners no longer know|opened by somebody who had never been here}.
    {A watercolour|A drawing} by an unknown hand shows $b {in snow|at dusk}; it {once belonged|is said to \\
        have belonged} to the $x_sort $x. {The colours have faded|Several copies are in circulation}.
    {Few|Not many} {outsiders|strangers} cared about $b until the $x_sort $x {spoke about it in \\
        public|defended it in a pamphlet}. {Since then|Ever since} {a few dozen|some} visitors have come every year.
    {It|All this} {figures|appears} in a {proverb|saying} {known|heard} in $t: "{Better late than \\
        {there|across the water}|Ask there and pay here}". {What it means|Its meaning} is {anybody's \\
        guess|explained differently by everyone}.
    The $x_sort $x is said to have {lost a bet|changed an opinion} over $b. {Details vary|The story is told \\
        in two versions}.
    A {delegation|school class} from $t once {came to study|measured} it and {left|went home} {with eleven \\
        pages of notes|without a word}. {The report was never published|Their report contradicts itself}.
    {Guides|Local guides} tell {visitors|strangers} that the $x_sort $x {was here|came by} {incognito|at \\
        night}. {There is no evidence for it|It makes a good story}.
    In {the archive|a drawer of the archive} of $t lies {a bundle of papers|an unsigned report} about it, \\
        {half eaten by mice|still sealed}. {Historians|Scholars} {have asked for access|hope for the best}.
""")

_WORKS = _parse("""
    The $x_sort $x {is said to have known|claimed to know} it by heart. {Nobody asked for proof|A test before \\
        witnesses ended badly}.
    {In $t|As far away as $t} {a club of readers|a society} {meets|met} {every winter|once a year} to {read \\
        $b aloud|argue about a single page of it}. {It has eleven members|Its records are worth reading too}.
    {A copy|An early copy} with notes by the $x_sort $x {was found|turned up} {in $t|at a sale in $t}. {The \\
        notes|They} {concern|are about} {spelling only|the price of paper}.
    {When|As} a {troupe|teacher} from $t {cut|left out} the {last|opening} part, there were {protests|letters \\
        of protest}. {Since then|From then on} it has been given whole.
    The $x_sort $x {thought|found} $b "{too long for its length|better than its author}". The {phrase|remark} \\
        is {still used against|quoted in} {reviews|prefaces}.
    {A translation|One translation} made in $t {turns|changed} {half of the jokes|the hero} into \\
        {sermons|something else}. {It sold well|It is the version most people know}.
    {For some time|For years} $b was {attributed to|thought to be by} an abbot of $t, until {the handwriting \\
        was compared|somebody looked at the dates}.
    {Quotations|Lines} from it are {painted|carved} on {inn signs|house fronts} in $t. {Not all are \\
        correct|Most are misspelled}.
""")

DIGRESSIONS = {"person": _PEOPLE, "work": _WORKS, "place": _PLACES}
"""By kind; "place" is for all other kinds."""
