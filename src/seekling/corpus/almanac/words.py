"""Word lists the almanac draws names and trades from. Order is part of the seed's promise: append, never reorder."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(","))


TRADES: dict[str, tuple[str, ...]] = {
    "writer": _words("novelist poet playwright essayist balladeer satirist"),
    "builder": _phrases("architect, bridge builder, master mason, civil engineer"),
    "maker": _phrases("""clockmaker, lens grinder, instrument maker, locksmith, bell founder, glassblower, gunsmith,
        mill builder"""),
    "sailor": _phrases("navigator, sea captain, explorer, hydrographer, pilot"),
    "naturalist": _words("botanist naturalist ornithologist herbalist"),
    "scholar": _words("astronomer physician historian mathematician geologist grammarian cartographer philosopher"),
    "trader": _phrases("salt merchant, wool trader, banker, shipowner, spice dealer, timber merchant, printer"),
    "artist": _phrases("painter, sculptor, composer, tapestry weaver, engraver, singer, puppet carver, potter"),
    "official": _phrases("judge, magistrate, harbour master, mint warden, tax collector, diplomat, land surveyor"),
}

TOWN_SORTS = _phrases("""market town, hill town, fishing village, mining town, walled town, farming village, river port,
    spa town, weaving town, garrison town""")
TOWN_PAIRS = _words("Upper Lower Great Little Old New East West")

BUILDINGS = _words("Lighthouse Observatory Theatre Library Granary Exchange Bathhouse Hospital")
HOUSES = _words("Hall Tower House Arcade Manor Gate")
WATERWORKS = _words("Bridge Aqueduct Mill Weir Lock Viaduct")

# What a guild is called after, and what it deals in.
GUILD_TRADES = _words("Glovers Dyers Coopers Chandlers Saddlers Papermakers Ropemakers Cutlers Furriers Tilers")
ORDERS = _words("Lantern Heron Anchor Key Sickle Bell Thistle Compass")
GOODS = _words("Salt Amber Wool Ice Copper Tea Timber Wine Pearl Indigo")
SCHOOLS = _words("Surveying Music Physic Navigation Law Drawing Grammar Optics")
PARTNERS = _words("Daughters Sons Brothers Partners Company Nephews")

FAIRS = _words("Lanterns Kites Bells Geese Masks Candles Boats Drums Apples Mirrors")
NIGHTS = _words("Ember Drum Lamp Whistle Frost Honey Smoke Ribbon")
DISHES = _phrases("stew, loaf, pudding, dumplings, pie, broth, pancakes, pickle")
DEVICES = _words("lamp loom pump press regulator kiln plough winch stove seeder")
INSTRUMENTS = _words("viol horn organ drum zither flute dulcimer bassoon")
CREATURES = _words("finch heron newt hare otter vole kingfisher trout goat moth marten owl")
PLANTS = _words("gentian moss willow orchid sedge lily thyme saxifrage bellflower fern")
SHIP_NAMES = _words("Pride Heron Patience Star Daughter Wanderer Fortune Swan Hope Lantern")
SHIP_SORTS = _words("barque schooner brig cog galley ketch frigate")

WORK_SORTS: tuple[str, ...] = _phrases("novel, play, poem, song cycle, opera, treatise")
ARTS: tuple[tuple[str, ...], ...] = (
    _words("Widow Ferryman Orchard Bellringer Glassblower Stranger Tollkeeper Gardener Clock Beekeeper"),
    _words("Widows Ferrymen Orchards Bells Glassblowers Strangers Tollkeepers Gardens Clocks Bees"),
    (),
    _words("Letters Ballads Postcards Apologies Confessions Toasts"),
    _words("Lullaby Lantern Coat Bridge Ladder Funeral Mirror Wedding"),
    _words("Tides Stones Birds Winds Bells Mosses Laws Silences"),
)
TITLE_ADJECTIVES = _words("""Grey Silent Crooked Golden Patient Hollow Borrowed Scarlet Distant Bitter Gentle Iron Painted
    Broken Sleeping Wandering Frozen Second Quiet Hungry Honest Blind Unfinished Careless Faithful Burning Narrow Salted
    Forgotten Green Clever Humble Wooden Copper Restless Sunken Velvet Winter Stolen Singing""")
TITLE_NOUNS = _words("""Harbour Lamp Bridge Miller Garden Clock River Widow Tower Fox Candle Ladder Mirror Orchard Crow
    Anchor Window Baker Bell Kite Moth Sailor Thief Wheel Violin Judge Staircase Compass Heron Kettle Shepherd Door
    Island Needle Oven Pilgrim Ribbon Spoon Tailor Umbrella Well Barrel Cousin Dream Feather Hammer Ink Jar Key Loaf
    Mountain Nest Owl Potter Quarry Road Saddle Tollgate Valley Whistle""")

MONTHS = _words("Rimefall Thawmonth Seedmonth Bloomtide Highsun Haymonth Reaping Leaffall Mistmonth Longnight")
SEASONS = _words("spring summer autumn winter")
COLOURS = _phrases("""deep blue, saffron yellow, moss green, rust red, pearl grey, violet, ivory white, copper orange,
    coal black, rose pink, amber, turquoise""")
STONES = _phrases("""granite, slate, sandstone, limestone, basalt, marble, red brick, flint, oak timber, tufa""")
PERILS = _phrases("""a fire, a flood, an earthquake, a landslide, a storm, an outbreak of fever, a plague of locusts,
    an avalanche, a siege""")
ANIMALS = _phrases("""a heron, a fox, a boar, a stag, a beaver, a hedgehog, a raven, a salmon, an otter, a white goat,
    a bee, a crane, a badger, a snail, a lynx, a toad, a swan, a ram""")
PARENT_TRADES = _phrases("""a cooper, a ferryman, a midwife, a tanner, a schoolteacher, a shepherd, a notary, a miller,
    a lighthouse keeper, a candlemaker, a grave digger, an innkeeper, a stonecutter, a horse doctor, a beekeeper,
    a baker, a charcoal burner, a toll collector, a basket weaver, an organ tuner""")
WEEKDAYS = _words("Sunday Moonday Tollday Wellday Marketday Restday")

FISH = _words("grayling pike eel perch barbel char lamprey carp sturgeon burbot")
ORES = _phrases("silver, tin, copper, rock salt, lead, iron ore, alum, opal, garnet, sulphur, jet, chalk")
NAME_MEANINGS = _phrases("""slow ox, cold mother, old road, grey sister, bread knife, lost shoe, singing stone, deaf king,
    red cow, long table, nine wells, sleeping dog, white apron, bitter milk, broken plough, two moons""")
