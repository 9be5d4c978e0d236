"""Summaries, worked by hand."""

import dataclasses
import json

import pytest

from seekling.config import Recipe, build_recipe
from seekling.errors import DataError
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import EvalSummary, summarize
from tests.evaluate.episodes import evaluation, failed, invalid, question, record, search

GREEDY = EvalSettings.from_recipe(Recipe())


@pytest.fixture
def records():
    return [
        record(question(1), "Paris", search(("page-9", "page-1"), is_cut=True), seconds=1.0),
        record(question(2, kind="bridge", support=("page-1", "page-2")), "Paris France", search(), search(("page-3",))),
        record(question(3, kind="bridge", support=("page-4",)), None, invalid(), search(), invalid(), seconds=6.0),
        record(question(4, kind="unanswerable", answers=("unknown", "A"), support=()), "Unknown.", seconds=3.0),
        failed(question(5)),
    ]


def kn(rate):
    return rate.k, rate.n


def test_the_figures_of_five_episodes_are_those_worked_by_hand(records):
    summary = summarize(records, settings=GREEDY)
    assert (summary.stage, summary.num_questions, summary.f1.n) == ("eval-rl", 5, 4)
    assert (summary.em.low, summary.em.high) == pytest.approx((0.1500390, 0.8499610), abs=1e-6)
    assert summary.f1.value == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)
    assert [kn(rate) for rate in (summary.em, summary.substring, summary.answered)] == [(2, 4), (3, 4), (3, 4)]
    assert [kn(rate) for rate in (summary.gold_retrieved, summary.gold_retrieved_all)] == [(2, 3), (1, 3)]
    assert kn(summary.episodes_with_invalid) == (1, 4)
    assert (summary.invalid_rate, summary.truncated_observation_rate) == pytest.approx((2 / 9, 1 / 6))
    assert summary.searches_per_question == pytest.approx(4 / 4)
    assert summary.turns_per_question == pytest.approx((2 + 3 + 3 + 1) / 4)
    assert summary.action_tokens_per_question == pytest.approx((16 + 26 + 18 + 6) / 4)
    assert summary.observation_tokens_per_question == pytest.approx((50 + 100 + 50 + 0) / 4)
    assert summary.seconds_per_question == pytest.approx((1 + 2 + 6 + 3) / 4)
    assert (summary.num_vacuous_golds, summary.temperatures) == (1, (0.0,))
    assert (summary.draft_acceptance, summary.drafted_per_token) == (None, None)
    assert EvalSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    assert summarize(reversed(records), settings=GREEDY) == summary


def test_an_infrastructure_failure_is_counted_by_cause_and_scored_nowhere(records):
    summary = summarize(records)
    assert summary.exclusions == {"infra_failure": 1}
    assert summary.stop_reasons == {"answered": 3, "infra_failure": 1, "max_turns": 1}
    without = summarize(records[:-1])
    assert (summary.em, summary.f1, summary.by_kind) == (without.em, without.f1, without.by_kind)


def test_questions_of_two_data_sets_with_the_same_id_stay_apart():
    asked = [question(1, source="nq", kind=""), question(1, source="hotpotqa", kind="")]
    summary = summarize([record(asked[0], "Paris"), record(asked[1], "Lyon")])
    assert {name: (group.em.k, group.em.n) for name, group in summary.by_source.items()} == {
        "nq": (1, 1),
        "hotpotqa": (0, 1),
    }
    assert summary.by_kind == {}


def test_when_every_episode_failed_there_is_no_score_rather_than_zero():
    summary = summarize(evaluation("ff", stage="eval-base"))
    assert (summary.em.value, summary.em.n, summary.f1.value) == (None, 0, None)
    assert summary.searches_per_question is None
    assert summary.exclusions == {"infra_failure": 2}


@pytest.mark.parametrize(
    ("env", "generations", "searching"),
    [
        ({"max_turns": 4, "forced_answer": True}, 5, 4),
        ({"max_turns": 2}, 2, 1),
        ({"max_turns": 4, "max_searches": 1}, 4, 1),
    ],
)
def test_both_turn_counts_are_named(env, generations, searching):
    settings = EvalSettings.from_recipe(build_recipe({"env": env}))
    assert (settings.max_generations, settings.max_searching_turns) == (generations, searching)
    assert f"{generations} generations of which {searching} can search" in settings.describe()


def test_episodes_that_disagree_with_the_settings_are_refused(records):
    sampled = dataclasses.replace(records[0], episode=dataclasses.replace(records[0].episode, temperature=1.0))
    with pytest.raises(DataError, match=r"1 of 5 episodes were sampled with temperature 1\.0"):
        summarize([sampled, *records[1:]], settings=GREEDY)
    assert summarize([sampled, *records[1:]]).temperatures == (0.0, 1.0)
    with pytest.raises(DataError, match="5 of 5 episodes were sampled with protocol 'tags'"):
        summarize(records, settings=dataclasses.replace(GREEDY, protocol="code"))


def test_what_cannot_be_summarised_is_refused(records):
    with pytest.raises(DataError, match="no episode to summarise"):
        summarize([])
    with pytest.raises(DataError, match="several stages"):
        summarize([records[0], dataclasses.replace(records[1], stage="eval-sft")])
    with pytest.raises(DataError, match=r"1 question\(s\) have more than one episode"):
        summarize([*records, records[0]])


def test_rouge_l_the_judges_verdicts_and_odd_golds_are_in_the_summary(records):
    judged = [dataclasses.replace(each, scores={"judge": float(n == 1)}) for n, each in enumerate(records[:3])]
    summary = summarize([*judged, *records[3:]], settings=GREEDY)
    assert summary.rouge_l.value == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)
    assert (summary.judge.k, summary.judge.n) == (1, 3)
    assert summary.vacuous_golds == ("q4: A",)
    assert (summary.by_kind["bridge"].judge.k, summary.by_kind["bridge"].substring.k) == (1, 1)
    assert summarize(records).judge is None


def test_dollars_and_prompt_tokens_come_from_what_the_episodes_cost_failed_ones_too(records):
    usage = {"prompt_tokens": 100.0, "completion_tokens": 10.0, "num_requests": 2.0, "cost_usd": 0.02}
    episodes = [dataclasses.replace(each.episode, usage=usage) for each in (records[0], records[4])]
    paid = [dataclasses.replace(records[n], episode=each) for n, each in zip((0, 4), episodes, strict=True)]
    summary = summarize([*paid, records[1]])
    assert summary.dollars_total == pytest.approx(0.04)
    assert summary.dollars_per_question == pytest.approx(0.04 / 3)
    assert summary.prompt_tokens_per_question == 100.0
    assert (summarize(records).dollars_total, summarize(records).prompt_tokens_per_question) == (None, None)
    priced = summarize(records, wall_s=36.0, usd_per_hour=100.0)
    assert (priced.wall_seconds_per_question, priced.dollars_per_question) == pytest.approx((7.2, 0.2))


def test_a_cap_of_thoughts_is_among_the_settings_of_those_who_are_held_to_it():
    recipe = build_recipe({"rollout": {"thought_tokens": 32}})
    assert EvalSettings.from_recipe(recipe).thought_tokens == 32
    assert EvalSettings.from_recipe(recipe, model="big", endpoint="http://localhost/v1").thought_tokens == 0
