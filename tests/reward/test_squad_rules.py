"""Exact match and F1 on vectors whose values SQuAD's official script gives, best over the golds."""

import pytest

from seekling.reward.match import exact_match, f1

VECTORS = [
    ("Paris", ["Paris"], 1, 1),
    ("paris", ["Paris"], 1, 1),
    ("Paris.", ["Paris"], 1, 1),
    ("The Paris", ["Paris"], 1, 1),
    ("Paris, France", ["Paris"], 0, 2 / 3),
    ("in the city of Paris", ["Paris"], 0, 2 / 5),
    ("Lyon", ["Paris"], 0, 0),
    ("", ["Paris"], 0, 0),
    ("the", ["Paris"], 0, 0),
    ("Pari", ["Paris"], 0, 0),
    ("1,000", ["1000"], 1, 1),
    ("1 000", ["1000"], 0, 0),
    ("1000.0", ["1000"], 0, 0),
    ("$1,000", ["1000"], 1, 1),
    ("50%", ["50 percent"], 0, 2 / 3),
    ("50 percent", ["50%", "50 percent"], 1, 1),
    ("July 4, 1776", ["4 July 1776"], 0, 1),
    ("1776", ["July 4, 1776"], 0, 1 / 2),
    ("the 4th of July", ["4th July"], 0, 4 / 5),
    ("1990-1995", ["1990 to 1995"], 0, 0),
    ("Spider-Man", ["Spiderman"], 1, 1),
    ("Spider Man", ["Spider-Man"], 0, 0),
    ("U.S.A.", ["USA"], 1, 1),
    ("U. S. A.", ["USA"], 0, 0),
    ("USA", ["United States", "USA"], 1, 1),
    ("United States of America", ["United States"], 0, 2 / 3),
    ("An apple", ["apple"], 1, 1),
    ("apple a day", ["an apple a day"], 1, 1),
    ("Athens", ["a thens"], 0, 0),
    ("theatre", ["the atre"], 0, 0),
    ("Beatles", ["The Beatles"], 1, 1),
    ("Beatles, The", ["The Beatles"], 1, 1),
    ("the the the beatles", ["Beatles"], 1, 1),
    ("red red blue", ["red blue blue"], 0, 2 / 3),
    ("red red", ["red"], 0, 2 / 3),
    ("red", ["red red"], 0, 2 / 3),
    ("blue red", ["red blue"], 0, 1),
    ("John F. Kennedy", ["John Fitzgerald Kennedy"], 0, 2 / 3),
    ("Kennedy", ["John F. Kennedy", "Kennedy"], 1, 1),
    ("JFK", ["John F. Kennedy"], 0, 0),
    ("Zürich", ["Zurich"], 0, 0),
    ("Zürich", ["Zürich", "Zurich"], 1, 1),
    ("l'été", ["l\u2019été"], 0, 0),
    ("“Emma”", ["Emma"], 0, 0),
    ('"Emma"', ["Emma"], 1, 1),
    ("東京", ["東京"], 1, 1),
    ("東京 都", ["東京"], 0, 2 / 3),
    ("yes", ["yes"], 1, 1),
    ("yesterday", ["yes"], 0, 0),
    ("no", ["yes", "no"], 1, 1),
    ("not known", ["unknown"], 0, 0),
    ("unknown", ["unknown", "not known"], 1, 1),
    ("don't know", ["dont know"], 1, 1),
    ("rock 'n' roll", ["rock and roll"], 0, 2 / 3),
    ("rock & roll", ["rock and roll"], 0, 4 / 5),
    ("AT&T", ["ATT"], 1, 1),
    ("C++", ["C"], 1, 1),
    ("C#", ["C++"], 1, 1),
    ("a\tb", ["b"], 1, 1),
    ("new\nyork", ["New  York"], 1, 1),
    ("vitamin", ["vitamin A"], 1, 1),
    ("vitamin A", ["vitamin C"], 0, 2 / 3),
    ("Henry VIII of England", ["Henry VIII", "King Henry VIII"], 0, 2 / 3),
    ("King Henry VIII", ["Henry VIII of England", "Henry the VIII"], 0, 4 / 5),
    ("Mount Everest is 8,849 m high", ["8849 m"], 0, 1 / 2),
    ("eight thousand", ["8000"], 0, 0),
    ("Straße", ["STRASSE"], 0, 0),
    ("İstanbul", ["istanbul"], 0, 0),
]


@pytest.mark.parametrize(("prediction", "answers", "em", "overlap"), VECTORS)
def test_exact_match_and_f1_have_the_values_of_the_official_script(prediction, answers, em, overlap):
    assert exact_match(prediction, answers) == em
    assert f1(prediction, answers) == pytest.approx(overlap, abs=1e-12)


def test_there_are_at_least_sixty_vectors_and_all_outcomes_among_them():
    assert len(VECTORS) >= 60
    assert {(em, 0 < overlap < 1) for _, _, em, overlap in VECTORS} == {(0, False), (0, True), (1, False)}
