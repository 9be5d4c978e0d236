"""Benchmarks by name, from files in the shapes that people have."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from seekling.errors import ConfigError
from seekling.evaluate.benchmarks import NUM_QUESTIONS, open_benchmarks

SEARCH_R1 = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


FACTS = pyarrow.struct([("title", pyarrow.list_(pyarrow.string()))])
METADATA = pyarrow.struct([("type", pyarrow.string()), ("supporting_facts", FACTS), ("obj_id", pyarrow.int64())])


@pytest.fixture
def parquet(tmp_path):
    """Two rows of each data set as Search-R1's preparation script leaves them; ids restart, `metadata` may be null."""
    rows = [
        {
            "id": f"test_{number}",
            "question": f"{source} {number}?",
            "golden_answers": ["x", "x"],
            "data_source": source,
            "prompt": [{"role": "user", "content": f"Answer the given question. ... Question: {source} {number}?\n"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}},
            "extra_info": {"split": "test", "index": number},
        }
        for source in SEARCH_R1
        for number in range(2)
    ]
    facts = {"type": "bridge", "supporting_facts": {"title": ["A", "B"]}}
    metadata = [facts if row["data_source"] == "hotpotqa" else None for row in rows]
    table = pyarrow.Table.from_pylist(rows).append_column("metadata", pyarrow.array(metadata, METADATA))
    path = tmp_path / "test.parquet"
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("name", SEARCH_R1)
def test_each_of_search_r1s_data_sets_is_found_by_its_name(parquet, name):
    chosen = open_benchmarks([name], parquet)
    assert [question.question for question in chosen.questions] == [f"{name} 0?", f"{name} 1?"]
    assert {question.answers for question in chosen.questions} == {("x",)}
    support = ("A", "B") if name == "hotpotqa" else ()
    assert {question.supporting_ids for question in chosen.questions} == {support}
    assert chosen.notes == (
        f"{name}: 2 questions, the published set has {NUM_QUESTIONS[name]}: figures are not comparable with it",
    )


def test_several_stay_apart_by_source_and_keep_the_order_of_the_file(parquet):
    chosen = open_benchmarks(["hotpotqa", "nq"], parquet)
    assert [question.key for question in chosen.questions] == [
        ("nq", "test_0"),
        ("nq", "test_1"),
        ("hotpotqa", "test_0"),
        ("hotpotqa", "test_1"),
    ]


def test_rare_wiki_is_the_last_fifth_of_its_file(tmp_path):
    path = tmp_path / "trivia.jsonl"
    rows = [{"question": f"{n}?", "answer": "x", "filename": f"Page {n}.md"} for n in range(1, 479)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = open_benchmarks(["rare-wiki"], path)
    assert (len(chosen.questions), chosen.questions[0].question, chosen.notes) == (96, "383?", ())
    assert {question.source for question in chosen.questions} == {"rare-wiki"}


@pytest.mark.parametrize("names", [[], ["rare-wiki", "nq"], ["almanac", "rare-wiki"]])
def test_what_cannot_be_combined_is_refused(names, parquet):
    with pytest.raises(ConfigError, match="expected at least one, and rare-wiki or almanac alone"):
        open_benchmarks(names, parquet)
