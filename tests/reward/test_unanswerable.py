"""The recovery reward: to have looked pays, failing first does not pay more, and nothing pays without looking."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seekling.config import RewardConfig
from seekling.reward import make_reward
from seekling.types import Episode, Hop, Question, StopReason, ToolCall, Turn

PAGE = "Alder Mill: Alder Mill is a water mill on the river Sorrel. It was built in 1612."
OTHER = "Birch Mill: Birch Mill is a water mill on the river Tansy."
SINGLE = Question("q", "When was Alder Mill built?", ("1612",), ("alder_mill",), "single", "village")
UNANSWERABLE = Question(
    "q", "Whose dog was it?", ("unknown", "not found"), (), "unanswerable", "village",
    (Hop("Alder Mill", "name of the dog", "unknown", "alder_mill"),),
)  # fmt: skip
REWARD = make_reward("recovery")


def search(page="alder_mill", text=PAGE, observation=None):
    call = ToolCall("search", {"query": "x"}, result=text, document_ids=(page,))
    shown = f"<information>Doc 1 {text.partition(': ')[2]}</information>" if observation is None else observation
    return Turn("<search>x</search>", "search", "x", observation=shown, calls=(call,))


MISS = search("birch_mill", OTHER)
EMPTY = search(text="", observation="<information>No results for this query.</information>")


def reward(question, answer, *turns, function=REWARD):
    stop = StopReason.ANSWERED if answer is not None else StopReason.MAX_TURNS
    return function(Episode("q", "village", "tags", (), turns, answer, stop), question).total


@pytest.mark.parametrize(
    ("question", "answer", "turns", "total"),
    [
        (SINGLE, "1612", (search(),), 1.2),
        (SINGLE, "1612", (MISS, search()), 1.2),  # failing first pays no more
        (SINGLE, "1612", (), 1.0),
        (SINGLE, "1655", (MISS,), 0.0),
        (SINGLE, "1655", (MISS, search()), 0.2),  # the contrast that teaches to search again
        (SINGLE, "unknown", (MISS,), 0.0),
        (SINGLE, "unknown", (search(),), 0.2),
        (SINGLE, None, (search(),), 0.2),
        (UNANSWERABLE, "unknown", (search(),), 1.2),
        (UNANSWERABLE, "not found", (MISS, search()), 1.2),
        (UNANSWERABLE, "Rex", (search(),), 0.2),
        (UNANSWERABLE, "Rex", (), 0.0),
    ],
)
def test_what_pays(question, answer, turns, total):
    assert reward(question, answer, *turns) == pytest.approx(total)


@pytest.mark.parametrize(
    "turns",
    [
        (),
        (MISS,),
        (EMPTY,),
        (MISS, EMPTY),
        # A program that fetches the page and prints nothing of it, or only its title.
        (search(observation="(the program printed nothing)"),),
        (search(observation="Alder Mill"),),
        # A list of titles is not the page.
        (search(text='[{"page_id": "alder_mill", "title": "Alder Mill"}]', observation="Alder Mill, Birch Mill"),),
    ],
)
def test_unknown_without_looking_never_pays(turns):
    assert reward(UNANSWERABLE, "unknown", *turns) == 0.0


def test_a_page_that_the_policy_writes_itself_is_not_looking():
    turn = replace(search(text=""), action=f"<search>{PAGE}</search>", observation=PAGE)
    assert reward(UNANSWERABLE, "unknown", turn) == 0.0


def test_where_no_page_is_known_any_page_counts():
    asked = replace(UNANSWERABLE, hops=())
    assert reward(asked, "unknown", MISS) == pytest.approx(1.2)
    assert reward(asked, "unknown") == 0.0


def test_all_pages_of_two_hops_have_to_be_seen():
    both = replace(SINGLE, supporting_ids=("alder_mill", "birch_mill"))
    assert reward(both, "1612", search()) == pytest.approx(1.0)
    assert reward(both, "1612", search(), MISS) == pytest.approx(1.2)


def test_the_weight_of_looking_is_a_setting():
    assert reward(SINGLE, "x", search(), function=make_reward("recovery", RewardConfig(looked=0.5))) == 0.5


@pytest.mark.parametrize(
    ("kind", "answer", "total"),
    [
        ("single", "Paris", 1),
        ("single", "Lyon", -1),
        ("single", "unknown", 0),
        ("single", None, 0),
        ("unanswerable", "unknown", 1),
        ("unanswerable", "Lyon", -1),
    ],
)
def test_a_wrong_answer_costs_what_not_knowing_does_not(kind, answer, total):
    golds = ("unknown",) if kind == "unanswerable" else ("Paris",)
    asked = Question("q", "Where?", golds, kind=kind)
    episode = Episode("q", "", "tags", (), (), answer, StopReason.ANSWERED)
    assert make_reward("ternary")(episode, asked).total == total
