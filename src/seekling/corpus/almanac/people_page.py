"""How the page of a person talks."""

from __future__ import annotations

from seekling.corpus.almanac.spec import parse_page

PERSON_PAGE = parse_page("""
    $n ($lived) $is a $trade from $land, best known for $known_for.
    $n ($lived) $is a $trade{ of some renown|} who is best known {today |}for $known_for.
    $n ($lived) $is a $trade {active in|from} $land.
    $n ($lived) $is one of the {better|less} known figures of $land{ in {his|that} time|}: a $trade by \\
        profession, and the {maker|name} behind $known_for, for which $he is best known.
    $n ($lived), a $trade{ by profession|}, belonged to the generation that grew up {before the toll \\
        reforms|after the long winters|during the canal years} in $land.
    ~ {Much|Most} of what is known about $him comes from {letters|account books|the notes of a neighbour} \\
        that were found {long afterwards|in an attic}.
    ~ $P reputation has {risen and fallen|changed more than once} since.
    ~ Later writers have often confused $him with other bearers of the name.
    ~ {Unlike|Much unlike} most of $p colleagues, $s left a {large|surprisingly orderly} body of papers.
    ~ Opinions on $him were divided in $p own day and have stayed so.
    ~ $P name is {still|also} given to {children|boats} in the region.
    ~ {Most|Nearly all} accounts of $p life go back to {one|a single} {unfriendly|admiring} biography.
    ~ {In schoolbooks|In older handbooks} $he is {often|usually} given {two lines|half a page}, {most of it \\
        wrong|which is about right}.

    ## Life
    ~ No portrait of $him is known, although {two|several} descriptions survive.

    ### Early life | Origins | Youth | Family and childhood
    $s was born in $birthplace in $birth_year, the $child of $parent.
    $s was born in $birth_year in $birthplace, where $p family had lived {for generations|since the great thaw}.
    Born in $birth_year, $s grew up as the $child of $parent.
    $s, the $child of $parent, was born in $birthplace.
    The parish book of $birthplace records that $s was born there {on a market day|in the night of a storm} \\
        in $birth_year.
    The year $birth_year, in which $s was born, was {remembered for its hard winter|a good one for the \\
        harvest|not a quiet one in the region}.
    $s was born in $birth_year{, the {youngest|second|eldest} of {three|four|five} children|}.
    $s came into the world in $birthplace, {in a house behind the granary|where $he was born in a rented \\
        room} {that is shown to visitors|that no longer stands}.
    $P birthplace was $birthplace{, then a smaller place than it is now|, though $he rarely spoke of it|}.
    $s was the $child of $parent, who raised $him alone{, in circumstances \\
        that were neither rich nor poor|, and $he was expected to take over the trade|}.
    As the $child of $parent, $s {learned early to count|was used to hard work|knew the roads of the region well}.
    $s left home because of $left_because{, and returned only twice|, with little more than a coat|}.
    Because of $left_because, $s {decided to leave|left} home at {sixteen|seventeen|nineteen}.
    ~ As a child $he is said to have been {stubborn|silent|restless|easily bored}{, and fond of long walks|}.
    ~ Of $p schooling little is recorded{, except that $he was often absent|}.
    ~ An aunt who kept {a small shop|the village accounts} gave $him $p first books.
    ~ The family {moved house|changed lodgings} {four|five} times before {the children|the eldest} could read.
    ~ {Later|In old age} $he {spoke|liked to speak} of these years as {the only free ones|a long winter}.
    ~ {Neighbours|Relatives} remembered {a quiet house|a house full of visitors} {and a child that asked \\
        questions|and little to eat}.
    ~ {Illness|A long illness} {kept|tied} $him {indoors|to $p bed} for {most of a year|two winters}, and $he \\
        learned to {read|draw|calculate} with no help but that of a {grandmother|lodger}.
    ~ [sailor] The {first boat $he steered|smell of tar}, $he later said, {decided everything|was all the \\
        schooling $he needed}.
    ~ [writer] {A small theatre|A box of old almanacs} in {the neighbourhood|an attic} {is said to have|may \\
        have} decided {the rest|$p future}.
    ~ [naturalist] $P {first|earliest} {drawings|notes}, of {snails|weeds}, {date from|were made in} these years.
    ~ [maker] By the age of ten $he could {take apart|repair} {any clock|every lock} in the house, {if not \\
        always put it back together|to the alarm of the family}.

    ### Education | Training | Years of learning
    $s was taught by $teacher, {who thought highly of $him|with whom $he later quarrelled}.
    $teacher, {already well known|by then a demanding master}, was $p teacher and took $him on {as an \\
        apprentice|as a pupil} at sixteen.
    $P teacher was $teacher{, whose methods $he kept for life|, who paid part of the fees|}.
    $P years of study were spent in $studied, where $he {lived above a bakery|lodged with a widow|shared a \\
        room with two cousins}.
    $s went to study in $studied{, which was then a long journey|, against the wish of the family|}, after \\
        $teacher had taught $him the basics.
    $s went to $studied to study{, and stayed there for {three|four|six} years|}.
    ~ {By $p own account $he|$s} was {a slow|an impatient|a diligent} pupil.
    ~ The training was long and poorly paid.
    ~ {Fellow pupils|Others who learned there} {thought|found} $him {arrogant|shy|older than $p years}.
    ~ {An examination|The final examination} was {passed|taken} at the second attempt.
    ~ {From these years|From this time} {comes|dates} $p {habit|custom} of {writing everything down|working \\
        on feast days|sleeping in the afternoon}.
    ~ [scholar official] {Books|The necessary books} were {borrowed|copied by hand} and {returned late|sold again}.
    ~ [maker builder artist] The {first piece|piece} $he made alone was {broken up|melted down}, {as custom \\
        demanded|and $he kept a splinter of it}.
    < person.teacher : Among those whom $he {taught|later taught} was $x{, who became a $x_sort|}.
    < person.teacher : $x{, later a $x_sort,|} was one of $p pupils.
    < person.teacher : $s {in turn|later} taught $x.

    ## Career | Work | Professional life
    As a $trade, $s {worked for whoever paid|worked longer hours than most|trusted nobody's figures but $p \\
        own|was slow to accept new methods}.
    $s worked as a $trade {for most of $p life|from the age of twenty}.
    {Of all that $he did, $s|$s} is best known for $known_for{, which $he began late|, although $he thought \\
        little of it $self|}.
    Today $s is best known for $known_for.
    For this {work|service} $he was awarded a prize, $prize.
    $s {received|was awarded} a prize, $prize{, a distinction rarely given to a $trade|, which $he wore only once|}.
    In later years $he received a prize, $prize{ from the hands of the governor|}.
    ~ {At first commissions|Commissions at first} were few, and $s lived {on borrowed money|with relatives}.
    ~ {Colleagues|Contemporaries} praised $p {patience|accuracy|sense of proportion} and complained about $p \\
        {temper|handwriting|prices}.
    ~ {A quarrel about fees|A lawsuit over an unpaid bill} kept $him busy for {two years|some time}.
    ~ Twice $he was offered a position {at court|in the capital}, and twice $he declined.
    ~ [maker artist builder] $s kept no workshop of $p own and {preferred|liked} to {rent a bench|work in \\
        other people's houses}.
    ~ {Orders|Offers} from {abroad|other provinces} {came late|were few}, and {some|several} were never \\
        {paid|carried out}.
    ~ {Success|Recognition} came {slowly|late}, and {not from the side $he had hoped|mostly from strangers}.
    ~ For {some years|three years} $he did {hardly any|no} work, {for reasons $he never gave|and lived on savings}.
    ~ $P {accounts|working notes}, {kept with care|written in a private shorthand}, {show|prove} how {little \\
        was left over|often plans were changed}.
    ~ [writer] {Publishers|Printers} {paid little|asked for cuts}, and $he {answered|replied} {in verse|with \\
        silence}.
    ~ [writer] $P {manuscripts|drafts} were written {on the backs of bills|in green ink} and {hard to \\
        read|dictated in part}.
    ~ [writer] {A bitter|An old} feud with a {reviewer|rival} {fills|filled} {many|several} pages of the \\
        {journals|papers} of the day.
    ~ [builder] {Models|Wooden models} of unbuilt {projects|designs} {stood|stand} in $p {office|study} to the end.
    ~ [builder] $s {distrusted|disliked} {domes|columns} and {used|praised} {plain walls|local materials} \\
        wherever $he could.
    ~ [maker] {Not one|Not a single piece} left the workshop that $he had not {tested|taken apart} {twice|for \\
        a week}.
    ~ [maker] {Assistants|Apprentices} were {forbidden|not allowed} to {talk|whistle} while {the lathe|the \\
        furnace} was running.
    ~ [sailor] $P {charts|logbooks} were {kept secret|copied in secret} and {are still admired|later proved \\
        accurate}.
    ~ [sailor] {Twice|Once} $he was {given up for lost|shipwrecked} and {came home on foot|returned with a beard}.
    ~ [naturalist] $P {herbarium|cabinet} {held|contained} {some|almost} {nine hundred|two thousand} sheets, \\
        {each with a remark about the weather|all neatly labelled}.
    ~ [naturalist] {In the field|On excursions} $he {wore|carried} {a tin box|two hats} and {spoke to nobody|sang}.
    ~ [scholar] $P lectures {began|were held} at {five in the morning|dusk} and were {badly attended|always full}.
    ~ [scholar] $s {published little|withdrew two papers} and {preferred|liked} to {correct|annotate} \\
        {others|the work of others}.
    ~ [trader] $P {warehouses|stores} {burned|were flooded} once, and $he {rebuilt them in stone|paid every \\
        creditor}.
    ~ [trader] {Competitors|Rivals} {accused|suspected} $him of {fixing prices|bribing the weighers}, \\
        {without proof|perhaps rightly}.
    ~ [artist] {Few|Only a few} pieces are signed, and {attributions|dates} {vary|are disputed}.
    ~ [artist] {Patrons|Customers} {waited|had to wait} for years{, and some died waiting|}.
    ~ [official] $P {rulings|reports} were {short|famously short} and {seldom|never} {overturned|corrected}.
    ~ [official] {Bribes|Gifts} were {sent back|returned} {unopened|with a receipt}.
    < work.author : In $x_year $he {finished|completed} $x{, a $x_sort|}.
    < work.author : $P $x_sort $x {dates from|was completed in} $x_year.
    < work.author : Among the titles that bear $p name is $x, a $x_sort {of $x_year|completed in $x_year}.
    < work.dedicated : $x, a $x_sort by another hand, is dedicated to $him.
    < device.inventor : It was in $x_year that $he {presented|showed} $x {to a doubtful public|for the first time}.
    < building.architect : $P designs include $x{, finished in $x_year|}.
    < building.architect : $s also {built|planned} $x{, {a work of $p middle years|with some reluctance}|}.
    < building.architect : {In $x_year $x was|The year $x_year saw $x} {completed|opened} after $p plans.
    < guild.founder : $s founded $x in $x_year.
    < guild.founder : With {some partners|a few friends} $he set up $x{ in $x_year|}.
    < plant.described : $s gave the first description of $x.
    < creature.described : $s gave the first description of $x.
    < ship.captain : For {a few|several} seasons $he was captain of $x.
    < ship.namesake : A ship, $x, {bears $p name|is named after $him}.
    < mountain.first_climber : $s was also the first to {climb|reach the summit of} $x.

    ## Personal life | Character and habits | Private life
    $s married $spouse {in a small ceremony|after a long engagement}{, and the couple had {two|three|no} children|}.
    $s was married to $spouse, and the marriage was {a happy one|arranged by the families|the subject of gossip}.
    In $p {thirties|late twenties} $he married $spouse{, who kept the accounts|, a cousin of a colleague|}.
    At home $s kept $pet{, about which {visitors|neighbours} complained,|, which followed $him everywhere,|} \\
        and collected $collected.
    At home $he kept $pet{, an animal that appears in several letters|, and would not travel without it|}.
    $s collected $collected{; the collection {filled two rooms|was sold after $p death}|}.
    {Friends|Visitors} noticed that $he collected $collected, {and brought $him more|of all things}.
    {Among friends|In the taverns} $he went by the nickname "$nickname".
    People gave $him the nickname "$nickname"{, which $he disliked|, and $he signed letters with it|}.
    {For many years|Over two decades} $s wrote letters to $friend{, mostly about money|; about forty survive|}.
    $s {regularly|often} wrote long letters to $friend, {who rarely replied|few of which were answered}.
    ~ $s {rose before dawn|never ate before noon|disliked music at table} and {slept little|walked every evening}.
    ~ $s was {known for generous loans|careless with money|afraid of deep water}.
    ~ {Guests|Visitors} were {received in the kitchen|offered cold soup} and {sent home early|expected to sing}.
    ~ $P {house|household} was {run by|in the hands of} {a sister|an old servant}, {whom everybody feared|to \\
        whom $he left everything}.
    ~ $s {played|practised} the {flute|fiddle} {badly and often|in secret} and {sang|hummed} at work.
    ~ {For dinner|In the evening} $he {took|had} {nothing but|only} {bread and onions|a bowl of milk}.
    ~ {Superstitious|Cautious} in {small matters|everything}, $he {would not|would never} {sit with $p back to a \\
        door|begin anything after sunset}.
    ~ $s {spoke {three|four} languages, all with the same accent|read {three|four} languages, none of them aloud}.
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
    ~ {An edition of the letters|A small exhibition} was {announced|prepared} several times {but never \\
        appeared|and abandoned}.
    ~ {A street|A school class|A kind of pastry} in {the capital|a neighbouring town} {is named after \\
        $him|bears $p name}.
    ~ $P papers {were burned by a nephew|passed to a distant relative}, so that little can be checked.
    ~ {A statue|A monument}, {planned for decades|often promised}, {was never built|stands in the wrong place}.
    ~ {The tools|The books} $he {used|owned} were {sold|auctioned} {within a week|to pay debts}.
    ~ {In recent years|Of late} {interest in|attention to} $p work has {grown|returned}.
    ~ [writer] {Several|Two} {lines|phrases} of $p have become {proverbs|common sayings}.
    ~ [maker builder] {Much|Some} of what $he made is {still in use|still in daily use}, {usually|often} \\
        without a name on it.
    ~ [scholar naturalist] {A method of counting|A fossil snail|A disease of sheep} {bears|was given} $p name.
    ~ [sailor] {A shoal|A cape} {on the charts|far to the south} {bears|carries} $p name.
    ~ {Modern|Recent} {scholars|historians} see in $him {a craftsman more than a genius|one of the clearest \\
        minds of the region|a figure of transition}.
""")
