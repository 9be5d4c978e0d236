"""The detectors against 349 episodes that were read and labelled, and the reader of such files."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.behaviours import measure_agreement, measure_causes, read_labelled
from seekling.evaluate.behaviours import BEHAVIOURS
from seekling.reward.match import exact_match

LABELLED = Path(__file__).parent / "fixtures" / "labelled_episodes.jsonl"

LEAST = 0.85
"""Of precision and recall, on all episodes; most are above 0.95. The figures are in docs/BEHAVIOURS.md."""


@pytest.fixture(scope="module")
def rows():
    return read_labelled(LABELLED)


def test_the_labels_cover_every_behaviour_protocol_and_origin(rows):
    assert len(rows) == 349
    assert Counter(row.origin for row in rows) == {"model": 226, "expert": 23, "written": 100}
    assert Counter(row.episode.protocol for row in rows) == {"tags": 132, "code": 133, "tools": 84}
    positives = Counter(name for row in rows for name in row.labels)
    assert min(positives[name] for name in BEHAVIOURS) >= 11
    assert sum(row.is_held_out for row in rows) == 178
    assert LABELLED.stat().st_size < 950_000


def test_an_episode_has_a_cause_exactly_when_it_is_not_right(rows):
    for row in rows:
        assert (row.error == "") == bool(exact_match(row.episode.answer, row.question.answers)), row.id


@pytest.fixture(scope="module")
def agreements(rows):
    return measure_agreement(rows)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_detector_agrees_with_the_reader(agreements, name):
    agreement = agreements[name]
    assert agreement.precision.value >= LEAST, agreement.false_positives
    assert agreement.recall.value >= LEAST, agreement.false_negatives


def test_the_causes_agree_too(rows):
    for cause, agreement in measure_causes(rows).items():
        assert agreement.precision.value >= LEAST, (cause, agreement.false_positives)
        assert agreement.recall.value >= LEAST, (cause, agreement.false_negatives)


def test_without_hops_the_rules_hold_up_less_well_but_hold_up(rows):
    blind = [dataclasses.replace(row, question=dataclasses.replace(row.question, hops=())) for row in rows]
    for name, agreement in measure_agreement(blind).items():
        assert agreement.precision.value >= 0.8, (name, agreement.false_positives)
        assert agreement.recall.value >= 0.75, (name, agreement.false_negatives)
