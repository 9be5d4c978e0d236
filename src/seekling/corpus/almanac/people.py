"""Persons: lives, teachers, deeds, habits."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import PARENT_TRADES, words_in

_RELATIONS = parse_relations("""
    trade | profession | 100
    ? What was the profession of $n?
    ? What was $n by profession?
    ? Which profession did $n have?

    birth_year | year of birth | 100
    ? In which year was $n born?
    ? When was $n born?
    ? What is the year of birth of $n?
    - Who was born first, $a or $b?
    - Which of the two was born earlier, $a or $b?
    - Who is older, $a or $b?
    + Who was born later, $a or $b?
    + Who is younger, $a or $b?

    birthplace | place of birth | 92
    ? Where was $n born?
    ? In which town or village was $n born?
    ? What is the birthplace of $n?
    > the place where $n was born
    > the birthplace of $n

    death_year | year of death | 100
    ? In which year did $n die?
    ? When did $n die?
    - Who died first, $a or $b?
    + Who died later, $a or $b?

    death_place | place of death | 70
    ? Where did $n die?
    ? In which place did $n die?
    > the place where $n died

    parent | parent's trade | 75
    ? What was the trade of the parent who raised $n?
    ? $n was the child of somebody with which trade?

    teacher | teacher | 80
    ? Who taught $n?
    ? Who was the teacher of $n?
    ? Under whom did $n learn as an apprentice or pupil?
    > the teacher of $n
    > the person who taught $n

    studied | place of study | 55
    ? Where did $n spend $his years of study?
    ? In which town did $n study?

    left_because | reason for leaving home | 55
    ? Why did $n leave home?
    ? For what reason did $n leave home?
    ? What made $n leave home?

    spouse | spouse | 65
    ? Whom did $n marry?
    ? To whom was $n married?
    ? Who was the spouse of $n?

    known_for | best known for | 100
    ? What is $n best known for?
    ? For what is $n best known today?
    > what $n is best known for

    nickname | nickname | 55
    ? What was the nickname of $n?
    ? By what nickname was $n known?
    ? Which nickname did people give to $n?

    collected | collection | 60
    ? What did $n collect?
    ? What objects did $n collect?

    pet | animal kept | 45
    ? Which animal did $n keep?
    ? What animal did $n keep at home?

    prize | distinction | 50
    ? Which prize was awarded to $n?
    ? What prize did $n receive?

    friend | correspondent | 65
    ? To whom did $n write letters?
    ? Who received the letters that $n wrote?
    > the person to whom $n wrote letters

    death_cause | cause of death | 60
    ? What was the cause of the death of $n?
    ? What did $n die of?

    burial | place of burial | 50
    ? Where is $n buried?
    ? Where is the grave of $n?
""")

_PAGE = parse_page("""
    $n ($lived) $is a $trade from $land, best known for $known_for.
    $n ($lived) $is a $trade{ of some renown|} who is best known {today |}for $known_for.
    $n ($lived) $is a $trade {active in|from} $land.
    $n ($lived) $is one of the {better|less} known figures of $land{ in {his|that} time|}: a $trade by profession, \\
        and the {maker|name} behind $known_for, for which $he is best known.
    $n ($lived), a $trade{ by profession|}, belonged to the generation that grew up {before the toll reforms|after \\
        the long winters|during the canal years} in $land.
    ~ {Much|Most} of what is known about $him comes from {letters|account books|the notes of a neighbour} that were \\
        found {long afterwards|in an attic}.
    ~ $P reputation has {risen and fallen|changed more than once} since.
    ~ Later writers have often confused $him with other bearers of the name.
    ~ {Unlike|Much unlike} most of $p colleagues, $s left a {large|surprisingly orderly} body of papers.
    ~ Opinions on $him were divided in $p own day and have stayed so.

    ## Life
    ~ No portrait of $him is known, although {two|several} descriptions survive.

    ### Early life | Origins | Youth | Family and childhood
    $s was born in $birthplace in $birth_year, the $child of $parent.
    $s was born in $birth_year in $birthplace, where $p family had lived {for generations|since the great thaw}.
    Born in $birth_year, $s grew up as the $child of $parent.
    $s, the $child of $parent, was born in $birthplace.
    The parish book of $birthplace records that $s was born there {on a market day|in the night of a storm} \\
        in $birth_year.
    The year $birth_year, in which $s was born, was {remembered for its hard winter|a good one for the harvest|not \\
        a quiet one in the region}.
    $s was born in $birth_year{, the {youngest|second|eldest} of {three|four|five} children|}.
    $s came into the world in $birthplace, {in a house behind the granary|where $he was born in a rented room} \\
        {that is shown to visitors|that no longer stands}.
    $P birthplace was $birthplace{, then a smaller place than it is now|, though $he rarely spoke of it|}.
    It was $parent who raised $him{, in circumstances that were neither rich nor poor|, and $he was expected to \\
        take over the trade|}.
    As the $child of $parent, $s {learned early to count|was used to hard work|knew the roads of the region well}.
    $s left home because of $left_because{, and returned only twice|, with little more than a coat|}.
    Because of $left_because, $s {decided to leave|left} home at {sixteen|seventeen|nineteen}.
    ~ As a child $he is said to have been {stubborn|silent|restless|easily bored}{, and fond of long walks|}.
    ~ Of $p schooling little is recorded{, except that $he was often absent|}.
    ~ An aunt who kept {a small shop|the village accounts} gave $him $p first books.

    ### Education | Training | Years of learning
    $s was taught by $teacher, {who thought highly of $him|with whom $he later quarrelled}.
    $teacher, {already well known|by then a demanding master}, was $p teacher and took $him on {as an apprentice|\\
        as a pupil} at sixteen.
    $P teacher was $teacher{, whose methods $he kept for life|, who paid part of the fees|}.
    $P years of study were spent in $studied, where $he {lived above a bakery|lodged with a widow|shared a room \\
        with two cousins}.
    $s went to study in $studied{, which was then a long journey|, against the wish of the family|}, after \\
        $teacher had \\
        taught $him the basics.
    $s went to $studied to study{, and stayed there for {three|four|six} years|}.
    ~ {By $p own account $he|$s} was {a slow|an impatient|a diligent} pupil.
    ~ The training was long and poorly paid.
    < person.teacher : Among those whom $he {taught|later taught} was $x{, who became a $x_sort|}.

    ## Career | Work | Professional life
    As a $trade, $s worked {slowly and corrected much|for whoever paid|mostly at night}.
    $s worked as a $trade {for most of $p life|from the age of twenty}.
    {Of all that $he did, $s|$s} is best known for $known_for{, which $he began late|, although $he thought little \\
        of it $self|}.
    Today $s is best known for $known_for.
    For this {work|service} $he was awarded $prize.
    $s {received|was awarded} $prize{, a distinction rarely given to a $trade|, which $he wore only once|}.
    In later years $he received $prize{ from the hands of the governor|}.
    ~ {At first commissions|Commissions at first} were few, and $s lived {on borrowed money|with relatives}.
    ~ {Colleagues|Contemporaries} praised $p {patience|accuracy|sense of proportion} and complained about $p \\
        {temper|handwriting|prices}.
    ~ {A quarrel about fees|A lawsuit over an unpaid bill} kept $him busy for {two years|some time}.
    ~ Twice $he was offered a position {at court|in the capital}, and twice $he declined.
    ~ $s kept no workshop of $p own and {preferred|liked} to {rent a bench|work in other people's houses}.
    < work.author : In $x_year $he {finished|completed} $x{, a $x_sort|}.
    < work.dedicated : $x, a $x_sort by another hand, is dedicated to $him.
    < device.inventor : It was in $x_year that $he {presented|showed} $x {to a doubtful public|for the first time}.
    < building.architect : $P designs include $x{, finished in $x_year|}.
    < guild.founder : $s founded $x in $x_year.
    < plant.described : $s gave the first description of $x.
    < creature.described : $s gave the first description of $x.
    < ship.captain : For {a few|several} seasons $he was captain of $x.
    < ship.namesake : A ship, $x, {bears $p name|is named after $him}.
    < mountain.first_climber : $s was also the first to {climb|reach the summit of} $x.

    ## Personal life | Character and habits | Private life
    $s married $spouse {in a small ceremony|after a long engagement}{, and the couple had {two|three|no} children|}.
    $P marriage to $spouse was {a happy one|arranged by the families|the subject of gossip}{; they married late|}.
    In $p {thirties|late twenties} $he married $spouse{, who kept the accounts|, a cousin of a colleague|}.
    $s kept $pet{, about which {visitors|neighbours} complained|, which followed $him everywhere|} and collected \\
        $collected.
    At home $he kept $pet{, an animal that appears in several letters|, and would not travel without it|}.
    $s collected $collected{; the collection {filled two rooms|was sold after $p death}|}.
    {Friends|Visitors} noticed that $he collected $collected, {and brought $him more|of all things}.
    {Among friends|In the taverns} $he went by the nickname "$nickname".
    People gave $him the nickname "$nickname"{, which $he disliked|, and $he signed letters with it|}.
    {For many years|Over two decades} $s wrote letters to $friend{, mostly about money|; about forty survive|}.
    $s {regularly|often} wrote long letters to $friend, {who rarely replied|few of which were answered}.
    ~ $s {rose before dawn|never ate before noon|disliked music at table} and {slept little|walked every evening}.
    ~ $s was {known for generous loans|careless with money|afraid of deep water}{, which others used|}.
    < person.friend : The letters that $x wrote to $him {have been printed|survive in part}.

    ## Death and legacy | Last years | Later years and death
    $s died in $death_place in $death_year{, at the age of $age|}.
    $s died of $death_cause in $death_year{, aged $age|}.
    In $death_year $he died in $death_place{, attended by a single servant|, much as $he had lived|}.
    $s died in $death_year{ and was mourned by few|, a year after giving up work|}.
    It was in $death_place that $s died{, on a visit that was meant to be short|}.
    The cause given for $p death was $death_cause{, though rumours said otherwise|}.
    The cause of death was $death_cause.
    $s is buried $burial{, as $he had asked|, under a plain stone|}.
    $P grave, {which is well kept|hard to find}, lies $burial; $he was buried there at $p own wish.
    ~ {An edition of the letters|A small exhibition} was {announced|prepared} several times {but never appeared|and \\
        abandoned}.
    ~ {A street|A school class|A kind of pastry} in {the capital|a neighbouring town} {is named after $him|bears \\
        $p name}.
    ~ $P papers {were burned by a nephew|passed to a distant relative}, so that little can be checked.
    ~ {Modern|Recent} {scholars|historians} see in $him {a craftsman more than a genius|one of the clearest minds \\
        of the \\
        region|a figure of transition}.
""")

_LEAVING = """a quarrel over water rights|the failure of the harvest|an unhappy love affair|a debt at cards|
    the closing of the mine|a dispute about an inheritance|the arrival of the fever|a broken apprenticeship|
    a wager with an uncle|the burning of the family house|a false accusation of theft|the noise of the mills"""
_COLLECTIONS = """door knockers|bird feathers|broken clocks|sea glass|tavern signs|old keys|pressed flowers|
    coins with holes|
    snail shells|street songs|ship figureheads|maps of imaginary islands|wooden spoons|letters of strangers|
    coloured sand|bells of cattle|paper kites|misprinted books"""
_PETS = """a one-eyed goose|a tame raven|a three-legged dog|a blind tortoise|a white hedgehog|a talkative starling|
    a small brown bear|a pair of ferrets|a lame heron|a grey parrot|an old donkey|a toad in a jar|a piebald goat"""
_NICKNAMES = (words_in("Patient Quiet Long Red Left-Handed Sleepless Honest Crooked Barefoot Second Last Deaf"),
              words_in("Heron Fox Ladder Lantern Bellows Badger Teapot Owl Anchor Whistle Sparrow Wheel"))
_PRIZES = (words_in("Silver Golden Bronze Ivory Crystal Blue"),
           words_in("Compass Feather Hourglass Wheel Laurel Key Anchor"))
_DEATHS = """pneumonia|a fall from a ladder|lung fever|a stroke|food poisoning|an infected wound|swamp fever|old age|
    a fall from a horse|the winter cough|heart failure|drowning"""
_BURIALS = """under an old elm outside the walls|beside the north gate|in the garden of the school|
    on a small river island|
    behind the old salt works|in a family vault at the harbour|below the watchtower|at the edge of an apple orchard|
    in an unmarked plot near the mill|next to the pilgrims' well"""



def _derive(person: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    facts = {
        "trade": phrase(person.sort),
        "birth_year": year(person.birth),
        "birthplace": to(person.home) if person.home else phrase("the road"),
        "parent": phrase(dice.pick(PARENT_TRADES)),
        "studied": to(near.far("town", dice)),
        "left_because": one_of(dice, _LEAVING),
        "spouse": near.stranger(dice, is_woman=person.pronoun == "he"),
        "nickname": phrase(f"the {dice.pick(_NICKNAMES[0])} {dice.pick(_NICKNAMES[1])}"),
        "collected": one_of(dice, _COLLECTIONS),
        "pet": one_of(dice, _PETS),
        "prize": phrase(f"the {dice.pick(_PRIZES[0])} {dice.pick(_PRIZES[1])}"),
    }
    if teacher := near.elder(person, dice):
        facts["teacher"] = to(teacher)
    if friend := near.contemporary(person, dice):
        facts["friend"] = to(friend)
    if made := near.made_by(person):
        facts["known_for"] = to(dice.pick(made))
    if person.death:
        facts["death_year"] = year(person.death)
        facts["death_place"] = to(near.other("town", person.home or person, dice))
        facts["death_cause"] = one_of(dice, _DEATHS)
        facts["burial"] = one_of(dice, _BURIALS)
        person.extra["age"] = str(person.death - person.birth)
    person.extra["lived"] = f"{person.birth} to {person.death}" if person.death else f"born {person.birth}"
    person.extra["is"] = "was" if person.death else "is"
    return facts


PERSON = KindSpec(_RELATIONS, _PAGE, _derive)
