"""ROUGE-L, worked by hand and against Google's rouge-score package."""

import random

import pytest

from seekling.reward.rouge import longest_common_subsequence, rouge_l, rouge_tokens

VECTORS = [
    ("the cat sat on the mat", ["the cat the mat"], 2 * (4 / 6) * 1 / (4 / 6 + 1)),  # LCS is 4 of 6 and 4 of 4
    ("paris!", ["PARIS"], 1.0), ("Paris, France", ["Paris"], 2 / 3), ("France Paris", ["Paris France"], 1 / 2),
    ("Lyon", ["Paris"], 0.0), ("Lyon", ["Paris", "Lyon"], 1.0), ("", ["Paris"], 0.0), (None, ["Paris"], 0.0),
    ("Paris", [], 0.0), ("Paris", [""], 0.0), ("", [""], 0.0),
    ("the Beatles", ["Beatles"], 2 / 3),  # no articles are taken out here: that is SQuAD's rule
    ("Zürich", ["Zurich"], 0.0), ("東京", ["東京"], 0.0), ("1,000", ["1000"], 0.0),  # tokens are ASCII
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "answers", "expected"), VECTORS)
def test_rouge_l_follows_the_vectors(prediction, answers, expected):
    assert rouge_l(prediction, answers) == pytest.approx(expected, abs=1e-12)


def test_the_subsequence_may_have_gaps_and_keeps_the_order():
    assert longest_common_subsequence(list("abcde"), list("bxde")) == 3
    assert longest_common_subsequence(list("ab"), list("ba")) == 1
    assert longest_common_subsequence([], list("ba")) == 0


def test_one_gold_as_a_bare_string_is_refused():
    with pytest.raises(TypeError, match=r"write \['Paris'\]"):
        rouge_l("P", "Paris")


PIECES = ["the", "a", "Paris", "paris", "U.S.A.", "1,000", "l'été", "Zürich", "東京", "-", "!!!", "Spider-Man", "x_y"]


def random_text(rng):
    return rng.choice([" ", "  ", "\n"]).join(rng.choices(PIECES, k=rng.randrange(9)))


def test_rouge_l_equals_rouge_score_on_a_thousand_random_pairs():
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed (dev extra)")
    scorer = rouge_scorer.RougeScorer(["rougeL"])
    rng = random.Random(7)
    pairs = [(random_text(rng), random_text(rng)) for _ in range(1000)]
    for prediction, gold in pairs:
        expected = scorer.score(gold, prediction)["rougeL"].fmeasure
        assert rouge_l(prediction, [gold]) == pytest.approx(expected, abs=1e-12), (prediction, gold)
    values = [rouge_l(prediction, [gold]) for prediction, gold in pairs]
    assert sum(0 < value < 1 for value in values) > 500


def test_tokens_equal_those_of_rouge_score():
    tokenize = pytest.importorskip("rouge_score.tokenize", reason="rouge-score is not installed (dev extra)").tokenize
    rng = random.Random(8)
    for text in [random_text(rng) for _ in range(200)] + ["İstanbul", "ﬁne", "a\u00a0b", "\u2460"]:
        assert rouge_tokens(text) == tokenize(text, None)
