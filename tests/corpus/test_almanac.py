"""The almanac as files: same bytes, resolvable links, answers on their pages, no leak from test to train."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from seekling.corpus.almanac import generate
from seekling.errors import ConfigError, DataError
from tests.commands import seekling

SIDES = ("train", "dev", "test")
FILES = ("corpus.jsonl", *(f"{side}.jsonl" for side in SIDES))
NOVELTIES = {"seen in training", "new wording", "new relation"}

# Lock: a seed names a world for everybody. Change these hashes only when the wording or the facts change on purpose,
# and say so in the change log, because every recorded result on the almanac is then about another world.
LOCKED = {
    "corpus.jsonl": "7caba98f7eae477a45eda7af110d7c840de16019822346c8ade81e11ac46d7d6",
    "train.jsonl": "0b8632c6ee376e49e5ef8ec435bc85891c2be6d68d0a4dad495ad24e775759bd",
    "dev.jsonl": "fc1658573f86fd8d2631e16f1fcc1b1732a72487810e8ae51203de6a2cc5d010",
    "test.jsonl": "94839df3b329d3cbf603c684e5768d69aead3c4f4b7c512125234d030fb754b1",
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
def sides(almanac) -> dict[str, list[dict]]:
    return {side: rows_of(almanac / f"{side}.jsonl") for side in SIDES}


@pytest.fixture(scope="module")
def questions(sides) -> list[dict]:
    return [row for rows in sides.values() for row in rows]


def test_a_small_almanac_has_the_locked_bytes_whatever_the_hash_seed_of_the_process(tmp_path):
    code = "import sys, pathlib, seekling.corpus.almanac as a; a.generate(150, 0, pathlib.Path(sys.argv[1]))"
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-c", code, str(out)], check=True, env=environment)
        assert {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in FILES} == LOCKED


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
        assert list(row) == ["id", "question", "answers", "supporting_ids", "source", "kind", "labels", "hops"]
        assert row["source"] == "almanac"
        for hop in row["hops"]:
            if hop["document_id"]:
                assert pages[hop["document_id"]]["title"] == hop["query_subject"]
                assert hop["answer"] == "unknown" or hop["answer"] in pages[hop["document_id"]]["content"]
        if row["kind"] == "unanswerable":
            continue
        assert row["supporting_ids"] == list(dict.fromkeys(hop["document_id"] for hop in row["hops"]))
        if row["kind"] != "several":
            assert row["answers"][0] == row["hops"][-1]["answer"]
            assert len(row["answers"][0].split()) <= 8


@pytest.mark.parametrize(("kind", "num_pages"), [("bridge", 2), ("chain", 3)])
def test_questions_of_several_hops_name_only_the_first_page_and_pass_through_the_others(
    pages, questions, kind, num_pages
):
    for row in (row for row in questions if row["kind"] == kind):
        hops = row["hops"]
        assert len(hops) == num_pages
        assert hops[0]["query_subject"] in row["question"]
        for one, following in pairwise(hops):
            assert pages[following["document_id"]]["title"] == following["query_subject"] == one["answer"]
            assert f"[{one['answer']}]({following['document_id']})" in pages[one["document_id"]]["content"]
            assert row["answers"][0] != one["query_subject"]


def test_questions_over_several_pages_are_decided_by_the_stated_values(questions):
    sorts = Counter()
    for row in (row for row in questions if row["kind"] == "several"):
        (sort,) = row["labels"][:1]
        sorts[sort] += 1
        values = {hop["query_subject"]: hop["answer"] for hop in row["hops"]}
        numbers = {name: int(re.sub(r"\D", "", value.split()[0]) or -1) for name, value in values.items()}
        answer = row["answers"][0]
        if sort == "the most":
            assert answer in (max(numbers, key=numbers.get), min(numbers, key=numbers.get))
            assert list(numbers.values()).count(numbers[answer]) == 1
        elif sort == "difference":
            assert int(answer) == abs(numbers.popitem()[1] - numbers.popitem()[1]) > 0
        elif sort == "the odd one":
            assert list(values.values()).count(values[answer]) == 1
            assert len(set(values.values())) == 2
        else:
            edge = re.search(r"\b(\d+)\b", row["question"].partition(":")[0])
            if edge:
                assert int(row["answers"][-1]) == sum(number < int(edge[1]) for number in numbers.values())
            else:
                assert int(row["answers"][-1]) in Counter(values.values()).values()
    assert min(sorts[sort] for sort in ("the most", "difference", "how many", "the odd one")) > 10


def test_unanswerable_questions_are_of_four_sorts(pages, questions):
    titles = {page["title"] for page in pages.values()}
    rows = [row for row in questions if row["kind"] == "unanswerable"]
    stated = {(h["document_id"], h["relation"]) for row in questions for h in row["hops"] if h["answer"] != "unknown"}
    sorts = Counter()
    for row in rows:
        hop, *asked = row["hops"]
        sort = row["labels"][0]
        sorts[sort] += 1
        assert row["answers"][0] == "unknown"
        assert row["supporting_ids"] == []
        assert hop["query_subject"] in row["question"]
        assert (hop["query_subject"] in titles) == bool(hop["document_id"]) == (sort in ("not stated", "false premise"))
        if sort == "false premise":
            # The page says what the premise is in truth, and the question says something else.
            assert hop["answer"] in pages[hop["document_id"]]["content"]
            assert hop["answer"] not in row["question"].replace(hop["query_subject"], "")
            # It takes that for granted and asks for something else about the same entity.
            assert [each["query_subject"] for each in asked] == [hop["query_subject"]]
            assert asked[0]["relation"] != hop["relation"]
        else:
            assert not asked
            assert hop["answer"] == "unknown"
            assert (hop["document_id"], hop["relation"]) not in stated
    assert min(sorts.values()) > len(rows) // 6
    assert set(sorts) == {"not stated", "look-alike", "no such page", "false premise"}


def test_no_entity_of_one_side_occurs_in_a_question_of_another(sides):
    for one, other in combinations(sides.values(), 2):
        assert not {row["question"] for row in one} & {row["question"] for row in other}
        assert not {hop["query_subject"] for row in one for hop in row["hops"]} & {
            hop["query_subject"] for row in other for hop in row["hops"]
        }


def test_dev_and_test_have_wordings_and_relations_of_their_own(sides):
    assert not any(NOVELTIES & set(row["labels"]) for row in sides["train"])
    asked = {
        side: {(row["hops"][-1]["relation"]) for row in sides[side] if row["kind"] in ("single", "bridge", "chain")}
        for side in SIDES
    }
    for side in ("dev", "test"):
        singles = [row for row in sides[side] if row["kind"] == "single"]
        counts = Counter(row["labels"][-1] for row in singles)
        assert set(counts) == NOVELTIES
        assert counts["seen in training"] / len(singles) == pytest.approx(5 / 8, abs=0.08)
        new = {row["hops"][-1]["relation"] for row in singles if row["labels"] == ["new relation"]}
        others = asked["train"] | asked["dev" if side == "test" else "test"]
        assert not new & others
    # A new wording, with the names taken out, is that of no other side.
    shapes = {side: {shape(row) for row in sides[side] if row["kind"] == "single"} for side in SIDES}
    for side, others in (("dev", ("train", "test")), ("test", ("train", "dev"))):
        new = {shape(row) for row in sides[side] if row["kind"] == "single" and row["labels"] == ["new wording"]}
        assert not new & set.union(*(shapes[other] for other in others))


def shape(row: dict) -> str:
    text = row["question"].replace(row["hops"][-1]["query_subject"], "X")
    return re.sub(r"\b(his|her|its)\b", "its", re.sub(r"\bthe X", "X", text)).lower()


@pytest.mark.parametrize(
    ("pages", "seed", "text"), [(149, 0, "150 to 1,000,000"), (1_000_001, 0, "out of names"), (150, -1, "seed is -1")]
)
def test_sizes_and_seeds_out_of_range_are_refused(tmp_path, pages, seed, text):
    with pytest.raises(ConfigError, match=text):
        generate(pages, seed, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="not an empty folder"):
        generate(150, 0, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_writes_an_almanac_and_reports_it_as_json(tmp_path):
    words = ["data", "almanac", "--pages", "150", "--seed", "2", "--out", str(tmp_path / "a"), "--json"]
    result = seekling(*words)
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert [summary[name] for name in ("pages", "seed", *SIDES)] == [150, 2, 750, 200, 400]
    assert (tmp_path / "a" / "corpus.jsonl").exists()
