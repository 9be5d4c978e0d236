"""Normalisation and answer matching, against vectors worked by hand and against a naive SQuAD script."""

import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.reward.match import (
    exact_match,
    f1,
    is_vacuous,
    longest_common_subsequence,
    normalize_answer,
    rouge_l,
    rouge_tokens,
    substring,
)


def squad_normalize(s):
    """The official script, step by step and deliberately naive."""

    def remove_articles(text):
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def squad_f1(prediction, gold):
    predicted, wanted = squad_normalize(prediction).split(), squad_normalize(gold).split()
    common, rest = 0, list(wanted)
    for token in predicted:
        if token in rest:
            rest.remove(token)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


NORMALISED = [
    ("The U.S.A.", "usa"), ("Spider-Man", "spiderman"), ("1,000", "1000"), ("A", ""), ("vitamin A", "vitamin"),
    ("“quoted”", "“quoted”"), ("l'été", "lété"), ("", ""), ("   ", ""), ("the the the", ""),
    ("Beatles, The", "beatles"),    ("An apple a day", "apple day"), ("theatre", "theatre"), 
    ("a-ha", "aha"), ("the\tend\nof  it", "end of it"),
    ("3.14", "314"), ("-5", "5"), ("$5 million", "5 million"), ("C++", "c"), ("!!!", ""), ("Straße", "straße"),
    ("İstanbul", "i̇stanbul"), ("東京。", "東京。"), ("1990\u20131995", "1990\u20131995"), ("1990-1995", "19901995"),
    ("no-break\u00a0space", "nobreak space"), ("em—dash", "em—dash"), ("a\u2019s", "\u2019s"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), NORMALISED)
def test_normalisation_follows_the_vectors(text, expected):
    assert normalize_answer(text) == expected
    assert squad_normalize(text) == expected


OFFICIAL = [
    ("Paris", ["Paris"], 1, 1), ("The Paris", ["paris."], 1, 1), ("Paris, France", ["Paris"], 0, 2 / 3),
    ("in the city of Paris", ["Paris"], 0, 2 / 5), ("Lyon", ["Paris"], 0, 0), ("Paris", ["Lyon", "Paris"], 1, 1),
    ("Paris", [], 0, 0), ("", ["Paris"], 0, 0), (None, ["Paris"], 0, 0), (None, [""], 0, 0), ("the", ["Paris"], 0, 0),
    ("1,000", ["1000"], 1, 1), ("1 000", ["1,000"], 0, 0), ("50%", ["50 percent"], 0, 2 / 3),
    ("July 4, 1776", ["4 July 1776"], 0, 1), ("1776", ["July 4, 1776"], 0, 1 / 2), ("Spider Man", ["Spider-Man"], 0, 0),
    ("U.S.A.", ["USA"], 1, 1), ("U. S. A.", ["USA"], 0, 0), ("United States of America", ["United States"], 0, 2 / 3),
    ("apple a day", ["an apple a day"], 1, 1), ("theatre", ["the atre"], 0, 0), ("vitamin", ["vitamin A"], 1, 1),
    ("red red blue", ["red blue blue"], 0, 2 / 3), ("red red", ["red"], 0, 2 / 3), ("red", ["red red"], 0, 2 / 3),
    ("Kennedy", ["John F. Kennedy", "Kennedy"], 1, 1), ("Zürich", ["Zurich"], 0, 0), ("“Emma”", ["Emma"], 0, 0),
    ("東京 都", ["東京"], 0, 2 / 3), ("yesterday", ["yes"], 0, 0), ("no", ["yes", "no"], 1, 1), ("C#", ["C++"], 1, 1),
    ("rock & roll", ["rock and roll"], 0, 4 / 5),
    ("King Henry VIII", ["Henry VIII of England", "Henry the VIII"], 0, 4 / 5),
    ("unknown", ["unknown", "not known"], 1, 1), ("İstanbul", ["istanbul"], 0, 0), ("Beijing", ["and", "Paris"], 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "answers", "em", "overlap"), OFFICIAL)
def test_exact_match_and_f1_have_the_values_of_the_official_script_best_over_the_golds(
    prediction, answers, em, overlap
):
    assert exact_match(prediction, answers) == em
    assert f1(prediction, answers) == pytest.approx(overlap, abs=1e-12)


VACUOUS = [
    ("A", ["A"], 1, 1), ("a.", ["A"], 1, 1), ("the", ["A"], 0, 0), ("an", ["A"], 0, 0), ("", ["A"], 0, 0),
    ("  ", ["A"], 0, 0), ("Paris", ["A"], 0, 0), ("plan a", ["A"], 0, 2 / 3), ("The The", ["The The"], 1, 1),
    ("!!!", ["!!!"], 1, 1), ("...", ["!!!"], 0, 0), ("", [""], 0, 0), (" ", ["", "  "], 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "answers", "em", "overlap"), VACUOUS)
def test_a_gold_that_normalises_to_nothing_matches_only_itself(prediction, answers, em, overlap):
    assert exact_match(prediction, answers) == em
    assert f1(prediction, answers) == pytest.approx(overlap)


SUBSTRING = [
    ("It is Paris, of course", ["Paris"], 1), ("party", ["art"], 1), ("Par is", ["Paris"], 0), (None, ["Paris"], 0),
    ("anything at all", ["A"], 0), ("plan a is best", ["A"], 1), ("", ["A"], 0), ("", [""], 0),
    ("we love !!! live", ["!!!"], 1), ("we love them!!!", ["!!!"], 0),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "answers", "expected"), SUBSTRING)
def test_substring_follows_the_vectors(prediction, answers, expected):
    assert substring(prediction, answers) == expected


def test_vacuous_golds_are_recognised():
    assert [is_vacuous(gold) for gold in ("A", "the", "!!!", "", "B", "vitamin A")] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("measure", [exact_match, rouge_l])
def test_one_gold_given_as_a_bare_string_is_refused_rather_than_read_letter_by_letter(measure):
    with pytest.raises(TypeError, match=r"write \['Paris'\]"):
        measure("P", "Paris")


TEXT = st.text(alphabet=st.sampled_from("aAnthe TH.E,'-!1é“ \t\n"), max_size=20)


@given(st.text(max_size=60))
def test_normalisation_equals_the_naive_script_on_any_text(text):
    assert normalize_answer(text) == squad_normalize(text)


@given(TEXT, TEXT)
def test_scores_equal_the_naive_script_wherever_the_gold_survives_normalisation(prediction, gold):
    if squad_normalize(gold):
        assert exact_match(prediction, [gold]) == float(squad_normalize(prediction) == squad_normalize(gold))
        assert f1(prediction, [gold]) == pytest.approx(squad_f1(prediction, gold), abs=1e-12)
        assert substring(prediction, [gold]) == float(squad_normalize(gold) in squad_normalize(prediction))


@given(TEXT)
def test_a_gold_matches_itself_unless_it_is_blank(gold):
    expected = float(bool(gold.strip()))
    assert exact_match(gold, [gold]) == substring(gold, [gold]) == expected
    assert f1(gold, [gold]) == pytest.approx(expected)


@given(TEXT, st.lists(TEXT, max_size=4))
def test_the_measures_are_ordered_and_bounded_and_more_golds_never_hurt(prediction, golds):
    em, overlap, inside = exact_match(prediction, golds), f1(prediction, golds), substring(prediction, golds)
    assert 0 <= em <= overlap + 1e-12 <= 1 + 2e-12
    assert em <= inside
    assert exact_match(prediction, [*golds, "Paris"]) >= em


ROUGE = [
    ("the cat sat on the mat", ["the cat the mat"], 2 * (4 / 6) * 1 / (4 / 6 + 1)),  # LCS is 4 of 6 and 4 of 4
    ("paris!", ["PARIS"], 1.0), ("Paris, France", ["Paris"], 2 / 3), ("France Paris", ["Paris France"], 1 / 2),
    ("Lyon", ["Paris"], 0.0), ("Lyon", ["Paris", "Lyon"], 1.0), ("", ["Paris"], 0.0), (None, ["Paris"], 0.0),
    ("Paris", [], 0.0), ("Paris", [""], 0.0), ("", [""], 0.0),
    ("the Beatles", ["Beatles"], 2 / 3),  # no articles are taken out here: that is SQuAD's rule
    ("Zürich", ["Zurich"], 0.0), ("東京", ["東京"], 0.0), ("1,000", ["1000"], 0.0),  # tokens are ASCII
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "answers", "expected"), ROUGE)
def test_rouge_l_follows_the_vectors(prediction, answers, expected):
    assert rouge_l(prediction, answers) == pytest.approx(expected, abs=1e-12)


def test_the_subsequence_may_have_gaps_and_keeps_the_order():
    assert longest_common_subsequence(list("abcde"), list("bxde")) == 3
    assert longest_common_subsequence(list("ab"), list("ba")) == 1
    assert longest_common_subsequence([], list("ba")) == 0


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
