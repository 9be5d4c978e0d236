"""The almanac as files: same bytes, resolvable links, answers on their pages, no leak from test to train."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from seekling.corpus.almanac import generate
from seekling.errors import ConfigError, DataError

FILES = ("corpus.jsonl", "train.jsonl", "test.jsonl")
MIX = {"single": 0.55, "bridge": 0.20, "comparison": 0.10, "unanswerable": 0.15}

# Lock: a seed names a world for everybody. Change these hashes only when the wording or the facts change on purpose,
# and say so in the change log, because every recorded result on the almanac is then about another world.
LOCKED = {
    "corpus.jsonl": "694775409e4e783ed18d9b2c1bbea9da20510e3b2b4af98a4324719e7a46772b",
    "train.jsonl": "d6755d5ab6fe2d0e545b44c500dcc3f4e01e7a0d2d651e212facdb5c275698f9",
    "test.jsonl": "3d87871c7e500e5823431a62069551f1914798cbac0708784188e669c1f39924",
}


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def almanac(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("almanac") / "small"
    generate(430, 7, out)
    return out


@pytest.fixture(scope="module")
def pages(almanac) -> dict[str, dict]:
    return {row["id"]: row for row in rows_of(almanac / "corpus.jsonl")}


@pytest.fixture(scope="module")
def questions(almanac) -> list[dict]:
    return rows_of(almanac / "train.jsonl") + rows_of(almanac / "test.jsonl")


def test_a_small_almanac_has_the_locked_bytes(tmp_path):
    generate(100, 0, tmp_path / "a")
    assert {name: hashlib.sha256((tmp_path / "a" / name).read_bytes()).hexdigest() for name in FILES} == LOCKED


def test_the_bytes_do_not_depend_on_the_hash_seed_of_the_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from seekling.corpus.almanac import generate; "
        "generate(130, 3, Path(sys.argv[1]))"
    )
    for hash_seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / hash_seed)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_another_seed_gives_another_world(tmp_path, pages):
    generate(100, 8, tmp_path / "b")
    titles = {row["title"] for row in rows_of(tmp_path / "b" / "corpus.jsonl")}
    assert len(titles & {page["title"] for page in pages.values()}) == 0


def test_ids_and_titles_are_unique_and_every_link_leads_to_a_page(almanac, pages):
    rows = rows_of(almanac / "corpus.jsonl")
    assert len(rows) == len(pages) == len({row["title"] for row in rows}) == 430
    for row in rows:
        assert list(row) == ["id", "title", "content"]
        for title, page_id in re.findall(r"\[([^\]]+)\]\((p\d+)\)", row["content"]):
            assert pages[page_id]["title"] == title


def test_pages_are_nested_markdown_without_leftovers_of_templates(pages):
    depths = Counter()
    for page in pages.values():
        text = page["content"]
        assert text.startswith(f"# {page['title']}\n\n")
        assert not re.search(r"[{}$|\\]|  |\bthe the\b| [.,;]|\.\.", text), page["id"]
        # 'a apple' and 'an pear'; the letter after the article may be inside a link or italics.
        assert not re.search(r"\b[Aa] [\[*\"]?[aeiou](?!ne-|ni|se)", text), page["id"]
        assert not re.search(r"\b[Aa]n [\[*\"]?[bcdfgjklmnpqrstvwxz]", text), page["id"]
        levels = [len(marks) for marks in re.findall(r"^(#+) ", text, flags=re.M)]
        depths.update(levels)
        assert levels[0] == 1
        assert all(b <= a + 1 and b > 1 for a, b in pairwise(levels))
        headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
        assert len(headings) == len(set(headings))
        assert 60 <= len(text.split()) <= 600
        for paragraph in text.split("\n\n"):
            assert paragraph.startswith("#") or paragraph.rstrip()[-1] in '."'
    assert depths[3] > 100


def test_every_answer_stands_verbatim_on_the_page_that_supports_it(pages, questions):
    for row in questions:
        assert list(row) == ["id", "question", "answers", "supporting_ids", "kind", "source", "hops"]
        assert row["source"] == "almanac"
        for hop in row["hops"]:
            if hop["document_id"]:
                assert pages[hop["document_id"]]["title"] == hop["query_subject"]
                assert hop["answer"] == "unknown" or hop["answer"] in pages[hop["document_id"]]["content"]
        if row["kind"] != "unanswerable":
            assert row["supporting_ids"] == [hop["document_id"] for hop in row["hops"]]
        if row["kind"] in ("single", "bridge"):
            assert row["answers"][0] == row["hops"][-1]["answer"]
            assert len(row["answers"][0].split()) <= 8


def test_a_bridge_names_only_its_first_entity_and_passes_through_the_second(pages, questions):
    bridges = [row for row in questions if row["kind"] == "bridge"]
    for row in bridges:
        first, second = row["hops"]
        assert first["query_subject"] in row["question"]
        assert pages[second["document_id"]]["title"] == second["query_subject"] == first["answer"]
        assert f"[{second['query_subject']}]({second['document_id']})" in pages[first["document_id"]]["content"]
        assert row["answers"][0] != first["query_subject"]


def test_a_comparison_is_decided_by_the_stated_values(questions):
    larger = re.compile(r"later|more|larger|higher|deeper|longer")
    for row in (row for row in questions if row["kind"] == "comparison"):
        values = {h["query_subject"]: int(re.sub(r"\D", "", h["answer"].split()[0])) for h in row["hops"]}
        assert len(set(values.values())) == 2
        best = max if larger.search(row["question"].split(",")[0].rsplit(" or ", 1)[0]) else min
        if not larger.search(" ".join(values)):
            assert row["answers"][0] == best(values, key=values.__getitem__), row["question"]


def test_unanswerable_questions_are_about_missing_facts_or_about_entities_that_do_not_exist(pages, questions):
    titles = {page["title"] for page in pages.values()}
    rows = [row for row in questions if row["kind"] == "unanswerable"]
    stated = {(h["document_id"], h["relation"]) for row in questions for h in row["hops"] if h["answer"] != "unknown"}
    kinds = Counter()
    for row in rows:
        (hop,) = row["hops"]
        assert row["answers"][0] == hop["answer"] == "unknown"
        assert row["supporting_ids"] == []
        assert hop["query_subject"] in row["question"]
        assert (hop["query_subject"] in titles) == bool(hop["document_id"])
        assert (hop["document_id"], hop["relation"]) not in stated
        kinds[bool(hop["document_id"])] += 1
    assert min(kinds.values()) > len(rows) // 4


def test_no_entity_of_a_test_question_occurs_in_a_train_question(almanac):
    train, test = (rows_of(almanac / f"{side}.jsonl") for side in ("train", "test"))
    subjects = [{hop["query_subject"] for row in rows for hop in row["hops"]} for rows in (train, test)]
    assert not subjects[0] & subjects[1]
    assert not {row["question"] for row in train} & {row["question"] for row in test}


def test_question_counts_and_the_mix_hold_from_the_first_rows_on(almanac):
    train, test = (rows_of(almanac / f"{side}.jsonl") for side in ("train", "test"))
    assert (len(train), len(test)) == (1290, 200)
    for rows in (train, test):
        assert len({row["question"] for row in rows}) == len({row["id"] for row in rows}) == len(rows)
        for first in (rows[:20], rows[:100], rows):
            counts = Counter(row["kind"] for row in first)
            assert {kind: counts[kind] / len(first) for kind in MIX} == pytest.approx(MIX, abs=0.01)


@pytest.mark.parametrize(("pages", "seed"), [(101, 0), (149, 5), (1001, 1)])
def test_a_last_province_of_a_few_pages_is_no_obstacle(tmp_path, pages, seed):
    summary = generate(pages, seed, tmp_path / "x")
    rows = rows_of(tmp_path / "x" / "train.jsonl")
    assert len(rows) == summary.num_train == 3 * pages
    assert Counter(row["kind"] for row in rows[:20]) == {"single": 11, "bridge": 4, "comparison": 2, "unanswerable": 3}


@pytest.mark.parametrize(
    ("pages", "seed", "text"), [(99, 0, "100 to 1,000,000"), (1_000_001, 0, "out of names"), (100, -1, "seed is -1")]
)
def test_sizes_and_seeds_out_of_range_are_refused(tmp_path, pages, seed, text):
    with pytest.raises(ConfigError, match=text):
        generate(pages, seed, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="not an empty folder"):
        generate(100, 0, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_interrupted_almanac_leaves_nothing_behind(tmp_path):
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(600, 0, tmp_path / "deep" / "x", progress=interrupt)
    assert list((tmp_path / "deep").iterdir()) == []


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    summary = generate(100, 5, tmp_path / "empty")
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == sorted(FILES)
    assert (summary.pages, summary.num_train, summary.num_test) == (100, 300, 200)
