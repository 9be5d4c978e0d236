"""Questions in every format become the same thing; splits and hashes are exact."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from seekling.corpus.questions import ACCEPTED_SHAPES, question_set_hash, read_questions
from seekling.errors import DataError
from seekling.types import Hop, Question

SHARED = Path(__file__).parents[3] / "shared" / "data"


def _write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def _error(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_questions(path)
    return str(caught.value).replace(f"{path.parent}/", "")


HOP = {"query_subject": "Tusker", "relation": "brewer", "answer": "EAB", "document_id": "tusker"}
NATIVE = {
    "id": "q1", "question": "Who brews Tusker?", "answers": ["EAB", "East African Breweries", "EAB"],
    "supporting_ids": ["tusker", 7], "kind": "bridge", "source": "beer", "hops": [HOP], "confidence": 0.9,
}  # fmt: skip
NATIVE_QUESTION = Question(
    "q1", "Who brews Tusker?", ("EAB", "East African Breweries"), ("tusker", "7"), "bridge", "beer",
    (Hop("Tusker", "brewer", "EAB", "tusker"),),
)  # fmt: skip


def test_native_rows_come_from_jsonl_gzip_arrays_and_parquet(tmp_path):
    line = json.dumps(NATIVE)
    (tmp_path / "a.gz").write_bytes(gzip.compress(line.encode()))
    (tmp_path / "a.json").write_text(f"[{line}]")
    (tmp_path / "one.json").write_text(json.dumps(NATIVE, indent=2))
    _parquet(tmp_path / "a.parquet", [{**NATIVE, "supporting_ids": ["tusker", "7"]}])
    for path in (_write(tmp_path / "a.jsonl", NATIVE), *(tmp_path / name for name in ("a.gz", "a.json", "one.json"))):
        assert read_questions(path) == [NATIVE_QUESTION]
    assert read_questions(tmp_path / "a.parquet") == [NATIVE_QUESTION]


def test_wiki_trivia_names_the_page_by_its_file(tmp_path):
    names = ["data/wiki/Ferry.md", "St. Louis", "St. Louis.md", "a.b.HTML"]
    rows = [{"question": "Q?", "answer": "a", "filename": name} for name in names]
    expected = [("Ferry",), ("St. Louis",), ("St. Louis",), ("a.b",)]
    for path in (_write(tmp_path / "t.jsonl", *rows), _parquet(tmp_path / "t.parquet", rows)):
        questions = read_questions(path, source="trivia")
        assert [question.supporting_ids for question in questions] == expected
        assert questions[3] == Question("row-4-c1ce7ac6", "Q?", ("a",), ("a.b",), source="trivia")


FACTS = {"title": ["A", "B", "A"], "sent_id": [0, 1, 2]}
SEARCH_R1 = {
    "id": "train_0", "question": "Q?", "golden_answers": ["a", "b"], "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer: Q?"}], "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["a", "b"]}},
    "extra_info": {"split": "train", "index": 0},
    "metadata": {"type": "bridge", "supporting_facts": FACTS, "level": "easy"},
}  # fmt: skip


def test_search_r1_columns_are_read_with_the_data_source_in_the_key(tmp_path):
    rows = [SEARCH_R1, {**SEARCH_R1, "data_source": "hotpotqa"}]
    for path in (_parquet(tmp_path / "s.parquet", rows), _write(tmp_path / "s.jsonl", *rows)):
        questions = read_questions(path)
        assert questions[0] == Question("train_0", "Q?", ("a", "b"), ("A", "B"), "bridge", "nq")
        assert questions[1].key == ("hotpotqa", "train_0")
    bare = _parquet(tmp_path / "bare.parquet", [{**SEARCH_R1, "metadata": None}])
    assert read_questions(bare) == [Question("train_0", "Q?", ("a", "b"), source="nq")]
    asked = {"extra_info": {"index": 3, "question": "Q?"}, "reward_model": SEARCH_R1["reward_model"]}
    for path in (_write(tmp_path / "few.jsonl", asked), _parquet(tmp_path / "few.parquet", [asked])):
        assert read_questions(path) == [Question("3", "Q?", ("a", "b"))]


def _squad(**qa: object) -> dict[str, object]:
    qas = [
        {"id": "5", "question": "Q?", "answers": [{"text": "a", "answer_start": 0}] * 3},
        {"id": "6", "question": "R?", **qa},
    ]
    return {"version": "2.0", "data": [{"title": "Kenya", "paragraphs": [{"context": "c", "qas": qas}]}]}


@pytest.mark.parametrize("indent", [None, 2])
def test_squad_files_of_both_versions_are_read(tmp_path, indent):
    path = tmp_path / "dev.json"
    path.write_text(
        json.dumps(_squad(answers=[], is_impossible=True, plausible_answers=[{"text": "x"}]), indent=indent)
    )
    assert read_questions(path, source="squad") == [
        Question("5", "Q?", ("a",), ("Kenya",), "", "squad"),
        Question("6", "R?", ("unknown",), (), "unanswerable", "squad"),
    ]
    path.write_text(json.dumps(_squad(answers=[]), indent=indent))
    assert _error(path).startswith(
        "dev.json data[0] paragraphs[0] qas[1]: 'answers' is [] (list); expected a text or a"
    )


HOTPOT = {
    "_id": "5a8b", "question": "Q?", "answer": "yes", "type": "comparison", "level": "hard",
    "supporting_facts": [["Ed Wood (film)", 0], ["Ed Wood", 1], ["Ed Wood", 2]],
    "context": [["Ed Wood", ["s0", "s1"]]],
}  # fmt: skip


def test_hotpotqa_files_and_hub_rows_are_read(tmp_path):
    expected = [Question("5a8b", "Q?", ("yes",), ("Ed Wood (film)", "Ed Wood"), "comparison", "hotpotqa")]
    (tmp_path / "h.json").write_text(json.dumps([HOTPOT]))
    assert read_questions(tmp_path / "h.json", source="hotpotqa") == expected
    hub = {key: value for key, value in HOTPOT.items() if key not in {"_id", "context"}}
    hub |= {"id": "5a8b", "supporting_facts": {"title": ["Ed Wood (film)", "Ed Wood", "Ed Wood"], "sent_id": [0, 1, 2]}}
    assert read_questions(_parquet(tmp_path / "h.parquet", [hub]), source="hotpotqa") == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"answers": None},
            "'answers' is missing; expected a text or a list of texts; for a question without an answer "
            'write what a right refusal is, such as ["unknown"]',
        ),
        ({"answers": []}, "'answers' is [] (list); expected a text or a list of texts"),
        ({"answers": [""]}, "'answers' is empty; expected a text; fill it in or remove the row"),
        ({"answers": [1.5]}, "'answers' is 1.5 (float); expected a text; correct the row or remove it"),
        ({"question": " "}, "'question' is empty"),
        ({"question": 5}, "'question' is 5 (int); expected a text"),
        ({"supporting_ids": [None]}, "'supporting_ids' is missing; expected a text"),
        ({"kind": 3}, "'kind' is 3 (int); expected a text"),
        ({"hops": "x"}, "'hops' is \"x\" (str); expected a list of objects; correct the file"),
        ({"hops": [HOP, {**HOP, "answer": None}]}, " hops[1]: 'answer' is missing; expected a text"),
        ({"hops": [3]}, " hops[0]: 'hops' is 3 (int); expected an object with named fields"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row, message):
    path = _write(tmp_path / "q.jsonl", NATIVE, {**NATIVE, "id": "q2", **row})
    error = _error(path)
    assert error.startswith("q.jsonl:2")
    assert message.strip() in error


def test_unknown_shapes_are_refused_with_what_is_understood(tmp_path):
    assert _error(_write(tmp_path / "q.jsonl", {"prompt": "x", "label": "y"})) == (
        f"q.jsonl:1: a row with the fields label, prompt; {ACCEPTED_SHAPES}; rename the fields"
    )
    assert _error(_parquet(tmp_path / "q.parquet", [{"prompt": "x"}])) == (
        f"q.parquet: a row with the fields prompt; {ACCEPTED_SHAPES}; rename the fields"
    )
    (tmp_path / "q.csv").write_text("question,answer\nWho?,Me\n")
    assert _error(tmp_path / "q.csv").startswith(
        "q.csv is neither JSON nor Parquet; expected one of: {question, answers}"
    )
    assert _error(tmp_path).endswith(" is a folder; expected one question file; name a file in it")
    for text in ("", "[]", '{"data": []}'):
        (tmp_path / "e.json").write_text(text)
        assert _error(tmp_path / "e.json") == f"e.json holds no questions; {ACCEPTED_SHAPES}"
    assert "there is no file gone.jsonl" in _error(tmp_path / "gone.jsonl")


def test_broken_lines_and_a_pair_of_source_and_id_used_twice_are_named(tmp_path):
    good = json.dumps(NATIVE)
    for number, text in ((1, f'{{"id": "x", \n{good}\n'), (2, f"{good}\nnot json\n")):
        (tmp_path / "q.jsonl").write_text(text)
        assert _error(tmp_path / "q.jsonl").startswith(f"q.jsonl:{number}: not JSON: ")
    path = _write(tmp_path / "q.jsonl", NATIVE, {**NATIVE, "source": "wine"}, NATIVE)
    assert _error(path) == (
        "q.jsonl:3: the id 'q1' of source 'beer' was already used at q.jsonl:1; expected each id once per source; "
        "rename or remove one of them"
    )


def test_the_hash_of_a_question_set_ignores_order_and_nothing_that_is_scored():
    one = Question("1", "Q?", ("a", "b"), source="s")
    others = [
        Question("2", "Q?", ("a", "b"), source="s"),
        Question("1", "R?", ("a", "b"), source="s"),
        Question("1", "Q?", ("b", "a"), source="s"),
        Question("1", "Q?", ("a", "b"), source="t"),
    ]
    assert len({question_set_hash([each]) for each in [one, *others]}) == 5
    assert question_set_hash([one]) == question_set_hash([Question("1", "Q?", ("a", "b"), ("d",), "bridge", "s")])
    assert question_set_hash([one, *others]) == question_set_hash(iter([*others, one]))
    assert question_set_hash(others) != question_set_hash([*others, others[0]])


@pytest.mark.parametrize(
    ("name", "count"), [("trivia", 2642), ("nq_open", 2055), ("hotpotqa", 700), ("squad_pages", 2000)]
)
def test_real_questions_are_read(name, count):
    path = SHARED / name / "qa.jsonl"
    if not path.exists():
        pytest.skip(f"real data is not here ({path})")
    questions = read_questions(path)
    assert len(questions) == count
    assert all(question.supporting_ids and question.source for question in questions)
