"""Inventions, musical instruments and ships."""

from __future__ import annotations

from seekling.corpus.almanac.dice import Dice
from seekling.corpus.almanac.model import Entity, Fact, KindSpec, amount, one_of, phrase, to, year
from seekling.corpus.almanac.near import Near
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.words import ANIMALS, COLOURS, GOODS, phrases_in

_DEVICE = parse_relations("""
    inventor | inventor | 100
    ? Who invented $n?
    ? Who was the inventor of $n?
    > the inventor of $n
    > the person who invented $n

    invented | year of invention | 100
    ? In which year was $n invented?
    ? When was $n invented?
    - Which was invented first, $a or $b?
    + Which was invented later, $a or $b?

    material | material | 80
    ? What is $n made of?
    ? Of which material is $n made?

    weight | weight | 70
    ? How heavy is $n?
    ? What is the weight of $n?

    inspired_by | inspiration | 70
    ? What gave the inventor the idea for $n?
    ? Where did the idea for $n come from?

    first_used | first use | 75
    ? Where was $n first used?
    ? In which place was $n used for the first time?
    > the place where $n was first used

    flaw | flaw | 70
    ? What was the main flaw of the first model of $n?
    ? Which flaw did the first model of $n have?

    price | price | 65
    ? What was the price of $n?
    ? How much did $n cost when it was new?

    maker | manufacturer | 70
    ? Which firm or body bought the rights to $n?
    ? Who bought the rights to $n?
    > the body that bought the rights to $n

    copies | number built | 60
    ? How many copies of $n were built?
    ? What number of copies of $n was built?

    kept_in | where the first model is | 60
    ? In which town is the first model of $n kept?
    ? Where is the first model of $n kept?
""")

_DEVICE_PAGE = parse_page("""
    $n is $a_sort invented in $invented by $inventor.
    $n is $a_sort invented by $inventor{ and used in many provinces|}.
    $n, invented in $invented, is $a_sort {of the region|known well beyond $land}.
    $n is $a_sort {from $land|of some importance}, made of $material.
    ~ It should not be confused with {similar|other} {things|objects} that bear the same family name.
    ~ {Its|The} name is {older than its fame|sometimes spelled differently}.

    ## Invention | Origin and invention | History
    $s was invented in $invented by $inventor{, after {three|seven} failed attempts|}.
    $inventor invented $b{ in a rented shed|, then short of money|}.
    {The year of its invention is given as|It was invented in} $invented.
    The idea for $b came from $inspired_by{, or so the inventor {claimed|told visitors}|}.
    What gave the inventor the idea was $inspired_by.
    $s was first used in $first_used, {where crowds gathered|to general amusement}.
    It was in $first_used that $b was used for the first time.
    The rights to $b were bought by $maker{ for a small sum|, and resold at a profit|}.
    $maker bought the rights{ to $b|}.
    ~ {Drawings|Sketches} for it {cover|fill} {the walls of a shed|eleven notebooks}.
    ~ {The first|A public} {trial|demonstration} {ended|finished} {in smoke|with applause and a broken window}.
    ~ {Lenders|A brother-in-law} {paid|had to pay} for the {tools|moulds} and {waited|asked} for {the money|years}.
    ~ {A patent|The patent} was {refused|granted} {twice|only after a lawsuit}.
    ~ {Imitations|Cheap copies} {soon appeared|were on sale within a year}.
    < person.known_for : Strangers {often|still} know $x for nothing else.

    ## Description | Construction | Design
    $s is made of $material and has a weight of $weight.
    $s is made {mostly|largely} of $material.
    The weight of $b is $weight{, {without the case|which made it hard to sell}|}.
    The main flaw of the first model was $flaw{, {soon corrected|never quite cured}|}.
    {Early users|Users} complained about $flaw, the main flaw of the first model.
    ~ It has fewer {moving parts|joints} than {one would think|the drawings suggest}.
    ~ [instrument] The {tone|sound} is {dark|nasal} and {carries far|fills a large room}, {players|pupils} \\
        need {patience|long fingers}.
    ~ [instrument] {Tuning|Its tuning} takes {an hour|a good ear} and {lasts|holds} {until the weather \\
        changes|for a day}.
    ~ [device] {A child|One person} can {work|operate} it, {though not for long|as advertisements promised}.
    ~ [device] {A lever|A crank} {on the side|at the back} {sets it going|starts it}, {and a second stops \\
        it|usually}.
    ~ {Later models|Newer versions} are {lighter|quieter} but {less loved|break sooner}.

    ## Use and sale | Distribution | Later fate
    When it was new, $b cost $price{, {the price of a good horse|more than most could pay}|}.
    The price of $b was $price.
    In all, $copies copies of $b were built{, {of which few survive|most of them by hand}|}.
    The first model is kept in $kept_in{, {behind glass|but not on show}|}.
    $s survives in its first model, which is kept in $kept_in.
    ~ {Collectors|Museums} {pay|have paid} {high|surprising} prices for {early|numbered} {pieces|examples}.
    ~ {Spare parts|Repairs} were {hard to get|a business of their own} {from the start|for decades}.
    ~ {Apprentices|Schoolchildren} {draw|drew} it {as an exercise|in their second year}.
""")
_METALS = "brass|walnut wood|cast iron|copper|pear wood|tin|ash wood|steel|bronze|horn|ivory|maple wood"
_IDEAS = """a child's toy|the wing of a beetle|a broken clock|the sound of rain|a water wheel|a loose door hinge|
    a spinning coin|a coffee mill|the ribs of a boat|a dripping tap|a street organ|a mole trap"""
_FLAWS = """its loud noise|its smell|the weak spring|leaking joints|its short life|the fragile handle|its high price|
    rust|its thirst for oil|a tendency to overheat|its slow start|the crooked axle"""


def _derive_device(device: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    device.extra["a_sort"] = "a musical instrument" if device.sort == "instrument" else "a device"
    return {
        "inventor": to(device.maker or near.all_of("person")[0]),
        "invented": year(device.year),
        "material": one_of(dice, _METALS),
        "weight": amount(dice.between(2, 95), "pounds"),
        "inspired_by": one_of(dice, _IDEAS),
        "first_used": to(device.home or near.all_of("town")[0]),
        "flaw": one_of(dice, _FLAWS),
        "price": amount(dice.between(3, 120), "crowns"),
        "maker": to(dice.pick(near.all_of("guild"))),
        "copies": amount(dice.between(14, 4200)),
        "kept_in": to(near.far("town", dice)),
    }


_SHIP = parse_relations("""
    port | home port | 100
    > the home port of $n

    launched | year of launch | 95
    ? In which year was $n launched?
    ? When was $n launched?
    - Which ship was launched first, $a or $b?
    + Which ship was launched later, $a or $b?

    captain | captain | 85
    ? Who was the captain of $n?
    ? Which captain commanded $n?
    > the captain of $n

    length | length | 80
    ? How long was $n?
    ? What was the length of $n?
    - Which ship was shorter, $a or $b?
    + Which ship was longer, $a or $b?

    crew | crew | 70
    ? How many people were in the crew of $n?
    ? How large was the crew of $n?
    - Which ship had the smaller crew, $a or $b?
    + Which ship had the larger crew, $a or $b?

    cargo | cargo | 75
    ? What cargo did $n carry?
    ? Which cargo was $n built to carry?

    figurehead | figurehead | 70
    ? What did the figurehead of $n show?
    ? Which animal was the figurehead of $n?

    sails | colour of the sails | 65
    ? What colour were the sails of $n?
    ? Which colour did the sails of $n have?

    fate | fate, how lost | 80
    ? What was the fate of $n?
    ? How was $n lost in the end?

    lost | year lost | 80
    ? In which year was $n lost?
    ? When was $n lost?

    cat | ship's cat called | 50
    ? What was the name of the cat on board $n?
    ? What was the ship's cat of $n called?

    namesake | namesake | 80
    ? After whom was $n named?
    ? Who was $n named after?
    > the person after whom $n was named

    owner | owner | 65
    ? Who was the owner of $n?
    ? Which body owned $n?
    > the owner of $n
""")

_SHIP_PAGE = parse_page("""
    $n was a $sort launched in $launched{ and lost in $lost|}.
    $n was a $sort with $port as home port.
    $n was a $sort commanded by $captain, with $port as home port.
    $n was a $sort of $land{, unlucky even by the standards of the time|}.
    $n, launched in $launched, was a $sort {that made its name in rough seas|known in every harbour tavern}.
    ~ {Model builders|Painters} have {always|often} {favoured it|chosen it} for {its fine lines|the shape of \\
        its stern}.

    ## Construction | Design | Building and equipment
    $s was launched in $launched{, {without ceremony|with a band playing}|}.
    The length of $b was $length, and its crew numbered $crew people.
    $s was $length long{, {not counting the bowsprit|longer than the yard itself}|}.
    The crew of $b numbered $crew people{, cook included|}.
    The figurehead of $b showed $figurehead{, {carved from lime wood|which was repainted every spring}|}.
    The figurehead was $figurehead{, {said to bring luck|badly carved}|}, and the sails had a $sails colour.
    The sails of $b were $sails in colour{, which {made it easy to recognise|annoyed the pilots}|}.
    $s was named after $namesake{, {who never came aboard|who paid for the sails}|}.
    $s belonged to $owner, its owner{ until the end|}.
    The owner of $b was $owner.
    ~ {Timber|The timber} was cut {in winter|in a single forest} and lay {in a dry shed|in salt water} for \\
        {two|three} years.
    ~ {The anchor|Its anchor} was {second-hand|too light} and {dragged|slipped} {in every gale|more than once}.
    ~ {Shipwrights|Builders} {thought|considered} the {hull|keel} too {narrow|heavy}.

    ## Service | Voyages | Career
    The home port of $b was $port{, {where it wintered|though it was rarely there}|}.
    The captain of $b was $captain{, {strict but fair|feared for long speeches}|}.
    $captain, its captain, {kept a diary on board|knew every sandbank}.
    The cargo $b {was built to carry|mostly carried} was $cargo.
    $s carried a cargo of $cargo{ on most voyages|, and now and then passengers|}.
    The ship's cat{ on board|} was called $cat{, {and is named in the log|a good ratter}|}.
    ~ {Passengers|Travellers} {complained|wrote home} about {the noise|the food} and {praised|admired} the \\
        {speed|view}.
    ~ {A mutiny|One mutiny} {broke out|was planned} over {biscuits|unpaid wages} and {ended|collapsed} {at \\
        supper|by itself}.
    ~ {In winter|Between voyages} it {lay under canvas|was laid up} and {housed|sheltered} {a family of \\
        smiths|pigeons}.
    ~ {Storms|Calms} {delayed|spoiled} {most|many} of its voyages, and {the cook|the carpenter} {deserted \\
        twice|was replaced often}.
    ~ {Customs officers|Inspectors} {searched it often|came aboard often} and {found nothing|found little}.

    ## Loss | End and wreck | Fate
    In $lost $s was lost: it $fate.
    $s was lost in $lost.
    In the end the ship $fate{; {most of|all} the crew were saved|}.
    ~ {Insurers|The underwriters} {refused to pay|paid only when a court had decided}.
    ~ {A bell|The bell} {said to be|believed to be} from it {hangs|rings} in a {chapel|school}.
    ~ {Divers|Fishermen} have {looked|searched} for {the wreck|remains} {without success|ever since}.
""")
_FATES = """ran onto a reef|burned at anchor|sank in a storm|was crushed by ice|was sold for firewood|
    was taken by pirates|
    capsized in harbour|vanished in fog|struck a sandbank|was rammed by a ferry"""
_CATS = phrases_in("Biscuit, Admiral, Pepper, Tar, Madam, Button, Thunder, Anchovy, Bishop, Soot, Mustard, Ballast")


def _derive_ship(ship: Entity, near: Near, dice: Dice) -> dict[str, Fact]:
    captain = ship.maker or near.all_of("person")[0]
    facts = {
        "port": to(ship.home or near.all_of("town")[0]),
        "launched": year(ship.year),
        "captain": to(captain),
        "length": amount(dice.between(14, 78), "metres", "m"),
        "crew": amount(dice.between(9, 160)),
        "cargo": phrase(dice.pick(GOODS).lower()),
        "figurehead": phrase(dice.pick(ANIMALS)),
        "sails": phrase(dice.pick(COLOURS)),
        "fate": one_of(dice, _FATES),
        "lost": year(dice.between(ship.year + 3, min(ship.year + 60, 995))),
        "cat": phrase(dice.pick(_CATS)),
        "owner": to(dice.pick([g for g in near.all_of("guild") if g.year <= ship.year] or near.all_of("guild"))),
    }
    number = int(ship.extra.pop("namesake"))
    if number >= 0:
        facts["namesake"] = to(near.all_of("person")[number])
    return facts


DEVICE = KindSpec(_DEVICE, _DEVICE_PAGE, _derive_device)
SHIP = KindSpec(_SHIP, _SHIP_PAGE, _derive_ship)
