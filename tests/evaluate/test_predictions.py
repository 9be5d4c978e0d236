"""Scoring anyone's predictions."""

import json

import pytest

from seekling.errors import DataError
from seekling.evaluate.predictions import read_predictions, score_predictions
from seekling.types import Question

QUESTIONS = [
    Question(id="1", question="Capital of France?", answers=("Paris",), kind="single"),
    Question(id="2", question="Largest planet?", answers=("Jupiter", "planet Jupiter"), kind="single"),
    Question(id="3", question="Who?", answers=("unknown",), kind="unanswerable"),
    Question(id="4", question="Which vitamin?", answers=("A",), kind="single"),
]


def test_the_figures_are_those_worked_by_hand():
    scores = score_predictions({"1": "the city of Paris", "2": "Jupiter.", "3": None, "4": "the"}, QUESTIONS)
    assert (scores.em.k, scores.em.n, scores.em.value) == (1, 4, 0.25)
    assert (scores.em.low, scores.em.high) == pytest.approx((0.0455873, 0.6993582), abs=1e-6)
    assert scores.f1.value == pytest.approx((0.5 + 1 + 0 + 0) / 4)
    assert scores.substring.k == 2
    assert scores.answered.k == 3
    assert scores.num_vacuous_golds == 1
    assert (scores.by_kind["single"].em.k, scores.by_kind["single"].em.n) == (1, 3)
    assert scores.by_source == {}


def test_ids_that_restart_per_data_set_need_the_source():
    questions = [Question(id="1", question="?", answers=(s,), source=s) for s in ("nq", "hotpotqa")]
    scores = score_predictions({("nq", "1"): "nq", ("hotpotqa", "1"): "x"}, questions)
    assert {name: group.em.k for name, group in scores.by_source.items()} == {"nq": 1, "hotpotqa": 0}
    with pytest.raises(DataError, match='give every prediction row the "source"'):
        score_predictions({"1": "nq"}, questions)


def write(tmp_path, *rows):
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_predictions_are_read_with_null_numbers_as_ids_and_sources(tmp_path):
    rows = ({"id": 1, "prediction": "a\u2028b"}, "", {"id": "2", "prediction": None, "source": "nq"})
    assert read_predictions(write(tmp_path, *rows)) == {"1": "a\u2028b", ("nq", "2"): None}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{oops", r'jsonl:2: not \{"id": .* \(Expecting property name'),
        ("[1]", "jsonl:2: not .*should be a dictionary"),
        ({"id": "2"}, "jsonl:2: not .*prediction: Field required"),
        ({"id": "2", "prediction": 5}, "jsonl:2: not .*prediction: Input should be a valid string"),
        ({"id": None, "prediction": "x"}, "jsonl:2: not .*id.* Input should be a valid string"),
        ({"id": True, "prediction": "x"}, "jsonl:2: not .*id.* Input should be a valid string"),
        ({"id": "2", "prediction": "x", "source": 3}, "jsonl:2: not .*source: Input should be a valid string"),
        ({"id": "1", "prediction": "y"}, "jsonl:2: id '1' was on an earlier line already"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_predictions(write(tmp_path, {"id": "1", "prediction": "x"}, row))
