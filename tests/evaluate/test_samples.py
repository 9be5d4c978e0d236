"""Several samples per question: exact values, and the unbiasedness that is promised, by simulation."""

import dataclasses
import json

import pytest

from seekling.errors import DataError
from seekling.evaluate.samples import majority_answer, pass_at_k, summarize_samples
from tests.evaluate.episodes import evaluation, question, record


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (1, 1, 1, 1.0),
        (4, 0, 4, 0.0),
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),
        (4, 2, 2, 1 - 1 / 6),
        (10, 3, 5, 1 - 21 / 252),
        (4, 3, 2, 1.0),
    ],
)
def test_pass_at_k_has_the_values_of_the_formula(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["Paris", "Lyon", "paris."], "Paris"),
        (["Lyon", "Paris"], "Lyon"),
        (["Lyon", "Paris", "The Paris", "lyon"], "Lyon"),
        ([None, None, "Paris"], "Paris"),
        ([None, " "], None),
        ([], None),
        (["A", "a", "the"], "A"),
    ],
)
def test_the_majority_votes_on_normalised_answers_and_ties_go_to_the_first(answers, winner):
    assert majority_answer(answers) == winner


def sampled(*texts, stage):
    return [record(question(number), text, stage=stage) for number, text in enumerate(texts)]


def test_three_samples_of_three_questions_are_those_worked_by_hand():
    summary = summarize_samples(
        [
            ("a", sampled("Paris", "Lyon", "Lyon", stage="eval-a")),
            ("b", sampled("Paris", "Paris", "Rome", stage="eval-b")),
            ("c", sampled("paris", "Lyon", None, stage="eval-c")),
        ]
    )
    assert summary.names == ("a", "b", "c")
    assert (summary.num_samples, summary.num_questions, summary.num_excluded) == (3, 3, 0)
    assert summary.em_mean.value == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert summary.em_mean.n == 3
    assert [(rate.k, rate.n) for rate in summary.em_per_sample] == [(1, 3), (2, 3), (1, 3)]
    assert summary.em_deviation == pytest.approx(1 / (3 * 3**0.5))
    assert {k: mean.value for k, mean in summary.pass_at_k.items()} == pytest.approx(
        {1: 4 / 9, 2: (1 + 2 / 3 + 0) / 3, 3: 2 / 3}
    )
    assert (summary.majority.k, summary.majority.n) == (1, 3)
    assert json.loads(json.dumps(summary.to_json()))["pass_at_k"]["2"]["n"] == 3


def test_other_questions_and_too_few_evaluations_are_refused():
    with pytest.raises(DataError, match="only in b"):
        summarize_samples([("a", evaluation("rr", stage="x")), ("b", evaluation("rrr", stage="x"))])
    with pytest.raises(DataError, match="got 1 evaluation"):
        summarize_samples([("a", evaluation("rr", stage="x"))])
    changed = [
        dataclasses.replace(each, question=question(n, answers=("Rome",)))
        for n, each in enumerate(evaluation("rr", stage="x"))
    ]
    with pytest.raises(DataError, match="2 with another text or other golds"):
        summarize_samples([("a", evaluation("rr", stage="x")), ("b", changed)])
