"""Paired comparisons and several samples of a question, worked by hand."""

import dataclasses
import json

import pytest

from seekling.errors import DataError
from seekling.evaluate.compare import PairedComparison, compare_all, holm, pass_at_k, summarize_samples
from seekling.evaluate.intervals import difference_of
from tests.evaluate.episodes import evaluation, question, record


def compare(first, second, **settings):
    """Two evaluations under the names that the commands give them."""
    return compare_all([("eval-sft", first), ("eval-rl", second)], **settings)[0]


def test_the_comparison_of_twelve_questions_is_that_worked_by_hand():
    first = evaluation("rrrwwwwwwwff", stage="eval-sft")
    second = evaluation("rrwrrrrwwwrf", stage="eval-rl")
    result = compare(first, reversed(second))
    assert (result.first, result.second) == ("eval-sft", "eval-rl")
    assert (result.num_questions, result.num_excluded) == (10, 2)
    assert (result.em_first.k, result.em_first.n, result.em_second.k) == (3, 10, 6)
    assert (result.num_both, result.num_wins, result.num_losses, result.num_neither) == (2, 4, 1, 3)
    assert result.p_value_holm is None
    assert result.em_difference.value == pytest.approx(0.3)
    # Ten differences of +1 (4), -1 (1), 0, as in test_intervals.
    assert result.em_difference == difference_of([1.0] * 4 + [-1.0] + [0.0] * 5)
    assert result.f1_difference == result.em_difference
    assert PairedComparison.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_different_question_sets_are_refused_with_the_number_that_differ():
    first = evaluation("rrrr", stage="eval-sft")
    second = evaluation("rrrrrr", stage="eval-rl")
    second[0] = record(question(0, answers=("Rome",)), "Rome")
    with pytest.raises(DataError) as caught:
        compare(first, second)
    assert "3 differ (1 with another text or other golds, such as ('', 'q0'); 2 only in the second" in str(caught.value)
    assert "3 are the same" in str(caught.value)


def test_nothing_and_twice_are_refused():
    records = evaluation("rw", stage="eval-rl")
    with pytest.raises(DataError, match="the eval-rl evaluation holds no episode"):
        compare(records, [])
    with pytest.raises(DataError, match=r"the eval-\w+ evaluation holds question .* twice"):
        compare([*records, records[0]], records)


@pytest.mark.parametrize(
    ("given", "corrected"),
    [([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5, 0.6], [1.0, 1.0]), ([0.2], [0.2]), ([], [])],
)
def test_holm_keeps_the_order_and_never_makes_a_p_value_smaller(given, corrected):
    assert holm(given) == pytest.approx(corrected)


def test_what_differs_besides_the_policies_is_noted():
    first = evaluation("rw", stage="eval-sft")
    second = [
        dataclasses.replace(each, episode=dataclasses.replace(each.episode, temperature=0.7, protocol="tools"))
        for each in evaluation("rr", stage="eval-rl")
    ]
    assert compare(first, second).notes == (
        "decoding: greedy in the first, temperature 0.7 in the second",
        "protocol: tags in the first, tools in the second",
    )
    assert compare(first, evaluation("rr", stage="eval-rl")).notes == ()


# Several samples of each question


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
