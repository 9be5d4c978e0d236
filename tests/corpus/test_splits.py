"""Sets that share no page, whatever the order of the rows, and what two sets share."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.corpus.almanac import generate
from seekling.corpus.questions import read_questions
from seekling.corpus.splits import fold_text, pages_of, split_by_page, with_shared_page, with_shared_text
from seekling.types import Hop, Question


def asked(number, *pages, kind=""):
    return Question(f"q{number}", f"Question {number}?", ("a",), pages, kind)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("When was  the mill built?", "when was the MILL built", True),
        ("Who wrote «Emma»?", "who wrote 'Emma' ?", True),
        ("What is C++?", "What is C?", False),
        ("?", "!", False),
        ("\uff46\uff55\uff4c\uff4c width", "full width", True),
        ("When was it built?", "When was it rebuilt?", False),
    ],
)
def test_texts_are_compared_without_case_punctuation_and_white_space(one, other, is_same):
    assert (fold_text(one) == fold_text(other)) is is_same
    found = with_shared_text([asked(0), Question("x", one, ("a",))], [Question("y", other, ("b",))])
    assert [question.id for question in found] == (["x"] if is_same else [])


@given(st.integers(0, 80), st.floats(0, 1), st.randoms(use_true_random=False))
def test_no_page_and_no_text_is_on_both_sides_and_the_order_of_rows_does_not_matter(count, fraction, dice):
    questions = [asked(number, f"p{dice.randrange(60)}", f"p{dice.randrange(60)}") for number in range(count)]
    questions += [replace(question, id=f"{question.id} again", supporting_ids=()) for question in questions[:3]]
    rest, held = split_by_page(questions, fraction)
    assert sorted(rest + held, key=questions.index) == questions
    assert with_shared_page(held, rest) == with_shared_text(held, rest) == []
    shuffled = dice.sample(questions, len(questions))
    assert {each.id for each in split_by_page(shuffled, fraction)[1]} == {each.id for each in held}
    assert [each for each in questions if each in held] == held


@pytest.mark.parametrize(("count", "fraction", "expected"), [(478, 0.2, 96), (10, 0.2, 2), (8, 0.1, 1), (2, 0.1, 0)])
def test_where_no_page_is_shared_the_number_is_exact(count, fraction, expected):
    for pages in ([()] * count, [(f"p{number}",) for number in range(count)]):
        questions = [asked(number, *each, kind=f"kind {number % 3}") for number, each in enumerate(pages)]
        assert len(split_by_page(questions, fraction)[1]) == expected


def test_a_group_that_holds_most_questions_is_never_held_out_and_the_others_are_as_before():
    chain = [asked(number, f"p{number}", f"p{number + 1}") for number in range(60)]
    alone = [asked(number, f"p{number}") for number in range(100, 140)]
    rest, held = split_by_page([*chain, *alone], 0.1)
    assert set(chain) <= set(rest)
    assert len(held) == 5  # a tenth of the 40, and one for the group that gave none


def test_pages_of_hops_count_too():
    asked_of = Question("u", "Which dog?", ("unknown",), (), "unanswerable", hops=(Hop("x", "dog", "", "p7"),))
    assert pages_of(asked_of) == {"p7"}
    assert with_shared_page([asked_of], [asked(1, "p7")]) == [asked_of]


def test_a_tenth_of_an_almanac_has_all_its_kinds_in_proportion(tmp_path):
    generate(600, 0, tmp_path)
    questions = read_questions(tmp_path / "train.jsonl")
    random.Random(0).shuffle(questions)
    rest, held = split_by_page(questions, 0.1)
    assert len(questions) / 12 <= len(held) <= len(questions) / 6
    assert with_shared_page(held, rest) == []
    counts, kinds = Counter(each.kind for each in questions), Counter(each.kind for each in held)
    shares = {kind: kinds[kind] / count for kind, count in counts.items()}
    assert set(shares) == {"single", "bridge", "chain", "several", "unanswerable"}
    assert all(0.07 <= share <= 0.18 for share in shares.values())
