"""The almanac as a world: names, lives and facts that do not contradict each other, and bounded memory."""

import gc
import itertools
import re
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import Stemmer
from typer.testing import CliRunner

from seekling.cli.main import app
from seekling.corpus.almanac.census import PROVINCE_SIZE, Census, make_world
from seekling.corpus.almanac.dice import Dice, Scatter
from seekling.corpus.almanac.generator import split_provinces
from seekling.corpus.almanac.kinds import KINDS
from seekling.corpus.almanac.model import PRESENT
from seekling.corpus.almanac.phonology import PHONOLOGIES, ROOTS_PER_PROVINCE
from seekling.corpus.almanac.province import Province
from seekling.corpus.almanac.spec import Wording, parse_page, parse_relations, parse_wording


def test_dice_with_the_same_key_roll_the_same_numbers():
    assert [Dice(1, "x").below(1000) for _ in range(3)] == [Dice(1, "x").below(1000)] * 3
    assert [Dice("lock", 0).below(10**6), Dice("lock", 1).below(10**6)] == [389274, 573633]


def test_weighted_orders_draw_each_next_item_by_its_share_of_the_weight_that_is_left():
    orders = [Dice("weights", number).by_weight("abc", [1, 2, 4]) for number in range(4000)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    firsts = [sum(order[0] == item for order in orders) / len(orders) for item in "abc"]
    np.testing.assert_allclose(firsts, [4 / 7, 2 / 7, 1 / 7], atol=0.03)
    seconds = [order[1] for order in orders if order[0] == "a"]
    np.testing.assert_allclose(seconds.count("b") / len(seconds), 2 / 3, atol=0.03)
    assert Dice("lock", 0).by_weight([], []) == []


@pytest.mark.parametrize("size", [1, 2, 49, 50, 1000])
def test_a_scatter_visits_every_number_once_and_can_be_inverted(size):
    scatter = Scatter(size, 3, "test")
    assert sorted(scatter(n) for n in range(size)) == list(range(size))
    assert all(scatter.invert(scatter(n)) == n for n in range(size))


def test_sound_systems_share_no_ending_and_are_large_enough_for_a_million_pages():
    endings = list(itertools.chain.from_iterable(p.endings for p in PHONOLOGIES))
    assert len(endings) == len(set(endings))
    for phonology in PHONOLOGIES:
        assert phonology.num_long > 1.5 * 1_000_000 // PROVINCE_SIZE // len(PHONOLOGIES) * ROOTS_PER_PROVINCE
        # A part that held both vowels and consonants, or occurred twice, would make two roots alike.
        for consonants in (phonology.onsets, phonology.middles, phonology.finals):
            assert not set("".join(consonants)) & set("aeiouy")
            assert len(set(consonants)) == len(consonants)


def test_titles_are_unique_in_a_million_pages():
    world = make_world(1_000_000, 4)
    chosen = [*range(40), *range(9_990, 10_010), *range(19_960, 20_000)]
    titles = [entity.title for number in chosen for entity in Census(world, number).found.values()]
    decoys = {entity.decoy for number in chosen for entity in Census(world, number).found.values()}
    assert len(titles) == len(set(titles)) == len(chosen) * PROVINCE_SIZE
    assert not decoys & set(titles)


@pytest.mark.parametrize("pages", [101, 107, 119, 130, 149])
def test_a_partial_province_that_borrows_neighbours_still_has_titles_of_its_own(pages):
    for seed in range(12):
        world = make_world(pages, seed)
        entities = [entity for number in range(3) for entity in Census(world, number).found.values()]
        titles = {entity.title for entity in entities}
        assert [entity.index for entity in entities] == list(range(pages))
        assert len(titles) == pages
        assert not titles & {entity.decoy for entity in entities}


@pytest.fixture(scope="module")
def provinces() -> list[Province]:
    world = make_world(1000, 11)
    return [Province(world, number) for number in range(8)]


def test_people_are_born_before_they_do_things_and_do_them_before_they_die(provinces):
    for entity in itertools.chain.from_iterable(p.entities for p in provinces):
        maker = entity.maker
        if maker is not None:
            assert maker.birth + 20 <= entity.year <= (maker.death or PRESENT)
        if entity.kind != "person":
            continue
        assert entity.birth + 40 < (entity.death or PRESENT + 40)
        assert (entity.death or PRESENT) - entity.birth <= 91
        if "teacher" in entity.facts:
            teacher = entity.facts["teacher"].target
            assert teacher.birth + 36 <= entity.birth + 16 + 20
            assert teacher.birth < entity.birth
            assert (teacher.death or PRESENT) >= entity.birth + 16
        if "death_place" in entity.facts and "birthplace" in entity.facts:
            assert entity.facts["death_place"].target is not entity.facts["birthplace"].target


def test_towns_are_older_than_their_disasters_and_ships_are_lost_after_their_launch(provinces):
    for entity in itertools.chain.from_iterable(p.entities for p in provinces):
        for earlier, later in (("founded", "peril_year"), ("launched", "lost")):
            if earlier in entity.facts and later in entity.facts:
                assert entity.facts[earlier].number < entity.facts[later].number
        for key in ("dedicated", "first_climber"):
            if key in entity.facts and entity.kind == "work":
                assert entity.facts[key].target.is_adult_in(entity.year)
        if {"first_climber", "climbed"} <= entity.facts.keys():
            assert entity.facts["first_climber"].target.is_adult_in(entity.facts["climbed"].number)


def test_look_alikes_are_in_every_province(provinces):
    for province in provinces:
        titles = [entity.title for entity in province.entities]
        surnames = [entity.short for entity in province.entities if entity.kind == "person"]
        towns = [title.split()[-1] for title in titles[1:3]]
        assert len(surnames) > len(set(surnames))
        assert towns[0] == towns[1]
        assert all(entity.decoy not in titles for entity in province.entities)


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


def test_every_kind_has_a_lead_for_a_page_that_states_only_what_is_always_stated():
    for kind, spec in KINDS.items():
        sometimes = {key for key, relation in spec.relations.items() if relation.percent < 100}
        assert any(not wording.slots & sometimes for wording in spec.page[0].tells), kind


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


def test_a_wording_chooses_and_fills():
    wording = parse_wording("$n {is|was} a $x{, a {b|c}|}.")
    assert wording.sure == {"n", "x"}
    texts = {wording.write({"n": "N", "x": "X"}, Dice(i)) for i in range(60)}
    assert texts == {f"N {verb} a X{end}." for verb in ("is", "was") for end in ("", ", a b", ", a c")}


def test_relations_and_pages_are_read_from_their_notation():
    relations, premise = parse_relations(
        "premise = born\n\nborn | place born | 90 | dev\n? Where was $n born?\n? [test] Whence is $n?\n"
        "> the place\n+ last?"
    )
    born = relations["born"]
    assert (premise, born.label, born.percent, born.split) == ("born", "place born", 90, "dev")
    assert [len(born.wordings(mark, split)) for mark, split in (("?", ""), ("?", "test"), ("?", "dev"), ("-", ""))] == [
        1,
        1,
        0,
        0,
    ]
    lead, section = parse_page("$n lives.\n## Life | Days\n$s was \\\n   born.\n~ [a b] Odd.\n< town.x : $x too.")
    assert (lead.level, section.level, section.headings) == (1, 2, ("Life", "Days"))
    assert section.tells[0].write({"s": "She"}, Dice(0)) == "She was born."
    assert section.colours[0][0] == {"a", "b"}
    assert list(section.mentions) == ["town.x"]


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
            for line in (*relation.lines.get("?", ()), *relation.lines.get("!", ())):
                assert not content_stems(sure_text(line.wording)) & page, f"{kind}.{key}: {sure_text(line.wording)}"


def test_every_relation_can_be_asked_for_in_training_and_in_words_kept_for_dev_and_test():
    held_out = Counter()
    for kind, spec in KINDS.items():
        assert spec.premise in spec.relations
        for key, relation in spec.relations.items():
            num = {split: len(relation.wordings("?", split)) for split in ("", "dev", "test")}
            if relation.split:
                held_out[relation.split] += 1
                assert num[""] >= 2, f"{kind}.{key}"
                assert set(relation.lines) == {"?"}, (
                    "a relation that training must not see is no step on the way either"
                )
                continue
            for mark, lines in relation.lines.items():
                if mark not in ("?", ">"):
                    assert {line.split for line in lines} == {"", "dev", "test"}, f"{kind}.{key} {mark}"
            if num[""]:
                assert num[""] >= 2, f"{kind}.{key}"
                assert min(num["dev"], num["test"]) >= 1, f"{kind}.{key}"
            needed = {"?": {"n"}, "!": {"n", "x"}, ">": {"n"}, "-": {"list"}, "+": {"list"}}
            needed |= {"=": {"a", "b"}, "#": {"x", "list"}, "/": {"x", "list"}}
            for mark, lines in relation.lines.items():
                assert all(needed[mark] <= line.wording.sure for line in lines), f"{kind}.{key} {mark}"
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


def run(*arguments: str):
    return CliRunner().invoke(app, ["data", "almanac", *arguments])


def test_the_command_writes_an_almanac_and_reports_it_as_json(tmp_path):
    import json

    result = run("--pages", "150", "--seed", "2", "--out", str(tmp_path / "a"), "--json")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert {key: summary[key] for key in ("pages", "seed", "train", "dev", "test")} == {
        "pages": 150,
        "seed": 2,
        "train": 750,
        "dev": 200,
        "test": 400,
    }
    assert (tmp_path / "a" / "corpus.jsonl").exists()


def test_the_command_refuses_a_tiny_almanac(tmp_path):
    result = run("--pages", "10", "--out", str(tmp_path / "a"))
    assert (result.exit_code, result.stderr[:29]) == (1, "error: an almanac of 10 pages")
    assert list(tmp_path.iterdir()) == []
