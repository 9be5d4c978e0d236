"""The almanac as a world: names, lives and facts that do not contradict each other, and bounded memory."""

import gc
import itertools
import re
import tracemalloc
from collections import Counter

import pytest
import Stemmer

from seekling.corpus.almanac.census import PROVINCE_SIZE, Census, make_world
from seekling.corpus.almanac.generator import split_provinces
from seekling.corpus.almanac.province import KINDS, Province
from seekling.corpus.almanac.spec import Wording


def test_titles_are_unique_in_a_million_pages():
    world = make_world(1_000_000, 4)
    chosen = [*range(40), *range(9_990, 10_010), *range(19_960, 20_000)]
    titles = [entity.title for number in chosen for entity in Census(world, number).found.values()]
    decoys = {entity.decoy for number in chosen for entity in Census(world, number).found.values()}
    assert len(titles) == len(set(titles)) == len(chosen) * PROVINCE_SIZE
    assert not decoys & set(titles)


@pytest.fixture(scope="module")
def provinces() -> list[Province]:
    world = make_world(1000, 11)
    return [Province(world, number) for number in range(8)]


def test_nothing_that_points_at_an_entity_comes_from_a_fact_its_page_leaves_out(provinces):
    for entity in itertools.chain.from_iterable(p.entities for p in provinces):
        assert not set(entity.unstated) & entity.facts.keys()
        for key, source in entity.mentions:
            assert source.facts[key.split(".")[1]].target is entity


def test_every_fact_has_a_sentence_that_states_it_alone_or_with_facts_that_are_always_stated():
    for kind, spec in KINDS.items():
        always = {key for key, relation in spec.relations.items() if relation.percent == 100}
        for key in spec.relations:
            tells = [w for section in spec.page for w in section.tells if section.level > 1 and key in w.sure]
            assert any((w.slots & spec.relations.keys()) <= always | {key} for w in tells), f"{kind}.{key}"


def test_test_provinces_are_complete_and_apart_from_train():
    for pages in (150, 199, 1000, 5010):
        world = make_world(pages, 2)
        sides = {side: set(itertools.chain(*chunks)) for side, chunks in split_provinces(world).items()}
        assert sum(map(len, sides.values())) == len(set.union(*sides.values())) == world.num_provinces
        for side in ("dev", "test"):
            assert max(sides[side]) < pages // PROVINCE_SIZE
            assert len(sides[side]) <= max(1, world.num_provinces // 4)


def test_memory_does_not_grow_with_the_number_of_provinces():
    world = make_world(1_000_000, 1)
    tracemalloc.start()  # before the first: what leaves the cache later was counted when it came
    try:
        for number in range(40):  # fills the cache of 32 names-only provinces
            Province(world, number)
        early = _almanac_bytes()
        for number in range(40, 80):
            Province(world, number)
        late = _almanac_bytes()
    finally:
        tracemalloc.stop()
    assert late - early < 600_000  # without a bound forty more add 1.3 MB


def _almanac_bytes():
    """What the almanac's own code holds: threads that other tests left behind allocate too."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/corpus/almanac/*")])
    return sum(each.size for each in snapshot.statistics("filename"))


SPLITS = ("", "dev", "test")
SMALL_WORDS = set(
    re.findall(
        r"\w+",
        """a an the of in on at by to for from with and or is are was were be been has have had do does did it
        its he she his her him this that these those which what who whom whose when where why how many much
        not no as into than there their they one two all each some over under after before during about
        between up out so can could would may might must will shall year years town village place person
        people name names called kind thing things number time first last old new most more own long high
        far""",
    )
)


def content_stems(text: str) -> set[str]:
    stem = Stemmer.Stemmer("english").stemWord
    return {stem(word) for word in re.findall(r"[^\W\d_]+", text.lower()) if word not in SMALL_WORDS}


def sure_text(wording: Wording) -> str:
    return " ".join(part for part in wording.parts if isinstance(part, str))


def test_questions_do_not_copy_the_words_of_the_page():
    for kind, spec in KINDS.items():
        for key, relation in spec.relations.items():
            tells = [w for section in spec.page for w in section.tells if key in w.sure]
            page = set().union(*(content_stems(sure_text(w)) for w in tells))
            for wording in itertools.chain(*(relation.wordings(mark, split) for mark in "?!" for split in SPLITS)):
                assert not content_stems(sure_text(wording)) & page, f"{kind}.{key}: {sure_text(wording)}"


NEEDED = {
    "?": {"n"}, "!": {"n", "x"}, ">": {"n"}, "-": {"list"}, "+": {"list"}, "=": {"a", "b"}, "#": {"x", "list"},
    "/": {"x", "list"},
}  # fmt: skip


def test_every_relation_can_be_asked_for_in_training_and_in_words_kept_for_dev_and_test():
    held_out = Counter()
    for kind, spec in KINDS.items():
        assert spec.premise in spec.relations
        for key, relation in spec.relations.items():
            name, num = f"{kind}.{key}", {split: len(relation.wordings("?", split)) for split in SPLITS}
            if relation.split:
                held_out[relation.split] += 1
                assert num[""] >= 2, name
                # A relation that training must not see is no step on the way either.
                assert {mark for mark, _ in relation.lines} == {"?"}, name
                continue
            for mark in {mark for mark, _ in relation.lines} - {"?", ">"}:
                assert all(relation.wordings(mark, split) for split in SPLITS), f"{name} {mark}"
            if num[""]:
                assert num[""] >= 2, name
                assert min(num["dev"], num["test"]) >= 1, name
            for (mark, _), wordings in relation.lines.items():
                assert all(NEEDED[mark] <= wording.sure for wording in wordings), f"{name} {mark}"
    assert held_out["test"] > held_out["dev"] > 5


def test_a_town_is_flooded_by_the_river_it_lies_on_and_in_the_year_of_that_flood(provinces):
    num_floods = 0
    for province in provinces:
        own = {entity.index: entity for entity in province.entities}
        for river in (entity for entity in province.entities if entity.kind == "river"):
            if "flooded" not in river.facts:
                continue
            town = own[river.facts["flooded"].target.index]
            if "river" in town.facts:
                assert town.facts["river"].target.index == river.index
            if "peril" in town.facts:
                assert town.facts["peril"].answers[0] == "flood"
            if {"peril_year"} <= town.facts.keys() and "flood_year" in river.facts:
                assert town.facts["peril_year"].number == river.facts["flood_year"].number
                num_floods += 1
        for building in (
            entity for entity in province.entities if "river" in entity.facts and entity.kind == "building"
        ):
            assert building.home is not None
            assert building.facts["river"].target.index == building.home.river.index
    assert num_floods > 2
