"""All kinds of pages by name: what is true of them (`derive_*`) and how it is asked and told (`wording/*.txt`)."""

from __future__ import annotations

import importlib.resources

from seekling.corpus.almanac.buildings import derive_building
from seekling.corpus.almanac.customs import derive_dish, derive_festival
from seekling.corpus.almanac.devices import derive_device, derive_ship
from seekling.corpus.almanac.guilds import derive_guild
from seekling.corpus.almanac.heights import derive_lake, derive_mountain
from seekling.corpus.almanac.model import Derive, KindSpec
from seekling.corpus.almanac.people import derive_person
from seekling.corpus.almanac.provinces import derive_province
from seekling.corpus.almanac.rivers import derive_river
from seekling.corpus.almanac.spec import parse_page, parse_relations
from seekling.corpus.almanac.species import derive_creature, derive_plant
from seekling.corpus.almanac.towns import derive_town
from seekling.corpus.almanac.works import derive_work

_DERIVE: dict[str, Derive] = {
    "province": derive_province,
    "town": derive_town,
    "river": derive_river,
    "mountain": derive_mountain,
    "lake": derive_lake,
    "person": derive_person,
    "guild": derive_guild,
    "work": derive_work,
    "building": derive_building,
    "ship": derive_ship,
    "creature": derive_creature,
    "plant": derive_plant,
    "festival": derive_festival,
    "dish": derive_dish,
    "device": derive_device,
}


def _read(name: str, what: str) -> str:
    file = importlib.resources.files("seekling.corpus.almanac") / "wording" / f"{name}.{what}.txt"
    return file.read_text(encoding="utf-8")


KINDS: dict[str, KindSpec] = {
    name: KindSpec(*parse_relations(_read(name, "relations")), parse_page(_read(name, "page")), derive)
    for name, derive in _DERIVE.items()
}
