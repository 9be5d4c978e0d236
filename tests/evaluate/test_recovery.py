"""Rates of recovery, invented answers and needless abstention."""

from __future__ import annotations

from dataclasses import replace

from seekling.evaluate.summary import summarize
from tests.evaluate.episodes import failed, question, record, search

SINGLE = question(1)
HIT, MISS = replace(search(), observation="<information>It is Paris.</information>"), search(("page-9",))
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
