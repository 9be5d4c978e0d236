"""Benchmarks by name, from files in the shapes that people have."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from seekling.errors import ConfigError, DataError
from seekling.evaluate.benchmarks import NUM_QUESTIONS, benchmark_of, open_benchmarks

SEARCH_R1 = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


@pytest.fixture
def parquet(tmp_path):
    """Two rows of each data set of Search-R1's file; ids restart, `metadata` is null for some."""
    rows = [
        {
            "id": f"test_{number}",
            "question": f"{source} {number}?",
            "golden_answers": ["x"],
            "data_source": source,
            "reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}},
            "extra_info": {"split": "test", "index": number},
        }
        for source in SEARCH_R1
        for number in range(2)
    ]
    path = tmp_path / "test.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", SEARCH_R1)
def test_each_of_search_r1s_data_sets_is_found_by_its_name(parquet, name):
    chosen = open_benchmarks([name], parquet)
    assert [question.question for question in chosen.questions] == [f"{name} 0?", f"{name} 1?"]
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


def test_the_published_sizes_add_up_to_search_r1s_file():
    assert sum(NUM_QUESTIONS[name] for name in SEARCH_R1) == 51_713


def test_a_whole_set_needs_no_note(tmp_path):
    path = tmp_path / "q.jsonl"
    rows = [{"id": n, "question": f"{n}?", "answer": "x", "source": "bamboogle"} for n in range(125)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert open_benchmarks(["bamboogle"], path).notes == ()


def test_rare_wiki_is_the_last_fifth_of_its_file(tmp_path):
    path = tmp_path / "trivia.jsonl"
    rows = [{"question": f"{n}?", "answer": "x", "filename": f"Page {n}.md"} for n in range(1, 479)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = open_benchmarks(["rare-wiki"], path)
    assert (len(chosen.questions), chosen.questions[0].question, chosen.notes) == (96, "383?", ())
    assert {question.source for question in chosen.questions} == {"rare-wiki"}


def test_the_users_own_rows_are_named_by_their_source(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"id": n, "question": f"{n}?", "answer": "x", "source": "wiki" if n else "notes"} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [question.id for question in open_benchmarks(["notes"], path).questions] == ["0"]
    with pytest.raises(DataError, match=r"holds no question of nq; its rows are of notes \(1\), wiki \(2\)"):
        open_benchmarks(["nq"], path)


@pytest.mark.parametrize("names", [[], ["rare-wiki", "nq"], ["almanac", "rare-wiki"]])
def test_what_cannot_be_combined_is_refused(names, parquet):
    with pytest.raises(ConfigError, match="expected at least one, and rare-wiki or almanac alone"):
        open_benchmarks(names, parquet)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("nq", "nq"),
        ("nq-open-dev (a sample)", "nq"),
        ("triviaqa-test", "triviaqa"),
        ("searchR1_nq", "nq"),
        ("NQ_open", "nq"),
        ("2wiki", "2wikimultihopqa"),
        ("nqx", ""),
        ("", ""),
    ],
)
def test_sources_are_recognised_under_their_usual_names(source, name):
    assert benchmark_of(source) == name


SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = {"nq": "nq_open", "triviaqa": "trivia", "hotpotqa": "hotpotqa"}
METADATA = pyarrow.struct(
    [
        ("type", pyarrow.string()),
        ("level", pyarrow.string()),
        ("supporting_facts", pyarrow.struct([("title", pyarrow.list_(pyarrow.string()))])),
        ("obj_id", pyarrow.int64()),
    ]
)


def search_r1_row(name, number, row):
    """A row as Search-R1's preparation script leaves it: every data set's own columns, its prompt and its targets."""
    facts = {"title": row.get("supporting_ids", [])} if name == "hotpotqa" else None
    metadata = {"type": row.get("type"), "supporting_facts": facts} if name in ("hotpotqa", "2wikimultihopqa") else None
    question = row["question"] if row["question"].endswith("?") else row["question"] + "?"
    return {
        "id": f"test_{number}",
        "question": row["question"],
        "golden_answers": row["answers"],
        "metadata": metadata,
        "data_source": name,
        "prompt": [{"role": "user", "content": f"Answer the given question. ... Question: {question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": row["answers"]}},
        "extra_info": {"split": "test", "index": number},
    }


@pytest.fixture(scope="module")
def real_parquet(tmp_path_factory):
    """Real questions in the columns and the order of Search-R1's test file; four of its sets are not at hand."""
    missing = [folder for folder in REAL.values() if not (SHARED / folder / "qa.jsonl").is_file()]
    if missing:
        pytest.skip(f"the data folder is not on this machine: no {', '.join(missing)} in {SHARED}")
    rows = {}
    for name in SEARCH_R1:
        invented = [{"question": f"Which {name} number is {n}?", "answers": [str(n)]} for n in range(3)]
        path = SHARED / REAL.get(name, "-") / "qa.jsonl"
        mine = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line] if name in REAL else invented
        mine = [row for row in mine if name != "triviaqa" or row["source"].startswith("triviaqa")]
        rows[name] = [search_r1_row(name, number, row) for number, row in enumerate(mine)]
    everything = [row for name in SEARCH_R1 for row in rows[name]]
    table = pyarrow.Table.from_pylist(everything)
    place = table.schema.get_field_index("metadata")
    metadata = pyarrow.array([row["metadata"] for row in everything], METADATA)
    path = tmp_path_factory.mktemp("search_r1") / "test.parquet"
    pyarrow.parquet.write_table(table.set_column(place, "metadata", metadata), path)
    return path, rows


@pytest.mark.parametrize("name", SEARCH_R1)
def test_the_real_columns_give_the_real_questions_whatever_the_set(real_parquet, name):
    path, rows = real_parquet
    chosen = open_benchmarks([name], path).questions
    assert [(q.source, q.id, q.question, list(q.answers)) for q in chosen] == [
        (name, row["id"], row["question"], list(dict.fromkeys(row["golden_answers"]))) for row in rows[name]
    ]
    if name == "hotpotqa":
        titles = [row["metadata"]["supporting_facts"]["title"] for row in rows[name]]
        assert [list(q.supporting_ids) for q in chosen] == titles
        assert {q.kind for q in chosen} == {"bridge", "comparison"}


def test_all_seven_sets_together_keep_their_restarting_ids_apart(real_parquet):
    path, rows = real_parquet
    chosen = open_benchmarks(SEARCH_R1, path).questions
    assert len(chosen) == len({q.key for q in chosen}) == sum(map(len, rows.values()))
