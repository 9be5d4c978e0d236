"""Rates of behaviours and of recovery, per evaluation and per training step, worked by hand."""

import dataclasses

from seekling.evaluate.behaviours import PROGRAM_BEHAVIOURS, detect_behaviours
from seekling.evaluate.episode_facts import behaviour_curves
from seekling.evaluate.summary import summarize
from tests.evaluate.episodes import evaluation, failed, invalid, question, record, search


def test_rates_are_over_scored_episodes_and_leave_out_what_cannot_happen():
    records = [*evaluation("rww", stage="eval-rl"), record(question(8), None, invalid()), failed(question(9))]
    rates = summarize(records).behaviours
    assert (rates["format_break"].k, rates["format_break"].n) == (1, 4)
    assert (rates["answer_from_memory"].k, rates["answer_from_memory"].n) == (2, 4)
    assert not PROGRAM_BEHAVIOURS & set(rates)
    in_code = dataclasses.replace(records[0], episode=dataclasses.replace(records[0].episode, protocol="code"))
    assert set(summarize([in_code]).behaviours) >= PROGRAM_BEHAVIOURS


def test_the_causes_of_errors_sum_to_all_that_is_not_right():
    records = [*evaluation("rrwwf", stage="eval-rl"), record(question(8), None, search(("page-2",)))]
    summary = summarize(records)
    causes = {"not_retrieved": 2, "not_read": 0, "misread": 0, "no_answer": 1, "infrastructure": 1}
    assert summary.error_causes == causes
    assert sum(summary.error_causes.values()) == len(records) - summary.em.k
    assert summary.behaviours["answer_from_memory"].k == 2


def at(step, letters):
    return [dataclasses.replace(each, step=step) for each in evaluation(letters, stage="rl")]


def curve_of(*records, **more):
    shown = [(record.step, detect_behaviours(record.question, record.episode)) for record in records]
    return behaviour_curves(shown, **more)["answer_from_memory"]


def test_a_curve_has_a_point_per_step_and_per_window():
    records = [*at(2, "rw"), *at(1, "ww"), *at(3, "rrr")]
    memory = curve_of(*records)
    assert [(point.step, point.rate.k, point.rate.n) for point in memory] == [(1, 2, 2), (2, 1, 2), (3, 0, 3)]
    pooled = curve_of(*records, max_points=2)
    assert [(point.step, point.rate.k, point.rate.n) for point in pooled] == [(2, 3, 4), (3, 0, 3)]


HIT, MISS = dataclasses.replace(search(), observation="<information>It is Paris.</information>"), search(("page-9",))
OPEN = [question(number, kind="unanswerable", answers=("unknown",), support=()) for number in range(2, 6)]


def k_of_n(summary):
    return [(rate.k, rate.n) for rate in (summary.recovered, summary.false_answers, summary.false_unknowns)]


def test_each_rate_counts_the_episodes_it_is_about():
    records = [
        record(question(10), "Paris", HIT),
        record(question(11), "Paris", MISS, HIT),
        record(question(12), "Lyon", MISS),
        record(question(13), "unknown", MISS),
        record(OPEN[0], "unknown"),
        record(OPEN[1], "Rex"),
        record(OPEN[2], "I do not know"),
        record(OPEN[3], None),
        failed(question(14)),
    ]
    assert k_of_n(summarize(records).recovery) == [(1, 3), (1, 4), (1, 4)]


def test_what_follows_an_observation_is_counted_by_whether_it_sufficed():
    records = [
        record(question(10), "Paris", HIT),
        record(question(11), "Paris", MISS, HIT),
        record(question(12), "Lyon", MISS),
        record(question(13), "unknown", MISS),
        record(question(14), "unknown", HIT),
        record(question(15), "Paris", HIT, HIT),
        record(OPEN[0], "unknown", HIT),
        record(OPEN[1], "Rex", MISS),
    ]
    summary = summarize(records).recovery
    # Shown: 10, 11, 14, and twice 15. Not shown: 11, 12, 13 and both open ones, of which 12 and the last were answered.
    assert (summary.stopped_when_shown.k, summary.stopped_when_shown.n) == (3, 5)
    assert (summary.went_on_when_not.k, summary.went_on_when_not.n) == (3, 5)
