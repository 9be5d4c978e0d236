"""All kinds of pages by name."""

from __future__ import annotations

from seekling.corpus.almanac.buildings import BUILDING
from seekling.corpus.almanac.customs import DISH, FESTIVAL
from seekling.corpus.almanac.devices import DEVICE, SHIP
from seekling.corpus.almanac.guilds import GUILD
from seekling.corpus.almanac.heights import LAKE, MOUNTAIN
from seekling.corpus.almanac.model import KindSpec
from seekling.corpus.almanac.people import PERSON
from seekling.corpus.almanac.provinces import PROVINCE
from seekling.corpus.almanac.rivers import RIVER
from seekling.corpus.almanac.species import CREATURE, PLANT
from seekling.corpus.almanac.towns import TOWN
from seekling.corpus.almanac.works import WORK

KINDS: dict[str, KindSpec] = {
    "province": PROVINCE,
    "town": TOWN,
    "river": RIVER,
    "mountain": MOUNTAIN,
    "lake": LAKE,
    "person": PERSON,
    "guild": GUILD,
    "work": WORK,
    "building": BUILDING,
    "ship": SHIP,
    "creature": CREATURE,
    "plant": PLANT,
    "festival": FESTIVAL,
    "dish": DISH,
    "device": DEVICE,
}
