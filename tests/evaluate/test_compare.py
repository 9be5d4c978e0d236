"""Paired comparisons, worked by hand."""

import dataclasses
import json

import pytest

from seekling.errors import DataError
from seekling.evaluate.compare import PairedComparison, compare_all, holm
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


def test_an_intersection_is_asked_for_and_says_what_it_left_out():
    first = evaluation("rrwwr", stage="eval-sft")
    second = evaluation("rwr", stage="eval-rl")
    second[1] = record(question(1, answers=("Rome",)), "Rome", stage="eval-rl")
    result = compare(first, second, intersect=True)
    assert (result.is_intersection, result.num_only_first, result.num_only_second) == (True, 3, 1)
    assert (result.num_questions, result.num_both, result.num_wins, result.num_losses) == (2, 1, 1, 0)
    with pytest.raises(DataError, match="compare with --intersect"):
        compare(first, second)
    assert PairedComparison.from_json(json.loads(json.dumps(result.to_json()))) == result


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
