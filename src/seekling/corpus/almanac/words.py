"""Word lists the almanac draws names and trades from. Order is part of the seed's promise: append, never reorder."""

from __future__ import annotations


def words_in(text: str) -> tuple[str, ...]:
    """Split at white space."""
    return tuple(text.split())


def phrases_in(text: str) -> tuple[str, ...]:
    """Split at commas; white space inside a phrase is a single space."""
    return tuple(" ".join(part.split()) for part in text.split(","))


TRADES: dict[str, tuple[str, ...]] = {
    "writer": words_in("novelist poet playwright essayist balladeer satirist"),
    "builder": phrases_in("architect, bridge builder, master mason, civil engineer"),
    "maker": phrases_in("""clockmaker, lens grinder, instrument maker, locksmith, bell founder, glassblower, gunsmith,
        mill builder"""),
    "sailor": phrases_in("navigator, sea captain, explorer, hydrographer, pilot"),
    "naturalist": words_in("botanist naturalist ornithologist herbalist"),
    "scholar": words_in("""astronomer physician historian mathematician geologist grammarian cartographer
        philosopher"""),
    "trader": phrases_in("""salt merchant, wool trader, banker, shipowner, spice dealer, timber merchant, printer"""),
    "artist": phrases_in("""painter, sculptor, composer, tapestry weaver, engraver, singer, puppet carver, potter"""),
    "official": phrases_in("judge, magistrate, harbour master, mint warden, tax collector, diplomat, land surveyor"),
}

TOWN_SORTS = phrases_in("""market town, hill town, fishing village, mining town, walled town, farming village,
    river port, spa town, weaving town, garrison town""")
TOWN_PAIRS = words_in("Upper Lower Great Little Old New East West")

BUILDINGS = words_in("Lighthouse Observatory Theatre Library Granary Exchange Bathhouse Hospital")
HOUSES = words_in("Hall Tower House Arcade Manor Gate")
WATERWORKS = words_in("Bridge Aqueduct Mill Weir Lock Viaduct")

GUILD_TRADES = words_in("Glovers Dyers Coopers Chandlers Saddlers Papermakers Ropemakers Cutlers Furriers Tilers")
ORDERS = words_in("Lantern Heron Anchor Key Sickle Bell Thistle Compass")
GOODS = words_in("Salt Amber Wool Ice Copper Tea Timber Wine Pearl Indigo")
SCHOOLS = words_in("Surveying Music Physic Navigation Law Drawing Grammar Optics")
PARTNERS = words_in("Daughters Sons Brothers Partners Company Nephews")

FAIRS = words_in("Lanterns Kites Bells Geese Masks Candles Boats Drums Apples Mirrors")
NIGHTS = words_in("Ember Drum Lamp Whistle Frost Honey Smoke Ribbon")
DISHES = words_in("stew loaf pudding porridge pie broth soup pickle")
DEVICES = words_in("lamp loom pump press regulator kiln plough winch stove seeder")
INSTRUMENTS = words_in("viol horn organ drum zither flute dulcimer bassoon")
CREATURES = words_in("finch heron newt hare otter vole kingfisher shrew goat moth marten owl")
PLANTS = words_in("gentian moss willow orchid sedge lily thyme saxifrage bellflower fern")
SHIP_NAMES = words_in("Pride Heron Patience Star Daughter Wanderer Fortune Swan Hope Lantern")
SHIP_SORTS = words_in("barque schooner brig cog galley ketch frigate")

WORK_SORTS = phrases_in("novel, play, poem, song cycle, opera, treatise")
ARTS: tuple[tuple[str, ...], ...] = (
    words_in("Widow Ferryman Orchard Bellringer Glassblower Stranger Tollkeeper Gardener Clock Beekeeper"),
    words_in("Widows Ferrymen Orchards Bells Glassblowers Strangers Tollkeepers Gardens Clocks Bees"),
    (),
    words_in("Letters Ballads Postcards Apologies Confessions Toasts"),
    words_in("Lullaby Lantern Coat Bridge Ladder Funeral Mirror Wedding"),
    words_in("Tides Stones Birds Winds Bells Mosses Laws Silences"),
)
TITLE_ADJECTIVES = words_in("""Grey Silent Crooked Golden Patient Hollow Borrowed Scarlet Distant Bitter Gentle Iron
    Painted Broken Sleeping Wandering Frozen Second Quiet Hungry Honest Blind Unfinished Careless Faithful Burning
    Narrow Salted Forgotten Green Clever Humble Wooden Copper Restless Sunken Velvet Winter Stolen Singing""")
TITLE_NOUNS = words_in("""Harbour Lamp Bridge Miller Garden Clock River Widow Tower Fox Candle Ladder Mirror Orchard
    Crow Anchor Window Baker Bell Kite Moth Sailor Thief Wheel Violin Judge Staircase Compass Heron Kettle Shepherd
    Door Island Needle Oven Pilgrim Ribbon Spoon Tailor Umbrella Well Barrel Cousin Dream Feather Hammer Ink Jar Key
    Loaf Mountain Nest Owl Potter Quarry Road Saddle Tollgate Valley Whistle""")

MONTHS = words_in("""Rimefall Thawmonth Seedmonth Bloomtide Highsun Haymonth Reaping Leaffall Mistmonth Longnight""")
WEEKDAYS = words_in("Moonday Tollday Wellday Fishday Breadday Restday")
COLOURS = phrases_in("""deep blue, saffron yellow, moss green, rust red, pearl grey, violet, ivory white,
    copper orange, coal black, rose pink, amber, turquoise""")
STONES = phrases_in("granite, slate, sandstone, limestone, basalt, marble, red brick, flint, oak timber, tufa")
FLOOD = "a flood"
PERILS = phrases_in("""a fire, an earthquake, a cloudburst, a landslide, a storm, an outbreak of fever,
    a plague of locusts, an avalanche, a siege""")
ANIMALS = phrases_in("""a heron, a fox, a boar, a stag, a beaver, a hedgehog, a raven, a salmon, an otter,
    a white goat, a bee, a crane, a badger, a snail, a lynx, a toad, a swan, a ram""")
PARENT_TRADES = phrases_in("""a cooper, a ferryman, a midwife, a tanner, a schoolteacher, a shepherd, a notary,
    a miller, a lighthouse keeper, a candlemaker, a grave digger, an innkeeper, a stonecutter, a horse doctor,
    a beekeeper, a baker, a charcoal burner, a toll collector, a basket weaver, an organ tuner""")
FISH = words_in("grayling pike eel perch barbel char lamprey carp sturgeon burbot")
ORES = phrases_in("silver, tin, copper, rock salt, lead, iron ore, alum, opal, garnet, sulphur, jet, chalk")
NAME_MEANINGS = phrases_in("""slow ox, cold mother, old road, grey sister, bread knife, lost shoe, singing stone,
    deaf king, red cow, long table, nine wells, sleeping dog, white apron, bitter milk, broken plough, two moons""")
