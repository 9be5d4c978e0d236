"""Published figures beside ours: comparable only when nothing that matters differs."""

import dataclasses

import pytest

from seekling.evaluate.published import PUBLISHED, WIKI_18_PASSAGES, published_beside
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import EvalSummary, summarize
from tests.evaluate.episodes import question, record
from tests.settings import recipe_of

RECIPE = recipe_of(
    {"env": {"max_turns": 2}, "retrieval": {"kind": "dense", "encoder": "intfloat/e5-base-v2", "top_k": 3}}
)
E5 = "E5-base-v2, top 3, over the 21 million passages of Wikipedia 2018"
SLIMES = EvalSettings.from_recipe(RECIPE, num_passages=WIKI_18_PASSAGES)


def slime_row(settings, n=3610, value=0.4):
    found = published_beside("nq", {"em": (value, n)}, settings)
    return next(each for each in found if each.figure.model == "Qwen2.5-3B, GRPO")


def test_the_same_questions_decoding_turns_and_index_make_a_figure_comparable():
    row = slime_row(SLIMES)
    assert (row.is_comparable, row.reasons, row.ours, row.figure.value) == (True, (), 0.4, 0.4576)


@pytest.mark.parametrize(
    ("settings", "n", "reason"),
    [
        (SLIMES, 400, "3610 questions there, 400 here"),
        (dataclasses.replace(SLIMES, temperature=1.0), 3610, "decoding: greedy there, temperature 1 here"),
        (dataclasses.replace(SLIMES, max_generations=5), 3610, "generations/useful searches: 2/1 there, 5/1 here"),
        (dataclasses.replace(SLIMES, num_passages=20), 3610,
         f"searched: {E5} there, intfloat/e5-base-v2 over 20 passages here"),
        (dataclasses.replace(SLIMES, mode="closed-book"), 3610, "ours is a closed-book row"),
        (None, 3610, "our settings are not recorded"),
    ],
)  # fmt: skip
def test_each_difference_is_named_and_makes_it_incomparable(settings, n, reason):
    row = slime_row(settings, n)
    assert (row.is_comparable, row.reasons) == (False, (reason,))


def test_a_headline_whose_rows_were_scored_on_different_questions_is_never_comparable():
    (headline,) = [
        each
        for each in published_beside("wiki-trivia", {"judge": (0.5, 96)}, SLIMES)
        if "SFT + RL" in each.figure.model
    ]
    assert headline.figure.value == 0.4268
    assert not headline.is_comparable
    assert "it can only be 35 of 82" in headline.reasons[0]


def test_a_metric_that_we_did_not_measure_is_said_to_be_missing():
    found = published_beside("rare-wiki", {"em": (0.5, 96)}, SLIMES)
    assert all("we have no judge here" in each.reasons and each.ours is None for each in found)


def test_an_unknown_data_set_has_no_published_figures():
    assert published_beside("village", {"em": (1.0, 3)}, SLIMES) == ()


def test_the_four_systems_and_search_r1_are_there_each_with_a_source():
    assert {figure.system for figure in PUBLISHED} == {
        "SLM-RL-Search",
        "slime search-r1 example",
        "tinker-cookbook search_tool",
        "process distillation + PPO",
        "Search-R1",
    }
    assert all(figure.source and 0 < figure.value < 1 for figure in PUBLISHED)
    assert len({(each.system, each.model, each.benchmark, each.metric) for each in PUBLISHED}) == len(PUBLISHED)


def test_a_summary_carries_them_through_json():
    summary = summarize([record(question(1, source="nq"), "Paris"), record(question(2, source="village"), "Lyon")])
    assert {each.figure.benchmark for each in summary.published} == {"nq"}
    assert {(each.ours, each.ours_n) for each in summary.published} == {(1.0, 1)}
    assert EvalSummary.from_json(summary.to_json()) == summary
